"""A process in which runs wait for answers.

python -m benchmarks.waiting_child URL COUNT

Prints a line when each of them has been started, and, when all have ended, one JSON object: when
each went on, by the clock that all processes of a machine share.
"""

from __future__ import annotations

import asyncio
import json
import sys

from benchmarks.builder_graphs import Moments, Ticks, asking
from graphkeep import open_store, persist

_RUN = 'waits-{}'


async def wait(url: str, count: int) -> dict[str, float]:
    """Run them until they have been answered."""
    kept = persist(asking())
    went_on: dict[str, Moments] = {_RUN.format(number): [] for number in range(count)}
    async with open_store(url) as store, asyncio.TaskGroup() as group:
        for number, (run_id, moments) in enumerate(went_on.items()):
            handle = store.persistence(run_id)
            run = kept.run(
                state=Ticks(count=number),
                inputs=1,
                deps=moments,
                persistence=handle,
                on_pause='wait',
            )
            group.create_task(run)
        print('started', flush=True)
    return {run_id: moment for run_id, [moment] in went_on.items()}


def main() -> None:
    url, count = sys.argv[1:]
    print(json.dumps(asyncio.run(wait(url, int(count)))))


if __name__ == '__main__':
    main()
