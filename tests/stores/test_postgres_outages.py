"""A Postgres store whose server goes away, or whose reply is lost on the way."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from urllib.parse import urlsplit

import asyncpg
import pytest

from graphkeep import StoreUnavailableError
from graphkeep.stores.postgres import PostgresStore
from graphkeep.testing import Worker, eventually
from tests.servers import PostgresServer
from tests.stores.postgres_tool import at, no_connection, run_sql

pytestmark = [pytest.mark.postgres, pytest.mark.usefixtures('collected')]


# --- a server that goes away ----------------------------------------------------------------------


@pytest.mark.parametrize('way', ['stop', 'kill'])
async def test_a_run_goes_on_when_the_server_comes_back(
    make_postgres: Callable[..., PostgresServer], way: str
) -> None:
    server = make_postgres()
    url = server.create_database()
    async with PostgresStore(url, retry=60) as store:
        workers = [Worker(store, f'run-{number}') for number in range(10)]
        for worker in workers:
            await worker.create()
        for _ in range(3):
            await asyncio.gather(*(worker.step() for worker in workers))
        getattr(server, way)()
        steps = asyncio.gather(*(worker.step() for worker in workers))
        read = asyncio.ensure_future(store.run('run-1'))
        await asyncio.wait((read,), timeout=0.2)
        await asyncio.to_thread(server.start)
        await steps
        await read
        for worker in workers:
            await worker.step()
            await worker.check()
    await eventually(no_connection(url), what='the connections end')


async def test_a_commit_that_found_no_server_may_be_written_later(
    make_postgres: Callable[..., PostgresServer],
) -> None:
    server = make_postgres()
    url = server.create_database()
    async with PostgresStore(url, retry=0.3) as store:
        worker = Worker(store)
        await worker.create()
        await worker.step()
        server.stop()
        commit = worker.commit()
        ending = await store.append(commit)
        assert isinstance(ending.error, StoreUnavailableError)
        assert '127.0.0.1' in str(ending.error)
        with pytest.raises(StoreUnavailableError):
            await store.document('run-1')
        with pytest.raises(StoreUnavailableError):
            await store.renew([worker.claim])
        server.start()
        await worker.append(commit)
        await worker.step()
        await worker.check()


async def test_connections_that_the_server_ended_are_replaced(fresh_postgres_url: str) -> None:
    async with PostgresStore(fresh_postgres_url) as store:
        worker = Worker(store)
        await worker.create()
        for _ in range(3):
            await worker.step()
            await run_sql(
                fresh_postgres_url,
                'SELECT pg_terminate_backend(pid) FROM pg_stat_activity '
                "WHERE datname = current_database() AND application_name = 'graphkeep'",
            )
        await worker.step()
        await worker.check()


async def test_a_statement_without_an_answer_counts_as_lost(fresh_postgres_url: str) -> None:
    other = await asyncpg.connect(fresh_postgres_url)
    async with PostgresStore(fresh_postgres_url, command_timeout=0.2, retry=0) as store:
        worker = Worker(store)
        await worker.create()
        await worker.step()
        async with other.transaction():
            await other.execute('SELECT FROM graphkeep_runs FOR UPDATE')
            commit = worker.commit()
            ending = await store.append(commit)
            assert isinstance(ending.error, StoreUnavailableError)
            assert 'did not answer in time' in str(ending.error)
            # Others are not held up by it.
            await Worker(store, 'run-2').create()
        await worker.append(commit)
        await worker.step()
        await worker.check()
    await other.close()


# --- a reply that is lost on the way --------------------------------------------------------------


class Wire:
    """Stands between a store and its server, and loses a reply when it is told to."""

    def __init__(self, url: str) -> None:
        self._url = url
        self.url = ''
        self.loses_next = False
        """Let the next statement be done, and cut the wire instead of giving back its row."""
        self.lost = 0

    @asynccontextmanager
    async def listening(self) -> AsyncIterator[Wire]:
        async with await asyncio.start_server(self._connected, '127.0.0.1', 0) as server:
            self.url = at(self._url, f'127.0.0.1:{server.sockets[0].getsockname()[1]}')
            yield self

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        parts = urlsplit(self._url)
        there, away = await asyncio.open_connection(parts.hostname, parts.port)
        sides = [
            asyncio.ensure_future(self._carry(reader, away, replies=False)),
            asyncio.ensure_future(self._carry(there, writer, replies=True)),
        ]
        await asyncio.wait(sides, return_when=asyncio.FIRST_COMPLETED)
        for side in sides:
            side.cancel()
        await asyncio.wait(sides)
        for stream in (writer, away):
            stream.close()
            await asyncio.wait((asyncio.ensure_future(stream.wait_closed()),))

    async def _carry(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, *, replies: bool
    ) -> None:
        while data := await reader.read(1 << 16):
            # BindComplete, and a row.
            if replies and self.loses_next and data.startswith(b'2\0\0\0\4D'):
                self.loses_next = False
                self.lost += 1
                return
            writer.write(data)
            await writer.drain()


@pytest.mark.parametrize('call', ['create', 'claim', 'append', 'end'])
async def test_a_write_whose_reply_was_lost_is_recognised(
    fresh_postgres_url: str, call: str
) -> None:
    async with Wire(fresh_postgres_url).listening() as wire, PostgresStore(wire.url) as store:
        for number in range(2):
            # The first time every statement is prepared; then each is one message and one reply.
            worker = Worker(store, f'run-{number}')
            wire.loses_next = call == 'create' and number == 1
            created = await worker.create(claimed=False)
            wire.loses_next = call == 'claim' and number == 1
            try:
                claimed = await worker.take(expected_seq=0, nonce=f'claim-{number}')
            except StoreUnavailableError:
                # The public way to claim tries again by itself, with the same nonce.
                claimed = await worker.take(expected_seq=0, nonce=f'claim-{number}')
            wire.loses_next = call == 'append' and number == 1
            await worker.step()
            await worker.step()
            wire.loses_next = call == 'end' and number == 1
            await worker.step(status='done', event='end', output='the end')
            await worker.check()
            run = await store.run(worker.run_id)
            assert (run.epoch, run.status, run.owner) == (created.epoch + 1, 'done', None)
            assert claimed.claim.epoch == run.epoch
        assert wire.lost == 1
