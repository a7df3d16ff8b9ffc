"""Write transactions of an undisturbed run of N nodes: N + 1, as the database counts them."""

from __future__ import annotations

from benchmarks.bench import CLASSIC, NAMES, Bench
from benchmarks.builder_graphs import Ticks, ticking
from benchmarks.counting import transactions_of
from benchmarks.report import Line, exactly
from graphkeep import Store, open_store, persist

__all__ = ('measure',)


async def measure(bench: Bench) -> list[Line]:
    lines: list[Line] = []
    n = bench.n(100, 20)
    for name, url in bench.stores('sqlite', 'postgres', 'redis').items():
        count = transactions_of(bench, name, url)
        async with open_store(url) as store:
            kinds = {'builder graph': _builder}
            if CLASSIC:
                kinds = {'1.x graph': _classic, **kinds}
            for kind, run in kinds.items():
                # What is only done once (loading scripts) is not a part of a run.
                await run(store, f'first {kind}', 1)
                before = count()
                await run(store, kind, n)
                made = count() - before
                lines.append(
                    Line(
                        what=f'{NAMES[name]}, {kind}, {n} nodes',
                        measured=f'{made} transactions',
                        baseline=f'{n} + 1',
                        figure=made,
                        unit='',
                        target=exactly(n + 1),
                        raw={'measured': made, 'baseline': n + 1},
                    )
                )
    return lines


async def _classic(store: Store, run_id: str, n: int) -> None:
    from benchmarks.classic_graphs import Counter, Tick, counters

    kept = store.persistence(run_id)
    await counters.run(Tick(n), state=Counter(), deps=[], persistence=kept)


async def _builder(store: Store, run_id: str, n: int) -> None:
    kept = persist(ticking())
    await kept.run(state=Ticks(), inputs=n, deps=[], persistence=store.persistence(run_id))
