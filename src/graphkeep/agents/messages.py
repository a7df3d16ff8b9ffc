"""Messages of pydantic-ai as they are stored, one by one: exact, or refused before anything is
written.
"""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import cache
from hashlib import sha256
from importlib.metadata import version
from types import MappingProxyType
from typing import Any, Literal, NamedTuple, TypeAlias, cast

from pydantic_ai.messages import ModelMessage

from ..codec import Codec
from ..conversations import BlobPlace, Line, StoredEntry
from ..errors import CodecError, LossyStateError, UnreadableMessageError
from .plain import as_plain

__all__ = ('LIBRARY', 'MessageCodec', 'OnLossy', 'StoredMessage')

LIBRARY = version('pydantic-ai-slim')
"""The version of pydantic-ai here."""
_PLAIN = f'{LIBRARY} pydantic {version("pydantic")} plain 1'
"""The library of a message that these two versions load plainly: see `Codec.is_plain`. The number
goes up when what that means here changes."""
OnLossy: TypeAlias = Literal['raise', 'plain']
"""`raise`: what JSON would change is refused. `plain`: it is stored as the model sees it: a tool
that returns a dataclass has its plain JSON there."""

_FORMS: dict[Literal['base64', 'base64url'], tuple[Callable[[bytes], bytes], ...]] = {
    'base64': (base64.b64decode, base64.b64encode),
    'base64url': (base64.urlsafe_b64decode, base64.urlsafe_b64encode),
}


@cache
def _codec() -> Codec[ModelMessage]:
    """Made once: that takes as long as thousands of messages."""
    return Codec(cast('Any', ModelMessage), path='message')


class StoredMessage(NamedTuple):
    """A message as it is stored."""

    data: bytes
    library: str
    places: tuple[BlobPlace, ...] = ()
    blobs: Mapping[str, bytes] = MappingProxyType({})


class MessageCodec:
    """Messages as JSON, with what is large and binary apart."""

    def __init__(self, *, on_lossy: OnLossy, inline: int) -> None:
        """Make a codec.

        Args:
            on_lossy: What to do with what JSON does not keep.
            inline: Bytes of base64 text from which on binary content is stored apart.
        """
        self._codec = _codec()
        self._on_lossy = on_lossy
        self._large = re.compile(rb'"([A-Za-z0-9+/_-]{%d,}={0,2})"' % max(inline, 1))
        self._inline = inline

    def dump(self, message: ModelMessage, *, where: str) -> StoredMessage:
        """A message as it is stored.

        Args:
            message: The message.
            where: What it is called in errors, e.g. `message 3 of conversation 'c'`.

        Raises:
            LossyStateError: It would not come back as it is; names the part and the tool.
        """
        message, data = self._dumped(message, where)
        if len(data) > self._inline:
            # What is in it takes longer than what is around: it is not worth a try.
            return self._apart(data)
        return StoredMessage(data, _PLAIN if self._codec.is_plain(message, data) else LIBRARY)

    def whole(self, message: ModelMessage, *, where: str) -> bytes:
        """A message as JSON, with all that it holds. As `dump`."""
        return self._dumped(message, where)[1]

    def _dumped(self, message: ModelMessage, where: str) -> tuple[ModelMessage, bytes]:
        """A message that comes back as it is, and its JSON."""
        if self._on_lossy == 'plain':
            (message,) = as_plain([message])
        try:
            return message, self._codec.text(message)
        except LossyStateError as e:
            raise _explained(e, self._guilty(message, e), where) from e

    def as_json(self, message: ModelMessage, *, where: str) -> Any:
        """A message as plain JSON, to be kept beside the entries. As `dump`."""
        return json.loads(self.whole(message, where=where))

    def from_json(self, data: Any, *, of: str) -> ModelMessage:
        """What `as_json` gave. As `load`; `of` says what it is part of."""
        text = json.dumps(data).encode()
        return self.load(StoredEntry(of, None, text, LIBRARY), {})

    def load(self, entry: StoredEntry, blobs: Mapping[str, bytes]) -> ModelMessage:
        """The message that was stored.

        Raises:
            UnreadableMessageError: This version of pydantic-ai does not know what it holds, or it
                is damaged.
        """
        try:
            data = _together(entry, blobs) if entry.places else entry.data
            return self._codec.decode(data)
        except (CodecError, LookupError, ValueError) as e:
            reason = f'blob {e} is missing' if isinstance(e, LookupError) else f'{e}'
            raise UnreadableMessageError(
                entry_id=entry.entry_id,
                position=entry.position,
                library=entry.library.partition(' ')[0],
                here=LIBRARY,
                reason=reason.replace('\n', ' ')[:500],
            ) from e

    def load_all(self, line: Line, blobs: Mapping[str, bytes]) -> list[ModelMessage]:
        """The messages that were stored. As `load`, of many."""
        try:
            texts = line.messages
            if line.places:
                texts = [_together(e, blobs) if e.places else e.data for e in line]
            return self._codec.decode_all(texts, plain={*line.libraries} == {_PLAIN})
        except (CodecError, LookupError, ValueError):
            return [self.load(entry, blobs) for entry in line]  # says which one

    def _guilty(self, message: ModelMessage, error: LossyStateError) -> object:
        """The part of a message that an error is about, where it is one."""
        found = re.match(r'message\.parts\[(\d+)\]', error.path)
        if found:
            return message.parts[int(found[1])]
        for part in message.parts:
            # Where the whole cannot be dumped, the path does not say which part is the reason.
            try:
                self._codec.text(replace(cast('Any', message), parts=[part]))
            except LossyStateError:
                return part
        return None

    def _apart(self, data: bytes) -> StoredMessage:
        kept: list[bytes] = []
        places: list[BlobPlace] = []
        blobs: dict[str, bytes] = {}
        end = size = 0
        for match in self._large.finditer(data):
            start, stop = match.span(1)
            found = _decoded(match[1])
            if found is None:
                continue
            form, blob = found
            kept.append(data[end:start])
            size += start - end
            name = sha256(blob).hexdigest()
            places.append(BlobPlace(name, form, size))
            blobs[name] = blob
            end = stop
        kept.append(data[end:])
        return StoredMessage(b''.join(kept), LIBRARY, tuple(places), blobs)


def _explained(error: LossyStateError, part: object, where: str) -> LossyStateError:
    """The error, with what a person knows the place by."""
    tool = getattr(part, 'tool_name', None)
    kind = type(part).__name__
    call = getattr(part, 'tool_call_id', None)
    at = where
    if part is not None:
        at = f'{where}, {kind}' if tool is None else f'{where}, {kind} of tool {tool!r} ({call!r})'
    advice = ''
    if tool is not None and error.path.count('metadata') == 0:
        advice = (
            " Or keep what tools return as the model sees it: Conversations(store, on_lossy='plain'"
            "), in a step KeepRun(on_lossy='plain')."
        )
    return LossyStateError(f'{at}: {error}{advice}', path=error.path)


def _decoded(text: bytes) -> tuple[Literal['base64', 'base64url'], bytes] | None:
    """Bytes that give exactly this text again."""
    for form, (decode, encode) in _FORMS.items():
        try:
            blob = decode(text)
        except ValueError:
            continue
        if encode(blob) == text:
            return form, blob
    return None


def _together(entry: StoredEntry, blobs: Mapping[str, bytes]) -> bytes:
    parts: list[bytes] = []
    end = 0
    for place in entry.places:
        parts += (entry.data[end : place.at], _FORMS[place.form][1](blobs[place.hash]))
        end = place.at
    return b''.join((*parts, entry.data[end:]))
