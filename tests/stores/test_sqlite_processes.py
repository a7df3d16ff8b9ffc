"""A SQLite store and its threads, other processes, and the limits of a process."""

from __future__ import annotations

import asyncio
import gc
import os
import sqlite3
import threading
import time
import weakref
from contextlib import closing
from pathlib import Path

import pytest

from graphkeep import StoreClosedError, StoreWriteError
from graphkeep.stores.sqlite import SQLiteStore
from graphkeep.testing import Worker, eventually
from tests.stores.sqlite_children import child, output


def files(path: Path) -> list[str]:
    return [file.name for file in path.parent.iterdir()]


def threads() -> list[str]:
    return [thread.name for thread in threading.enumerate() if 'sqlite' in thread.name]


async def no_thread_left() -> bool:
    gc.collect()
    return not threads()


def integrity(path: Path) -> str:
    with closing(sqlite3.connect(path)) as connection:
        return connection.execute('PRAGMA integrity_check').fetchone()[0]


# --- threads --------------------------------------------------------------------------------------


async def test_close_ends_the_threads_and_leaves_one_file(path: Path) -> None:
    store = SQLiteStore(path)
    assert not threads()
    async with store:
        await Worker(store).create()
        assert sorted(threads()) == ['graphkeep-sqlite-reader', 'graphkeep-sqlite-writer']
    assert not threads()
    assert files(path) == ['runs.db']
    with pytest.raises(StoreClosedError):
        await store.runs()


async def test_a_store_that_nobody_closes_ends_its_threads_when_it_is_collected(
    path: Path,
) -> None:
    async def use() -> weakref.ref[SQLiteStore]:
        store = SQLiteStore(path)
        await Worker(store).create()
        assert threads()
        return weakref.ref(store)

    store = await use()
    await eventually(no_thread_left, what='the threads end')
    assert store() is None
    assert files(path) == ['runs.db']


def test_a_store_outlives_its_loop_and_no_longer(path: Path) -> None:
    async def use(store: SQLiteStore) -> None:
        await Worker(store).create()

    store = SQLiteStore(path)
    asyncio.run(use(store))
    assert threads()
    with pytest.raises(StoreClosedError, match='another event loop'):
        asyncio.run(use(store))
    asyncio.run(store.close())
    assert not threads()


def test_what_was_handed_in_is_written_when_the_loop_dies(path: Path) -> None:
    async def use(store: SQLiteStore) -> None:
        worker = Worker(store)
        await worker.create()
        # Handed to the thread, which is busy with something that outlasts the loop.
        busy = asyncio.ensure_future(store._write(lambda _: time.sleep(0.2)))
        commit = asyncio.ensure_future(store._append([worker.commit()]))
        await asyncio.sleep(0)
        busy.cancel()
        commit.cancel()

    store = SQLiteStore(path)
    asyncio.run(use(store))

    async def seq() -> int:
        async with SQLiteStore(path) as other:
            return (await other.run('run-1')).seq

    asyncio.run(store.close())
    assert asyncio.run(seq()) == 1


async def test_a_caller_that_is_cancelled_withdraws_nothing(path: Path) -> None:
    async with SQLiteStore(path) as store:
        worker = Worker(store)
        await worker.create()
        commit = worker.commit()
        blocked = threading.Event()
        block = asyncio.create_task(store._write(lambda _: blocked.wait(10)))
        await asyncio.sleep(0)
        writing = asyncio.create_task(store.append(commit))
        await asyncio.sleep(0.01)
        writing.cancel()
        blocked.set()
        ending = await writing
        assert ending.error is None
        assert ending.cancelled is not None
        await block
        worker.written(commit)
        await worker.check()


async def test_a_long_reading_holds_up_no_commit(path: Path) -> None:
    async with SQLiteStore(path) as store:
        worker = Worker(store)
        await worker.create()
        blocked = threading.Event()
        reading = asyncio.create_task(store._look(lambda _: blocked.wait(10)))
        await worker.step()
        assert not reading.done()
        blocked.set()
        assert await reading
        await worker.check()


@pytest.mark.parametrize('turns', [0, 1, 2, 5])
async def test_an_opening_that_is_cancelled_leaves_nothing(path: Path, turns: int) -> None:
    store = SQLiteStore(path)
    opening = asyncio.create_task(store.open())
    for _ in range(turns):
        await asyncio.sleep(0)
    opening.cancel()
    with pytest.raises(asyncio.CancelledError):
        await opening
    await eventually(no_thread_left, what='the threads end')
    async with store:
        await Worker(store).create()


async def test_an_opening_that_is_cancelled_while_it_waits_for_a_lock(path: Path) -> None:
    with closing(sqlite3.connect(path, isolation_level=None)) as tool:
        tool.execute('BEGIN EXCLUSIVE')
        store = SQLiteStore(path)
        opening = asyncio.create_task(store.open())
        await eventually(_has_threads, what='the thread starts')
        opening.cancel()
        with pytest.raises(asyncio.CancelledError):
            await opening
        await eventually(no_thread_left, what='the thread ends')
        tool.execute('ROLLBACK')
    async with store:
        await Worker(store).create()


async def _has_threads() -> bool:
    return bool(threads())


async def test_an_opening_that_fails_can_be_tried_again(tmp_path: Path) -> None:
    store = SQLiteStore(tmp_path / 'missing' / 'runs.db')
    with pytest.raises(StoreWriteError):
        await store.open()
    await eventually(no_thread_left, what='the thread ends')
    store.path.parent.mkdir()
    async with store:
        await Worker(store).create()


@pytest.mark.parametrize(
    'how', ['pass', 'raise SystemExit', 'del store', 'asyncio.get_running_loop().stop()']
)
def test_the_interpreter_ends_without_close(path: Path, how: str) -> None:
    code = f"""
        async def main():
            global store
            store = SQLiteStore(path)
            claim = await start(store)
            await step(store, claim, 1)
            print('written', flush=True)
            {how}
        try:
            asyncio.run(main())
        except RuntimeError as e:
            assert 'stopped before' in str(e)
        """
    started = time.monotonic()
    assert output(child(code, path)) == ['written']
    assert time.monotonic() - started < 20
    # The thread has closed the file in order.
    assert files(path) == ['runs.db']


def test_the_interpreter_writes_what_was_handed_in_before_it_ends(path: Path) -> None:
    code = """
        import time
        async def main():
            global store
            store = SQLiteStore(path)
            claim = await start(store)
            asyncio.ensure_future(store._write(lambda _: time.sleep(0.3)))
            asyncio.ensure_future(store._append([commit(claim, 1)]))
            await asyncio.sleep(0)
        asyncio.run(main())
        """
    assert output(child(code, path)) == []
    with closing(sqlite3.connect(path)) as connection:
        assert connection.execute('SELECT seq FROM graphkeep_runs').fetchall() == [(1,)]


# --- processes ------------------------------------------------------------------------------------


@pytest.mark.skipif(not hasattr(os, 'fork'), reason='needs fork()')
def test_a_store_inherited_through_fork_refuses_and_harms_nothing(path: Path) -> None:
    code = """
        import atexit, gc, warnings
        warnings.simplefilter('ignore')
        async def main():
            store = SQLiteStore(path)
            claim = await start(store)
            for seq in (1, 3, 5):
                # Nobody releases a lock that was held at the moment of the fork.
                store._writer._lock.acquire()
                pid = os.fork()
                if pid:
                    store._writer._lock.release()
                if pid == 0:
                    for call in (store.runs(), step(store, claim, seq)):
                        try:
                            await call
                        except StoreClosedError as e:
                            print(e, flush=True)
                    await store.close()
                    del call, store
                    gc.collect()
                    # All that the end of the interpreter does, but for closing the loop: that
                    # would change what the parent's loop listens to.
                    atexit._run_exitfuncs()
                    os._exit(0)
                await step(store, claim, seq)
                assert os.waitpid(pid, 0)[1] == 0
                await step(store, claim, seq + 1)
            print((await store.run('run-1')).seq)
            await store.close()
        asyncio.run(main())
        """
    printed = output(child(code, path))
    assert len(printed) == 7
    assert all('fork()' in line for line in printed[:6])
    assert printed[6] == '6'
    assert integrity(path) == 'ok'
    assert files(path) == ['runs.db']


def test_processes_that_open_a_new_file_at_once_all_succeed(path: Path) -> None:
    code = """
        async def main():
            async with SQLiteStore(path) as store:
                claim = await start(store, sys.argv[2])
                for seq in range(1, 6):
                    await step(store, claim, seq)
        print('ready', flush=True)
        sys.stdin.readline()
        asyncio.run(main())
        """
    processes = [child(code, path, f'run-{number}') for number in range(12)]
    for process in processes:
        assert process.stdout is not None
        assert process.stdout.readline() == 'ready\n'
    for process in processes:
        assert process.stdin is not None
        process.stdin.write('go\n')
        process.stdin.flush()
    for process in processes:
        assert output(process) == []
    with closing(sqlite3.connect(path)) as connection:
        found = connection.execute('SELECT run_id, seq FROM graphkeep_runs').fetchall()
        versions = connection.execute('SELECT * FROM graphkeep_meta').fetchall()
    assert sorted(found) == sorted((f'run-{number}', 5) for number in range(12))
    assert versions == [('schema_version', '3')]
    assert integrity(path) == 'ok'


async def test_a_process_that_dies_in_a_transaction_leaves_nothing_of_it(path: Path) -> None:
    code = """
        async def main():
            store = SQLiteStore(path)
            await start(store)
            def die(writer):
                with writer.transaction() as connection:
                    connection.execute("DELETE FROM graphkeep_snapshots")
                    connection.execute("UPDATE graphkeep_runs SET seq = 7")
                    os._exit(0)
            await store._write(die)
        asyncio.run(main())
        """
    assert output(child(code, path)) == []
    async with SQLiteStore(path) as store:
        assert (await store.run('run-1')).seq == 0
        assert [snapshot.seq for snapshot in await store.snapshots('run-1')] == [0]


def test_a_limit_on_the_file_size_loses_nothing_that_was_acknowledged(path: Path) -> None:
    pytest.importorskip('resource')
    code = """
        import resource
        async def main():
            store = SQLiteStore(path)
            claim = await start(store)
            resource.setrlimit(resource.RLIMIT_FSIZE, (800_000, 800_000))
            for seq in range(1, 1000):
                ending = await store.append(commit(claim, seq, b'x' * 20_000))
                if ending.error is not None:
                    break
                print(seq, flush=True)
            print(type(ending.error).__name__, ending.error, flush=True)
            assert (await store.run('run-1')).seq == seq - 1
            os._exit(0)
        asyncio.run(main())
        """
    *acknowledged, last = output(child(code, path))
    assert last.startswith('StoreWriteError')
    assert str(path) in last
    assert len(acknowledged) > 3

    async def check() -> None:
        async with SQLiteStore(path) as store:
            run = await store.run('run-1')
            assert run.seq == int(acknowledged[-1])
            seqs = [snapshot.seq for snapshot in await store.snapshots('run-1')]
            assert seqs == list(range(run.seq + 1))
            assert (await store.document('run-1')).to_json()

    asyncio.run(check())
    assert integrity(path) == 'ok'


def test_a_limit_on_the_file_size_refuses_only_what_does_not_fit(path: Path) -> None:
    pytest.importorskip('resource')
    code = """
        import resource
        async def main():
            store = SQLiteStore(path)
            claims = [await start(store, name) for name in ('small', 'large', 'last')]
            resource.setrlimit(resource.RLIMIT_FSIZE, (800_000, 800_000))
            # More than SQLite keeps in memory: it fails in the middle, and takes all back.
            texts = (b'', b'x' * 9_000_000, b'')
            endings = await asyncio.gather(
                *(store.append(commit(c, 1, text)) for c, text in zip(claims, texts))
            )
            print([type(ending.error).__name__ for ending in endings])
            print([(await store.run(claim.run_id)).seq for claim in claims], flush=True)
            os._exit(0)
        asyncio.run(main())
        """
    assert output(child(code, path)) == [
        "['NoneType', 'StoreWriteError', 'NoneType']",
        '[1, 0, 1]',
    ]
    assert integrity(path) == 'ok'


def test_too_many_open_files_is_worth_another_try(path: Path) -> None:
    pytest.importorskip('resource')
    code = """
        import resource
        async def main():
            store = SQLiteStore(path, retry=10)
            used = len(os.listdir('/dev/fd'))
            resource.setrlimit(resource.RLIMIT_NOFILE, (used + 1, 4096))
            asyncio.get_running_loop().call_later(
                0.3, resource.setrlimit, resource.RLIMIT_NOFILE, (4096, 4096)
            )
            async with store:
                await start(store)
            print('written')
        asyncio.run(main())
        """
    assert output(child(code, path)) == ['written']
