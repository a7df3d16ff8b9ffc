"""Every Python snippet of the README and the docs is run as it stands, page by page."""

from __future__ import annotations

import ast
import inspect
import re
import sys
import types
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).parent.parent
CLASSIC = find_spec('pydantic_graph.persistence') is not None
CONVERSATIONS = find_spec('pydantic_ai.conversation_store') is not None
_BLOCK = re.compile(r'(?:<!-- (?P<marks>[a-z0-9 ]+) -->\n)?```python\n(?P<code>.*?)```', re.DOTALL)
_URLS = re.compile(r"'(?P<scheme>postgresql|redis)://[^']*'")


class Snippet(NamedTuple):
    line: int
    marks: frozenset[str]
    code: str


def pages() -> list[Path]:
    return [ROOT / 'README.md', *sorted((ROOT / 'docs').glob('*.md'))]


def snippets(page: Path) -> Iterator[Snippet]:
    text = page.read_text(encoding='utf-8')
    for block in _BLOCK.finditer(text):
        marks = frozenset((block['marks'] or '').split())
        yield Snippet(text.count('\n', 0, block.start('code')), marks, block['code'])


def test_there_are_snippets() -> None:
    assert sum(1 for page in pages() for _ in snippets(page)) > 5


def test_every_fence_of_python_is_found() -> None:
    """A mark that is misspelt, or a fence that is indented, would leave a snippet out."""
    for page in pages():
        text = page.read_text(encoding='utf-8')
        assert len(re.findall(r'```py', text)) == sum(1 for _ in snippets(page)), page.name
        for snippet in snippets(page):
            assert snippet.marks <= {'v1', 'v2', 'builder', 'postgres', 'redis', 'both'}, page.name


def runs_here(snippet: Snippet) -> bool:
    return (CLASSIC or 'v1' not in snippet.marks) and (CONVERSATIONS or 'v2' not in snippet.marks)


def with_server(page: Path, server: str | None) -> bool:
    return any(server in s.marks for s in snippets(page) if runs_here(s))


async def run_page(
    page: Path, monkeypatch: pytest.MonkeyPatch, urls: dict[str, str], *, only: str | None
) -> int:
    """Run a page's snippets in one namespace, as one module would; gives how many ran."""
    # A real module: dataclasses and annotations look their names up there.
    module = types.ModuleType(f'docs_{page.stem.lower()}')
    monkeypatch.setitem(sys.modules, module.__name__, module)
    ran = 0
    for snippet in snippets(page):
        servers = snippet.marks & {'postgres', 'redis'}
        if not runs_here(snippet) or (servers and only not in servers):
            continue
        code = _URLS.sub(lambda url: repr(urls.get(url['scheme'], url[0])), snippet.code)
        # Line numbers of the page, so that a failure is found there.
        source = '\n' * snippet.line + code
        flags = ast.PyCF_ALLOW_TOP_LEVEL_AWAIT
        compiled = compile(source, str(page), 'exec', flags=flags, dont_inherit=True)
        outcome = eval(compiled, vars(module))
        if inspect.iscoroutine(outcome):
            await outcome
        ran += 1
    return ran


@pytest.mark.parametrize('page', pages(), ids=lambda page: page.stem)
async def test_snippets_run(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    expected = sum(
        1 for s in snippets(page) if runs_here(s) and not s.marks & {'postgres', 'redis'}
    )
    assert await run_page(page, monkeypatch, {}, only=None) == expected


@pytest.mark.postgres
@pytest.mark.parametrize('page', pages(), ids=lambda page: page.stem)
async def test_snippets_run_on_postgres(
    page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fresh_postgres_url: str
) -> None:
    if not with_server(page, 'postgres'):
        return
    monkeypatch.chdir(tmp_path)
    assert await run_page(page, monkeypatch, {'postgresql': fresh_postgres_url}, only='postgres')


@pytest.mark.redis
@pytest.mark.parametrize('page', pages(), ids=lambda page: page.stem)
async def test_snippets_run_on_redis(
    page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, redis_url: str
) -> None:
    if not with_server(page, 'redis'):
        return
    monkeypatch.chdir(tmp_path)
    assert await run_page(page, monkeypatch, {'redis': redis_url}, only='redis')
