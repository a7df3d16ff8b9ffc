"""Waiting for a write to its end."""

from __future__ import annotations

import asyncio
import gc

import anyio
import pytest

from graphkeep.errors import StoreUnavailableError
from graphkeep.shielding import Ending, ending_of, to_its_end


class Write:
    """A write that ends when it is told to."""

    def __init__(self, error: Exception | None = None) -> None:
        self.may_end = asyncio.Event()
        self.ended = False
        self.error = error

    async def run(self) -> str:
        await self.may_end.wait()
        self.ended = True
        if self.error is not None:
            raise self.error
        return 'written'


async def turns(count: int = 3) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


def test_an_ending_raises_its_cancellation_first() -> None:
    assert Ending(value=1).unwrap() == 1
    assert Ending[None]().unwrap() is None
    with pytest.raises(KeyError):
        Ending[None](error=KeyError('a')).unwrap()
    with pytest.raises(asyncio.CancelledError):
        Ending(value=1, cancelled=asyncio.CancelledError()).unwrap()
    with pytest.raises(asyncio.CancelledError):
        Ending[None](error=KeyError('a'), cancelled=asyncio.CancelledError()).unwrap()


async def test_undisturbed_it_gives_the_value() -> None:
    write = Write()
    write.may_end.set()
    ending = await to_its_end(write.run(), bound=1.0)
    assert (ending.value, ending.error, ending.cancelled) == ('written', None, None)


async def test_an_error_is_given_not_raised() -> None:
    write = Write(error=OSError('full'))
    write.may_end.set()
    ending = await to_its_end(write.run(), bound=1.0)
    assert ending.error is write.error
    assert (ending.value, ending.cancelled) == (None, None)


@pytest.mark.parametrize('cancels', [1, 2, 5])
async def test_however_often_cancelled_it_waits(cancels: int) -> None:
    write = Write()
    waiter = asyncio.create_task(to_its_end(write.run(), bound=60.0))
    for _ in range(cancels):
        await turns()
        waiter.cancel()
    await turns()
    assert not waiter.done()
    write.may_end.set()
    ending = await waiter
    assert write.ended
    assert (ending.value, ending.error) == ('written', None)
    assert isinstance(ending.cancelled, asyncio.CancelledError)


async def test_a_waiter_that_is_cancelled_before_it_began_starts_no_write() -> None:
    write = Write()
    coroutine = write.run()
    waiter = asyncio.create_task(to_its_end(coroutine, bound=60.0))
    waiter.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiter
    coroutine.close()
    assert not write.ended


async def test_a_write_that_fails_after_the_cancel_gives_both() -> None:
    write = Write(error=OSError('full'))
    waiter = asyncio.create_task(to_its_end(write.run(), bound=60.0))
    await turns()
    waiter.cancel()
    await turns()
    write.may_end.set()
    ending = await waiter
    assert ending.error is write.error
    assert ending.cancelled is not None
    with pytest.raises(asyncio.CancelledError):
        ending.unwrap()


async def test_the_message_of_the_cancellation_is_kept() -> None:
    write = Write()
    waiter = asyncio.create_task(to_its_end(write.run(), bound=60.0))
    await turns()
    waiter.cancel('deploy')
    await turns()
    write.may_end.set()
    ending = await waiter
    assert ending.cancelled is not None
    assert ending.cancelled.args == ('deploy',)


async def test_a_timeout_around_it_strikes_when_the_write_has_ended() -> None:
    write = Write()

    async def commit() -> None:
        (await to_its_end(write.run(), bound=60.0)).unwrap()

    loop = asyncio.get_running_loop()
    loop.call_later(0.02, write.may_end.set)
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.001):
            await commit()
    assert write.ended


async def test_a_cancelled_anyio_scope_strikes_when_the_write_has_ended() -> None:
    write = Write()
    endings: list[Ending[str]] = []
    loop = asyncio.get_running_loop()
    loop.call_later(0.02, write.may_end.set)
    with anyio.move_on_after(0.001) as scope:
        endings.append(await to_its_end(write.run(), bound=60.0))
        endings[0].unwrap()
    assert scope.cancelled_caught
    assert write.ended
    assert endings[0].value == 'written'


async def test_beyond_the_bound_it_leaves_and_the_write_goes_on() -> None:
    write = Write()
    waiter = asyncio.create_task(to_its_end(write.run(), bound=0.02))
    await turns()
    waiter.cancel()
    ending = await waiter
    assert isinstance(ending.error, StoreUnavailableError)
    assert '0.02 s' in str(ending.error)
    assert isinstance(ending.cancelled, asyncio.CancelledError)
    assert not write.ended
    # Nobody has a reference to the write's task any more.
    gc.collect()
    write.may_end.set()
    await turns()
    assert write.ended


async def test_without_a_cancel_there_is_no_bound() -> None:
    write = Write()
    waiter = asyncio.create_task(to_its_end(write.run(), bound=0.0))
    await asyncio.sleep(0.02)
    assert not waiter.done()
    write.may_end.set()
    assert (await waiter).value == 'written'


async def test_a_future_that_was_cancelled_itself_is_an_error() -> None:
    future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    waiter = asyncio.create_task(ending_of(future, bound=1.0))
    await turns()
    future.cancel()
    ending = await waiter
    assert isinstance(ending.error, asyncio.CancelledError)
    assert ending.cancelled is None


def test_a_loop_that_goes_down_ends_the_wait() -> None:
    endings: list[Ending[str]] = []

    async def commit() -> None:
        endings.append(await to_its_end(Write().run(), bound=0.05))

    async def main() -> None:
        asyncio.get_running_loop().create_task(commit(), name='left behind')
        await turns()

    # `asyncio.run` cancels what is left, and waits for it.
    asyncio.run(main())
    assert len(endings) == 1
    assert endings[0].cancelled is not None
