"""What is stored of an exception that made a run fail."""

from __future__ import annotations

import traceback
from typing import Any

__all__ = ('describe',)


def describe(error: BaseException, node: str | None) -> dict[str, Any]:
    """An exception as JSON: class, message and the end of the traceback, as text.

    Args:
        error: What was raised.
        node: The node or step that raised it, if one did.

    Returns:
        `{'type': …, 'message': …, 'node': …, 'traceback': …}`, cut to 4,000 and 8,000 characters.
    """
    cls = type(error)
    try:
        message = str(error)
    except Exception:  # noqa: BLE001 - a user's __str__ may raise anything
        message = '(its message cannot be shown)'
    return {
        'type': f'{cls.__module__}.{cls.__qualname__}',
        'message': message[:4_000],
        'node': node,
        'traceback': ''.join(traceback.format_exception(error))[-8_000:],
    }
