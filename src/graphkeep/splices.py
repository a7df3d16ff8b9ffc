"""The bytes that differ between two versions of a JSON text, as splices."""

from __future__ import annotations

from typing import Any

from pydantic_core import to_json

from .parts import Part

__all__ = ('Edit', 'edits', 'splice', 'triples')

Edit = tuple[int, int, int, int]
"""`old[a:b]` becomes `new[c:d]`, as `(a, b, c, d)`; all four are at UTF-8 character boundaries."""

_ANCHOR = 32
"""Bytes that must agree before two texts are in step again; a splice costs about half of that."""
_LONG = 4096
"""Texts that agree for so many bytes are taken to be in step."""
_PATIENCE = 200
"""How many places to look at, in one text, for a better one than the first."""
_MOST_EDITS = 512
"""Bounds the work for two texts that differ everywhere."""
_FEW_EDITS = 8
"""Up to this many splices, moving the rest of a text in place is faster than copying all of it."""


def edits(old: Part, new: bytes) -> list[Edit]:
    """What differs between two JSON texts: ascending, not overlapping, exact, not always the least.

    The texts are compared as bytes, in blocks that double. After a difference, a few bytes of `new`
    further on (16, 32, 64, …) are looked for in `old`, in a window that grows as far. So the time
    follows the length of the texts at the speed of `memcmp`, plus the length of what changed.
    """
    shorter = min(len(old), len(new))
    head = _common_head(old, 0, new, 0, shorter)
    if head == len(old) == len(new):
        return []
    tail = _common_tail(old, len(old), new, len(new), shorter - head)
    old_end, new_end = len(old) - tail, len(new) - tail
    found: list[Edit] = []
    a, c = head, head
    patience = _PATIENCE
    while len(found) < _MOST_EDITS:
        b, d, looked = _in_step_again(old, a, old_end, new, c, new_end, patience)
        patience = max(0, patience - looked)
        if b == old_end and d == new_end:
            break
        found.append((a, b, c, d))
        same = _common_head(old, b, new, d, min(old_end - b, new_end - d))
        a, c = b + same, d + same
    if a < old_end or c < new_end:
        found.append((a, old_end, c, new_end))
    return found if new.isascii() else [_at_characters(new, *edit) for edit in found]


def triples(old: Part, new: bytes) -> bytes | None:
    """`edits` as stored, a JSON list `[offset, delete, text, …]`; `None` if `new` takes less."""
    found = edits(old, new)
    if sum([d - c for _, _, c, d in found]) > len(new) * 7 // 8:  # the rest goes into escapes
        return None
    stored = b'[%b]' % b','.join(
        [b'%d,%d,%b' % (a, b - a, to_json(new[c:d].decode())) for a, b, c, d in found]
    )
    return stored if len(stored) < len(new) else None


def splice(part: Part, stored: list[Any]) -> bytearray:
    """Apply stored triples. A `bytearray` is changed in place: growing one costs what is new.

    Raises:
        ValueError: They are not triples, or do not fit the part.
    """
    buffer = part if isinstance(part, bytearray) else bytearray(part)
    if len(stored) == 3:
        offset, delete, text = stored
        if type(offset) is type(delete) is int and type(text) is str:
            end = offset + delete
            if 0 <= offset <= end <= len(buffer):
                buffer[offset:end] = text.encode()
                return buffer
        raise ValueError('a splice does not fit its part')
    checked = _checked(stored, len(buffer))
    if len(checked) <= _FEW_EDITS:
        for offset, end, text in reversed(checked):
            buffer[offset:end] = text
        return buffer
    pieces: list[bytes | bytearray] = []
    done = 0
    for offset, end, text in checked:
        pieces += (buffer[done:offset], text)
        done = end
    pieces.append(buffer[done:])
    return bytearray().join(pieces)


def _checked(stored: list[Any], size: int) -> list[tuple[int, int, bytes]]:
    """The triples as `(offset, end, text)`, once they are known to fit a part of `size` bytes."""
    if not stored or len(stored) % 3:
        raise ValueError('splices are not triples')
    checked: list[tuple[int, int, bytes]] = []
    done = 0
    steps = iter(stored)
    for offset, delete, text in zip(steps, steps, steps, strict=True):
        if not (type(offset) is type(delete) is int and type(text) is str):
            raise ValueError('splices are not triples')
        if not done <= offset <= offset + delete <= size:
            raise ValueError('a splice does not fit its part')
        done = offset + delete
        checked.append((offset, done, text.encode()))
    return checked


def _in_step_again(
    old: Part, a: int, old_end: int, new: bytes, c: int, new_end: int, patience: int
) -> tuple[int, int, int]:
    """Where the texts agree again after they differ at `old[a]`, `new[c]`, or their ends.

    The first place is not always the best: texts repeat themselves, and when an entry was removed
    from a thousand that look alike, each agrees with its neighbour for a while. So a place where
    they agree for long is taken at once, and otherwise the best of several.

    Returns:
        The two positions, and how many places were looked at: one more than `patience` at most.
    """
    looked = 0
    best, best_score = (old_end, new_end), -(1 << 62)
    ahead = 16
    while c + ahead + _ANCHOR <= new_end and a + _ANCHOR <= old_end:
        if looked and ahead > 512:
            break
        at = c + ahead
        anchor = new[at : at + _ANCHOR]
        reach = min(old_end, a + 4096 + 8 * ahead)
        level = max(a, a + ahead - 32)  # the usual change keeps the length, or nearly
        for start, most in ((level, 3), (a, 2)):
            near = old.find(anchor, start, reach)
            while near >= 0 and most:
                looked += 1
                back = _common_tail(old, near, new, at, min(near - a, ahead))
                longest = min(_LONG, old_end - near, new_end - at)
                same = _common_head(old, near, new, at, longest)
                if same == longest or looked > patience:
                    return near - back, at - back, looked
                if same - ahead + 2 * back > best_score:
                    best, best_score = (near - back, at - back), same - ahead + 2 * back
                most -= 1
                near = old.find(anchor, near + 1, reach)
        ahead *= 2
    return *best, looked


def _common_head(old: Part, a: int, new: bytes, c: int, most: int) -> int:
    """How many bytes from `old[a]` and `new[c]` on are the same, at most `most`."""
    view = memoryview(old)
    done, block, found = 0, 64, False
    while done < most:
        block = min(block, most - done)
        if new.startswith(view[a + done : a + done + block], c + done):
            done += block
            if not found:
                block *= 4
        elif block <= 64:
            left = int.from_bytes(view[a + done : a + done + block], 'little')
            differ = left ^ int.from_bytes(new[c + done : c + done + block], 'little')
            return done + ((differ & -differ).bit_length() - 1) // 8
        else:
            found = True
            most = done + block
            block = max(64, block // 4)
    return done


def _common_tail(old: Part, b: int, new: bytes, d: int, most: int) -> int:
    """How many bytes before `old[b]` and `new[d]` are the same, at most `most`."""
    view = memoryview(old)
    done, block, found = 0, 64, False
    while done < most:
        block = min(block, most - done)
        if new.endswith(view[b - done - block : b - done], 0, d - done):
            done += block
            if not found:
                block *= 4
        elif block <= 64:
            left = int.from_bytes(view[b - done - block : b - done], 'big')
            differ = left ^ int.from_bytes(new[d - done - block : d - done], 'big')
            return done + ((differ & -differ).bit_length() - 1) // 8
        else:
            found = True
            most = done + block
            block = max(64, block // 4)
    return done


def _at_characters(new: bytes, a: int, b: int, c: int, d: int) -> Edit:
    """Widen an edit to whole characters. What lies around it is the same in both texts."""
    while c < len(new) and new[c] & 0xC0 == 0x80:
        a, c = a - 1, c - 1
    while d < len(new) and new[d] & 0xC0 == 0x80:
        b, d = b + 1, d + 1
    return a, b, c, d
