"""Where the file of a SQLite store is: paths and URLs."""

from __future__ import annotations

from pathlib import Path
from urllib.parse import quote

import pytest

from graphkeep import StoreWriteError, open_store
from graphkeep.stores.sqlite import SQLiteStore
from graphkeep.testing import Worker


@pytest.mark.parametrize(
    'name',
    ['runs.db', 'two words.db', 'größe 🙂.db', '100%.db', 'a%20b', 'a?b=c', 'a#b', "it's", ':x'],
)
async def test_any_file_name_can_be_written_as_a_url(tmp_path: Path, name: str) -> None:
    url = f'sqlite:///{quote(str(tmp_path))}/{quote(name)}'
    async with open_store(url) as store:
        await Worker(store).create()
        assert isinstance(store, SQLiteStore)
        assert store.path == tmp_path / name
    assert [file.name for file in tmp_path.iterdir()] == [name]
    async with SQLiteStore(tmp_path / name) as store:
        assert (await store.run('run-1')).seq == 0


async def test_a_relative_path_stays_where_it_was_meant(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    store = open_store('sqlite:///runs.db')
    monkeypatch.chdir('/')
    async with store:
        await Worker(store).create()
    assert (tmp_path / 'runs.db').exists()


def test_a_windows_path_follows_three_slashes() -> None:
    assert (
        SQLiteStore.from_url('sqlite:///C:/data/runs.db')
        .path.as_posix()
        .endswith('C:/data/runs.db')
    )


@pytest.mark.parametrize(
    ('url', 'reason'),
    [
        ('sqlite://', 'memory://'),
        ('sqlite:', 'memory://'),
        ('sqlite:///', 'memory://'),
        ('sqlite:///:memory:', 'memory://'),
        ('sqlite:///?synchronous=FULL', 'memory://'),
        ('sqlite://runs.db', 'sqlite:///runs.db'),
        ('sqlite:runs.db', 'sqlite:///runs.db'),
        ('sqlite:///a%00b', 'NUL'),
        ('sqlite:///runs.db?synchronous=OFF', "'FULL' or 'NORMAL'"),
        ('sqlite:///runs.db?mode=ro', "no option 'mode'"),
        ('sqlite:///runs.db?lease=1&lease=2', "twice option 'lease'"),
        ('sqlite:///runs.db?lease=soon', "'lease'.*seconds.*'soon'"),
        ('sqlite:///runs.db?lease=nan', "'lease'.*seconds"),
        ('sqlite:///runs.db?history=none', 'history'),
        ('sqlite:///runs.db?table_prefix=a-b', 'table_prefix'),
        ('sqlite:///runs.db?lease', 'bad query field'),
    ],
)
def test_a_url_that_names_no_file_or_option_is_refused(url: str, reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        open_store(url)


def test_options_follow_the_path_and_arguments_win() -> None:
    url = 'sqlite:///runs.db?synchronous=NORMAL&lease=60&history=latest&retry=0'
    store = open_store(url, retry=5)
    assert (store.lease, store.history, store.retry) == (60.0, 'latest', 5)


@pytest.mark.parametrize('path', ['', ':memory:', 'a\0b'])
def test_a_path_that_names_no_file_is_refused(path: str) -> None:
    with pytest.raises(ValueError, match='file'):
        SQLiteStore(path)


async def test_a_directory_that_does_not_exist_is_named(tmp_path: Path) -> None:
    with pytest.raises(StoreWriteError, match=r'directory .*missing.* does not exist'):
        await SQLiteStore(tmp_path / 'missing' / 'runs.db').open()
    with pytest.raises(StoreWriteError, match='is a directory'):
        await SQLiteStore(tmp_path).open()
