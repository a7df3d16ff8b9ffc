"""The texts that are read: the files in `texts/`, each with a head of title, author and year."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

__all__ = ('Text', 'load_texts')

TEXTS = Path(__file__).with_name('texts')


@dataclass(frozen=True, kw_only=True)
class Text:
    """A fable, a poem, a speech, or a page of prose."""

    name: str
    """Of its file, without the ending: 'sonnet-18'."""
    title: str
    author: str
    year: int
    body: str

    @property
    def words(self) -> int:
        """How many it has."""
        return len(self.body.split())


def load_texts(folder: Path = TEXTS) -> dict[str, Text]:
    """All texts of a folder by name, sorted by it."""
    return {path.stem: _load(path) for path in sorted(folder.glob('*.txt'))}


def _load(path: Path) -> Text:
    head, _, body = path.read_text(encoding='utf-8').partition('\n\n')
    known = dict(line.split(': ', 1) for line in head.splitlines())
    return Text(
        name=path.stem,
        title=known['title'],
        author=known['author'],
        year=int(known['year']),
        body=body.strip(),
    )
