"""The names that annotations of the caller's types may use: classes may be defined in a function."""

from __future__ import annotations

import inspect
import os
from pathlib import Path
from typing import Any, NewType, TypeVar, get_origin

import pydantic_graph
from typing_extensions import TypeAliasType

__all__ = ('caller_namespace',)

_LIBRARIES = tuple(
    str(Path(file).parent) + os.sep for file in (pydantic_graph.__file__, __file__) if file
)


def caller_namespace() -> dict[str, Any]:
    """The types among the local names of the code that called, inner ones first.

    A module's globals are not among them: the types find those by themselves.
    """
    names: dict[str, Any] = {}
    frame = inspect.currentframe()
    while frame is not None:
        module = frame.f_locals is frame.f_globals
        if not module and not frame.f_code.co_filename.startswith(_LIBRARIES):
            types = {name: value for name, value in frame.f_locals.items() if _is_type(value)}
            names = {**types, **names}
        frame = frame.f_back
    return names


def _is_type(value: object) -> bool:
    return (
        isinstance(value, (type, TypeVar, TypeAliasType, NewType)) or get_origin(value) is not None
    )
