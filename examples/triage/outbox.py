"""Stands for a mail provider: outside of the run, and so not undone when a node runs again."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from model import Wait
from pydantic import RootModel, TypeAdapter

__all__ = ('Mail', 'Outbox', 'read_mails')


@dataclass(frozen=True, kw_only=True)
class Mail:
    """One call of the provider."""

    key: str
    """Names what is sent. A key that came before is not delivered again."""
    to: str
    text: str
    delivered: bool = True


class Outbox:
    """A file, with a line for every call."""

    def __init__(self, path: Path, wait: Wait) -> None:
        self._path = path
        self._wait = wait

    async def send(self, *, key: str, to: str, text: str) -> None:
        """Deliver a mail, unless one with this key was delivered before."""
        known = any(mail.key == key for mail in read_mails(self._path))
        mail = Mail(key=key, to=to, text=text, delivered=not known)
        with self._path.open('a', encoding='utf-8') as file:
            file.write(RootModel[Mail](mail).model_dump_json() + '\n')
        await self._wait(f'File {key}', 0.01)


def read_mails(path: Path) -> list[Mail]:
    """Every call so far, oldest first."""
    if not path.exists():
        return []
    adapter = TypeAdapter(Mail)
    return [adapter.validate_json(line) for line in path.read_text(encoding='utf-8').splitlines()]
