"""Which types the output of an agent can have: what is kept is loaded again as one of them."""

from __future__ import annotations

import functools
import inspect
import types
import typing
from collections.abc import Awaitable, Coroutine, Iterator, Sequence
from typing import Any, NamedTuple, Union, cast, get_args, get_origin

from pydantic_ai import DeferredToolRequests, NativeOutput, PromptedOutput, TextOutput, ToolOutput
from pydantic_ai.agent import AbstractAgent
from typing_extensions import TypeAliasType

__all__ = ('Output', 'output_of')


class Output(NamedTuple):
    """The output of one run of an agent."""

    type: Any
    """What it can be in the end."""
    passed: Any
    """What `Agent.run` is given as `output_type=`; `None` for the agent's own."""


def output_of(agent: AbstractAgent[Any, Any], output_type: Any) -> Output:
    """The output of an agent, which may defer calls whether or not it was declared so.

    Args:
        agent: The agent.
        output_type: As for `Agent.run`; `None` for the agent's own.

    Raises:
        TypeError: The types cannot be told.
    """
    spec = cast('Any', agent.output_type) if output_type is None else output_type
    found = list(_types(spec))
    final = [each for each in found if each is not DeferredToolRequests]
    if not final:
        raise TypeError(
            f'graphkeep.agents.run(): output_type={spec!r} names nothing that a run could end with'
        )
    passed = output_type
    if len(final) == len(found) and (output_type is not None or not _validates(agent)):
        passed = [*(spec if _is_several(spec) else (spec,)), DeferredToolRequests]
    return Output(Union[tuple(final)], passed)  # noqa: UP007 - of a number not known here


def _validates(agent: AbstractAgent[Any, Any]) -> bool:
    """Whether it has output validators: upstream then refuses any `output_type=` of a run."""
    while (wrapped := getattr(agent, 'wrapped', None)) is not None:
        agent = wrapped
    return bool(getattr(agent, '_output_validators', ()))


def _is_several(spec: object) -> bool:
    return isinstance(spec, Sequence) and not isinstance(spec, (str, bytes))


def _types(spec: Any) -> Iterator[Any]:
    if spec is None:
        yield type(None)
    elif _is_several(spec):
        for each in spec:
            yield from _types(each)
    elif isinstance(spec, ToolOutput):
        yield from _types(cast('Any', spec).output)
    elif isinstance(spec, (NativeOutput, PromptedOutput)):
        yield from _types(cast('Any', spec).outputs)
    elif isinstance(spec, TextOutput):
        yield from _returned(cast('Any', spec).output_function)
    elif isinstance(spec, TypeAliasType):
        yield from _types(spec.__value__)
    elif get_origin(spec) in (Union, types.UnionType):
        for each in get_args(spec):
            yield from _types(each)
    elif isinstance(spec, type) or get_origin(spec) is not None:
        yield spec
    elif callable(spec):
        yield from _returned(spec)
    else:
        raise _unknown(spec)


def _returned(function: Any) -> Iterator[Any]:
    """What an output function returns, by its annotation."""
    while isinstance(function, functools.partial):
        function = cast('Any', function).func
    if not inspect.isroutine(function):
        function = type(function).__call__
    try:
        returned = typing.get_type_hints(function, include_extras=True)['return']
    except Exception as e:
        raise _unknown(function) from e
    if get_origin(returned) in (Awaitable, Coroutine):
        returned = get_args(returned)[-1]
    yield from _types(returned)


def _unknown(spec: object) -> TypeError:
    return TypeError(
        f'graphkeep.agents.run(): which type an output by {spec!r:.120} has cannot be told, and '
        'what is kept has to be loaded again. Annotate what the output function returns, or give '
        'output_type=.'
    )
