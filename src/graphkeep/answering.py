"""Answers to requests, checked against the stored schema: without the code of the graph. Pure."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, cast

from pydantic_core import PydanticSerializationError, to_jsonable_python

from .errors import InvalidAnswerError

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
    from jsonschema import Draft202012Validator, exceptions
    from referencing import Registry

    # With a registry of its own nothing is ever fetched, whatever a schema refers to.
    validator: Any = Draft202012Validator(cast('Any', schema), registry=Registry())
    errors: Iterable[Any] = validator.iter_errors(plain)
    # Of a union: where it comes closest.
    best_match = cast('Any', exceptions).best_match
    closest: list[Any] = [best_match((error,)) for error in errors]
    found = [(list(error.absolute_path), str(error.message)) for error in closest]
    found.sort(key=lambda misfit: [str(part) for part in misfit[0]])
    return [(_path(parts), message) for parts, message in found]


def _path(parts: Iterable[object]) -> str:
    path = 'answer'
    for part in parts:
        path += f'[{part}]' if isinstance(part, int) else f'.{part}'
    return path
