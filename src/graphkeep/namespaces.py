"""The names that annotations of the caller's types may use: classes may be defined in a
function.
"""

from __future__ import annotations

import inspect
import os
from pathlib import Path
from types import FunctionType
from typing import Any, NewType, TypeVar, get_origin

import pydantic_graph
from typing_extensions import TypeAliasType

__all__ = ('caller_namespace',)

_LIBRARIES = tuple(
    str(Path(file).parent) + os.sep for file in (pydantic_graph.__file__, __file__) if file
)


def caller_namespace() -> dict[str, Any]:
    """The types and functions among the local names of the code that called, inner ones first.

    Functions, because annotations may name them: `Annotated[int, my_merge_rule]`. A module's
    globals are not among them: the types find those by themselves.
    """
    names: dict[str, Any] = {}
    frame = inspect.currentframe()
    while frame is not None:
        module = frame.f_locals is frame.f_globals
        if not module and not frame.f_code.co_filename.startswith(_LIBRARIES):
            types = {n: value for n, value in frame.f_locals.items() if _may_be_named(value)}
            names = {**types, **names}
        frame = frame.f_back
    return names


def _may_be_named(value: object) -> bool:
    kinds = (type, FunctionType, TypeVar, TypeAliasType, NewType)
    return isinstance(value, kinds) or get_origin(value) is not None
