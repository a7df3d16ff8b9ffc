"""A store from a URL, and what may be shown of it."""

from __future__ import annotations

import subprocess
import sys

import pytest

from graphkeep.stores.memory import MemoryStore
from graphkeep.testing import Worker
from graphkeep.urls import open_store, safe_url


@pytest.mark.parametrize(
    ('url', 'shown'),
    [
        ('sqlite:///runs.db', 'sqlite:///runs.db'),
        ('sqlite:////var/lib/me@home/runs.db', 'sqlite:////var/lib/me@home/runs.db'),
        ('postgresql://host/db', 'postgresql://host/db'),
        ('postgresql://me:secret@host:5432/db', 'postgresql://***@host:5432/db'),
        ('postgresql://me@host/db?password=secret', 'postgresql://***@host/db'),
        ('postgresql:///db?host=/run&password=secret', 'postgresql:///db'),
        ('redis://:secret@host/0', 'redis://***@host/0'),
        ('redis://me:se@cret@host/0', 'redis://***@host/0'),
        ('rediss://:secret@[::1]:6379/0#x', 'rediss://***@[::1]:6379/0'),
        ('REDIS://:secret@host', 'redis://***@host'),
        # A password that was not escaped ends the host early.
        ('postgresql://me:sec/ret@host/db', 'postgresql://…'),
        ('postgresql://me:sec?ret@host/db', 'postgresql://…'),
        ('postgresql://me:sec#ret@host/db', 'postgresql://…'),
        ('redis://host/0?password=sec@ret', 'redis://…'),
        ('redis:me:secret@host', 'redis://…'),
        ('postgresql://me:[secret@host', '…'),
        ('host=localhost password=secret', '…'),
        ('secret', '…'),
        ('', '…'),
        (None, 'NoneType'),
        (b'redis://:secret@host', 'bytes'),
    ],
)
def test_a_url_is_shown_without_its_secrets(url: object, shown: str) -> None:
    assert safe_url(url) == shown
    assert 'secret' not in safe_url(url)


@pytest.mark.parametrize(
    'url', ['', 'runs.db', 'mysql://me:secret@host/db', 'sqlite3:///x', ':memory:']
)
def test_a_url_without_a_store_is_refused(url: str) -> None:
    with pytest.raises(ValueError, match='no store for') as caught:
        open_store(url)
    assert 'secret' not in str(caught.value)


@pytest.mark.parametrize('url', [None, 5, b'sqlite:///runs.db'])
def test_what_is_not_a_text_is_no_url(url: str) -> None:
    with pytest.raises(TypeError, match=type(url).__name__):
        open_store(url)


def test_options_reach_the_store() -> None:
    store = open_store('memory://', lease=7.0, heartbeat=2.0, history='latest', retry=1.5)
    assert isinstance(store, MemoryStore)
    assert (store.lease, store.heartbeat, store.history, store.retry) == (7.0, 2.0, 'latest', 1.5)
    with pytest.raises(TypeError):
        open_store('memory://', no_such_option=1)


async def test_memory_stores_of_one_name_share_their_runs() -> None:
    async with open_store('memory://one') as one, open_store('MEMORY://one') as same:
        await Worker(one).create()
        assert len(await same.runs()) == 1
        async with open_store('memory://two') as two, open_store('memory://') as alone:
            assert await two.runs() == []
            assert await alone.runs() == []


def test_a_url_is_understood_without_a_driver() -> None:
    code = (
        'import sys; from graphkeep.urls import open_store; open_store("memory://");'
        'open_store("sqlite:///unused.db");'
        'print([m for m in ("asyncpg", "redis", "pytest", "hypothesis") if m in sys.modules])'
    )
    found = subprocess.run([sys.executable, '-c', code], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == '[]'


def test_the_options_of_every_store_may_stand_in_its_url() -> None:
    store = open_store('memory://shared?lease=60&heartbeat=5&retry=0&history=latest')
    assert (store.lease, store.heartbeat, store.retry, store.history) == (60.0, 5.0, 0.0, 'latest')
    assert open_store('memory://?lease=60', lease=9.0).lease == 9.0


STORES = [
    'memory://',
    'sqlite:///unused.db',
    'postgresql://host/db',
    'redis://host/0',
    'redis+cluster://host:7000',
]


@pytest.mark.parametrize('url', STORES)
def test_a_heartbeat_follows_its_lease(url: str) -> None:
    assert open_store(url).heartbeat == 10.0
    assert open_store(url, lease=6.0).heartbeat == 2.0
    assert open_store(f'{url}?lease=6').heartbeat == 2.0
    assert open_store(f'{url}?lease=6&heartbeat=1', lease=60.0).heartbeat == 1.0
    with pytest.raises(ValueError, match='half'):
        open_store(f'{url}?heartbeat=4', lease=6.0)


@pytest.mark.parametrize('url', ['memory://?lease=soon', 'postgresql://h/x?retry='])
def test_an_option_that_is_no_number_is_named(url: str) -> None:
    with pytest.raises(ValueError, match='must be a number'):
        open_store(url)


@pytest.mark.parametrize('lease', [float('inf'), 0.0, -1.0])
def test_a_lease_must_end(lease: float) -> None:
    with pytest.raises(ValueError, match='lease'):
        open_store('memory://', lease=lease)


@pytest.mark.parametrize(
    ('driver', 'url', 'extra'),
    [
        ('asyncpg', 'postgresql://u:secret@h/x', 'postgres'),
        ('redis', 'redis://:secret@h/0', 'redis'),
    ],
)
def test_a_missing_driver_is_named_with_the_extra_that_brings_it(
    driver: str, url: str, extra: str
) -> None:
    program = (
        'import sys\n'
        'class Missing:\n'
        '    def find_spec(self, name, *_):\n'
        f'        if name == {driver!r}:\n'
        '            raise ModuleNotFoundError(name, name=name)\n'
        'sys.meta_path.insert(0, Missing())\n'
        'import graphkeep\n'
        'try:\n'
        f'    graphkeep.open_store({url!r})\n'
        'except graphkeep.MissingDriverError as e:\n'
        '    print(e.driver, e.extra, e)\n'
    )
    done = subprocess.run(
        [sys.executable, '-c', program], capture_output=True, text=True, check=False
    )
    assert done.stderr == ''
    assert done.stdout.startswith(f'{driver} {extra} ')
    assert f'graphkeep[{extra}]' in done.stdout


@pytest.mark.parametrize('url', ['redis://u:hunter#2@h:1/0', 'redis://u:hun/ter@h:1/0'])
def test_no_part_of_a_password_is_shown_that_was_not_encoded(url: str) -> None:
    with pytest.raises(ValueError, match='%23') as caught:
        open_store(url)
    assert 'hun' not in str(caught.value)
