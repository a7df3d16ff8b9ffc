"""Answers to requests, checked against the stored schema: without the code of the graph. Pure."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import is_dataclass
from typing import TYPE_CHECKING, Any, cast

from pydantic import BaseModel
from pydantic_core import (
    PydanticSerializationError,
    SchemaError,
    SchemaValidator,
    core_schema,
    to_jsonable_python,
)

from .codec import Codec
from .errors import CodecError, InvalidAnswerError

if TYPE_CHECKING:
    from .requests import Request

__all__ = ('check_answer',)

_MOST = 3
"""Most misfits that an error tells of."""


def check_answer(request: Request, answer: object) -> bytes:
    """The answer as canonical JSON: the same answer gives the same bytes.

    Args:
        request: What was asked.
        answer: A value of JSON, or one that pydantic makes JSON of: a model, a dataclass, a date.

    Raises:
        InvalidAnswerError: It does not fit the stored schema, or is no JSON; says where.
    """
    try:
        plain = to_jsonable_python(answer)
        _check_kept(answer, plain)
        text = json.dumps(
            plain, sort_keys=True, separators=(',', ':'), allow_nan=False, ensure_ascii=False
        )
        data = text.encode()  # refuses lone surrogates, which pydantic could not load
    except (PydanticSerializationError, TypeError, ValueError, RecursionError) as e:
        raise _invalid(request, 'answer', f'it cannot be made JSON: {e}') from e
    misfits = _misfits(request.schema, plain)
    if misfits:
        said = '; '.join(f'{path}: {message}' for path, message in misfits[:_MOST])
        more = f' (and {len(misfits) - _MOST} more)' if len(misfits) > _MOST else ''
        raise _invalid(request, misfits[0][0], f'{said}{more}')
    return data


def _check_kept(answer: object, plain: object) -> None:
    """See that JSON has all of an answer: a secret, say, would be stored as stars.

    Raises:
        ValueError: Something of it is not in its JSON.
    """
    if isinstance(answer, BaseModel) or (is_dataclass(answer) and not isinstance(answer, type)):
        try:
            Codec[Any](type(answer), path='answer').encode(answer)
        except CodecError as e:
            raise ValueError(f'JSON does not keep all of it: see {e.path}') from e
    elif isinstance(answer, Mapping) and isinstance(plain, dict):
        given = cast('Mapping[Any, Any]', answer)
        if len(given) != len(cast('dict[str, Any]', plain)):
            raise ValueError('two of its keys are the same in JSON')
        for value, part in zip(given.values(), cast('dict[str, Any]', plain).values(), strict=True):
            _check_kept(value, part)
    elif isinstance(answer, (list, tuple)) and isinstance(plain, list):
        parts = cast('list[Any]', plain)
        for value, part in zip(cast('list[Any]', answer), parts, strict=True):
            _check_kept(value, part)


def _invalid(request: Request, path: str, message: str) -> InvalidAnswerError:
    return InvalidAnswerError(
        f'The answer to request {request.request_id!r} of run {request.run_id!r} does not fit: '
        f'{message}. The request stays open; its schema says what fits.',
        run_id=request.run_id,
        request_id=request.request_id,
        path=path,
    )


def _misfits(schema: Mapping[str, Any], plain: object) -> list[tuple[str, str]]:
    """Where a value does not fit a schema, and why; the first in the value first."""
    # Late: it takes 50 ms, and who only runs graphs never needs it.
    from jsonschema import Draft202012Validator, exceptions, validators
    from referencing import Registry

    # Untyped: the stubs know less than half of it.
    checks, errors_of = cast('Any', validators), cast('Any', exceptions)
    kind = checks.extend(Draft202012Validator, {'pattern': _pattern})
    # With a registry of its own nothing is ever fetched, whatever a schema refers to.
    validator = kind(_without_patterned_keys(schema), registry=cast('Any', Registry)())
    errors: Iterable[Any] = validator.iter_errors(plain)
    # Of a union: where it comes closest.
    closest: list[Any] = [errors_of.best_match((error,)) for error in errors]
    found = [(list(error.absolute_path), str(error.message)) for error in closest]
    found.sort(key=lambda misfit: [str(part) for part in misfit[0]])
    return [(_path(parts), message) for parts, message in found]


def _path(parts: Iterable[object]) -> str:
    path = 'answer'
    for part in parts:
        path += f'[{part}]' if isinstance(part, int) else f'.{part}'
    return path


def _pattern(_: object, pattern: str, value: object, __: object) -> Iterator[Exception]:
    """The check of `pattern`, by pydantic's own engine: it takes as long as the text, whatever the
    pattern. (Python's may take years, and blocks all runs of the process.)
    """
    from jsonschema import ValidationError

    if not isinstance(value, str):
        return
    try:
        checks = SchemaValidator(core_schema.str_schema(pattern=pattern))
    except SchemaError:
        return  # of another dialect: the type itself checks it
    if not checks.isinstance_python(value):
        yield ValidationError(f'{value[:80]!r} does not match {pattern!r}')


def _without_patterned_keys(schema: Any) -> Any:
    """A schema without what it says of keys by patterns: the type itself checks them."""
    if isinstance(schema, dict):
        members = cast('dict[str, Any]', schema)
        dropped = (
            {'patternProperties', 'additionalProperties'}
            if isinstance(members.get('patternProperties'), dict)
            else set[str]()
        )
        return {k: _without_patterned_keys(v) for k, v in members.items() if k not in dropped}
    if isinstance(schema, list):
        return [_without_patterned_keys(part) for part in cast('list[Any]', schema)]
    return schema
