"""A process of its own, in which memory is counted. Prints one JSON object.

python -m benchmarks.memory_child commit|resume|open URL COUNT SIZE
"""

from __future__ import annotations

import asyncio
import gc
import json
import sys
import tracemalloc
from contextlib import AsyncExitStack

from benchmarks.classic_graphs import Chat, Say, chats
from graphkeep import open_store

_TEXT = 1_000
_RUN = 'big'


def state_of(size: int) -> Chat:
    """A state whose JSON has about so many bytes."""
    return Chat([f'{number:_<{_TEXT}}' for number in range(size // (_TEXT + 3))])


async def commit(url: str, count: int, size: int) -> dict[str, int]:
    """Commit steps of one large run; what the peak is above the state as it was before."""
    state = state_of(size)
    async with open_store(url) as store:
        # What is only made once is not a part of a run.
        await chats.run(Say(1), state=Chat(), persistence=store.persistence('first'))
        before = _now()
        kept = store.persistence(_RUN)
        async with chats.iter(Say(count + 1), state=state, persistence=kept) as run:
            for _ in range(count):
                await run.next()
            peak = tracemalloc.get_traced_memory()[1]
        document = len((await store.document(_RUN)).to_json())
    return {'peak': peak - before, 'document': document}


async def resume(url: str, count: int, size: int) -> dict[str, int]:
    """Resume it; what the peak is above the state that comes out."""
    async with open_store(url) as store:
        await chats.run(Say(1), state=Chat(), persistence=store.persistence('second'))
        before = _now()
        kept = store.persistence(_RUN)
        async with chats.iter_from_persistence(kept) as run:
            await run.next()
            peak = tracemalloc.get_traced_memory()[1]
            own = -_now()
            run.state.messages.clear()
            own += _now()
        document = len((await store.document(_RUN)).to_json())
    return {'peak': peak - before + own, 'document': document}


async def hold(url: str, count: int, size: int) -> dict[str, int]:
    """Hold many runs open, each after a step; what they hold above their states."""
    async with open_store(url) as store, AsyncExitStack() as stack:
        await chats.run(Say(1), state=Chat(), persistence=store.persistence('first'))
        states = [state_of(size) for _ in range(count)]
        before = _now()
        for number, state in enumerate(states):
            kept = store.persistence(f'run-{number}')
            run = await stack.enter_async_context(chats.iter(Say(3), state=state, persistence=kept))
            await run.next()
        held = _now() - before
        document = len((await store.document('run-0')).to_json())
    return {'peak': held, 'document': document * count}


def _now() -> int:
    gc.collect()
    tracemalloc.reset_peak()
    return tracemalloc.get_traced_memory()[0]


def main() -> None:
    what, url, count, size = sys.argv[1:]
    tracemalloc.start()
    measured = {'commit': commit, 'resume': resume, 'open': hold}[what]
    print(json.dumps(asyncio.run(measured(url, int(count), int(size)))))


if __name__ == '__main__':
    main()
