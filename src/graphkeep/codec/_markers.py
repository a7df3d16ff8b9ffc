"""Annotations that a state class may carry."""

from __future__ import annotations

from typing import Any

from pydantic import GetCoreSchemaHandler
from pydantic_core import CoreSchema

__all__ = ('APPEND_ONLY', 'AppendOnly')

APPEND_ONLY = 'graphkeep_append_only'
"""The key in a core schema's metadata that says a list carries `AppendOnly`."""


class AppendOnly:
    """Marks a list that only ever grows: `messages: Annotated[list[ModelMessage], AppendOnly]`.

    Only on a field of the state class itself. A commit then encodes the new elements and nothing
    else, so that a step costs the same at message 10 and at message 10,000. What is already in the
    list must not be changed, removed or put into another order: where that is noticed,
    `LossyStateError` is raised (a shorter list, another object in an old place, a change of the
    last old element). A change inside an older element is *not* noticed and is lost when the run
    is resumed: drop the annotation if your graph edits old elements.
    """

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        """Marks the schema of the list, so that the codec finds it however the field is written."""
        schema = handler(source).copy()
        schema['metadata'] = {**schema.get('metadata', {}), APPEND_ONLY: True}
        return schema
