"""The bound on how long a Redis command takes."""

from __future__ import annotations

import asyncio

import pytest

from graphkeep.stores.redis_deadlines import Deadlines


async def test_what_ends_in_time_is_left_alone() -> None:
    deadlines = Deadlines(30)
    with deadlines.one():
        await asyncio.sleep(0)
    with pytest.raises(ZeroDivisionError), deadlines.one():
        raise ZeroDivisionError
    deadlines.close()


async def test_what_takes_too_long_is_a_timeout() -> None:
    deadlines = Deadlines(0.05)
    for _ in range(3):
        with pytest.raises(TimeoutError, match='in time'), deadlines.one():
            await asyncio.sleep(60)
    # The task goes on as if nothing had been.
    task = asyncio.current_task()
    assert task is not None
    assert task.cancelling() == 0
    await asyncio.sleep(0)


async def test_only_the_late_ones_are_stopped() -> None:
    deadlines = Deadlines(0.4)

    async def run(seconds: float) -> str:
        try:
            with deadlines.one():
                await asyncio.sleep(seconds)
        except TimeoutError:
            return 'late'
        return 'done'

    assert await asyncio.gather(run(0), run(60), run(0.01), run(60)) == [
        'done',
        'late',
        'done',
        'late',
    ]


async def test_a_cancellation_by_somebody_else_goes_on() -> None:
    deadlines = Deadlines(30)
    with pytest.raises(TimeoutError) as caught:
        async with asyncio.timeout(0.01):
            with deadlines.one():
                await asyncio.sleep(60)
    assert 'in time' not in str(caught.value)
    deadlines.close()

    async def run() -> None:
        with Deadlines(0.01).one():
            try:
                await asyncio.sleep(60)
            except asyncio.CancelledError:
                # Cancelled from outside as well, while it was being stopped.
                task.cancel()
                raise

    task = asyncio.ensure_future(run())
    await asyncio.wait((task,))
    assert task.cancelled()


@pytest.mark.parametrize('fails', [False, True])
async def test_a_cancellation_that_was_swallowed_goes_on(fails: bool) -> None:
    deadlines = Deadlines(30)
    began = asyncio.Event()
    went_on = False

    async def run() -> None:
        nonlocal went_on
        with deadlines.one():
            try:
                began.set()
                await asyncio.sleep(60)
            except asyncio.CancelledError:
                # As `asyncio.wait_for` of Python 3.11, when what it waits for has just ended.
                if fails:
                    raise ConnectionError from None
        went_on = True

    task = asyncio.ensure_future(run())
    await began.wait()
    task.cancel()
    await asyncio.wait((task,))
    assert (task.cancelled(), went_on) == (True, False)
    deadlines.close()


async def test_a_cancellation_from_before_does_not_count() -> None:
    deadlines = Deadlines(30)
    task = asyncio.current_task()
    assert task is not None
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asyncio.sleep(60)
    # What tidies up after it still gets its reply.
    with deadlines.one():
        await asyncio.sleep(0)
    task.uncancel()
    deadlines.close()
