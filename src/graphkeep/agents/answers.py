"""What a person or a program answers to the tool calls of an agent, and its meaning upstream."""

from __future__ import annotations

from typing import Any, cast

from pydantic import (
    BaseModel,
    ConfigDict,
    GetJsonSchemaHandler,
    StrictBool,
    model_serializer,
    model_validator,
)
from pydantic_ai import ModelRetry
from pydantic_ai import exceptions as _exceptions
from pydantic_ai.tools import ToolApproved, ToolDenied
from pydantic_core import CoreSchema

__all__ = ('Approval', 'ExternalResult')

_ONE_OF = ('result', 'retry', 'failed')


class Approval(BaseModel):
    """The answer to a tool call that has to be approved. Plain `true` and `false` will do too."""

    model_config = ConfigDict(extra='forbid', frozen=True)

    approved: StrictBool
    """Whether the tool may run."""
    message: str | None = None
    """Of a denial: what the model is told."""
    override_args: dict[str, Any] | None = None
    """Of an approval: arguments in the place of all those that the model gave. The tool checks them
    as it checks those of the model."""

    @model_validator(mode='before')
    @classmethod
    def _plain(cls, value: object) -> object:
        return {'approved': value} if isinstance(value, bool) else value

    @model_validator(mode='after')
    def _agrees_with_itself(self) -> Approval:
        if self.approved and self.message is not None:
            raise ValueError('a message is for a denial: the model would not be told it')
        if not self.approved and self.override_args is not None:
            raise ValueError('override_args are for an approval: nothing is called with them')
        return self

    @classmethod
    def __get_pydantic_json_schema__(
        cls, core_schema: CoreSchema, handler: GetJsonSchemaHandler, /
    ) -> dict[str, Any]:
        # Answers are checked against the schema before this model sees them.
        nothing = {'type': 'null'}
        agreeing = {
            'if': {'properties': {'approved': {'const': True}}},
            'then': {'properties': {'message': nothing}},
            'else': {'properties': {'override_args': nothing}},
        }
        return {'anyOf': [{'type': 'boolean'}, {**handler(core_schema), **agreeing}]}

    def meaning(self) -> ToolApproved | ToolDenied:
        """The answer as pydantic-ai takes it."""
        if self.approved:
            return ToolApproved(override_args=self.override_args)
        return ToolDenied() if self.message is None else ToolDenied(self.message)


def _exactly_one(schema: dict[str, Any]) -> None:
    schema['oneOf'] = [{'required': [name]} for name in _ONE_OF]
    for name in ('retry', 'failed'):
        schema['properties'][name] = {'type': 'string'}


class ExternalResult(BaseModel):
    """The answer to a tool call that is made elsewhere: exactly one of the three.

    `{"result": …}`, `{"retry": "why"}` or `{"failed": "why"}` as JSON.
    """

    model_config = ConfigDict(extra='forbid', frozen=True, json_schema_extra=_exactly_one)

    result: Any = None
    """What the tool returns: any JSON."""
    retry: str | None = None
    """The model is asked to call it again, otherwise: why. It counts as a retry of the tool."""
    failed: str | None = None
    """The call has failed for good: what the model is told. pydantic-ai 1.x knows no such end of a
    call, and gets it as what the tool has returned."""

    @model_validator(mode='after')
    def _exactly_one(self) -> ExternalResult:
        if len(self.model_fields_set) != 1:
            raise ValueError(f'it takes exactly one of {", ".join(_ONE_OF)}')
        return self

    @model_serializer(mode='plain')
    def _as_answer(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in self.model_fields_set}

    def meaning(self) -> Any:
        """The answer as pydantic-ai takes it."""
        if self.retry is not None:
            return ModelRetry(self.retry)
        if self.failed is not None:
            # Only 2.x has it.
            failed = cast('type[Exception] | None', getattr(_exceptions, 'ToolFailed', None))
            return f'Failed: {self.failed}' if failed is None else failed(self.failed)
        return self.result
