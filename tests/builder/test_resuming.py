"""Resuming builder graphs: after a failure or a cancel, elsewhere, and after a deploy."""

from __future__ import annotations

import asyncio
import importlib.util
import sys
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from anyio import create_task_group, move_on_after
from pydantic_graph import (
    BaseNode,
    End,
    GraphBuilder,
    GraphRunContext,
    ReduceFirstValue,
    ReducerContext,
    StepContext,
    reduce_list_append,
    reduce_list_extend,
    reduce_sum,
)

import graphkeep
from graphkeep import GraphChangedError, Store, current_task, once
from tests.classic.conftest import MakeStore, every_store

from .fixed import Ledger


@dataclass
class Outside:
    """The dependencies: what happens to the steps, and how often they ran."""

    ran: Counter[str] = field(default_factory=Counter)
    fails: set[str] = field(default_factory=set)
    hangs: set[str] = field(default_factory=set)
    hung: asyncio.Event = field(default_factory=asyncio.Event)

    async def meet(self, name: str) -> None:
        self.ran[name] += 1
        if name in self.fails:
            for _ in range(20):  # what is beside it ends before
                await asyncio.sleep(0)
            raise ValueError(f'{name} fails')
        if name in self.hangs:
            self.hung.set()
            await asyncio.Event().wait()


Step = StepContext[Ledger, Outside, Any]


def add_step(g: Any, name: str, takes: Any = int, gives: Any = int, value: Any = None) -> Any:
    async def run(ctx: StepContext[Ledger, Outside, Any]) -> Any:
        await ctx.deps.meet(name)
        ctx.state.mark(name)
        return ctx.inputs if value is None else value(ctx.inputs)

    run.__annotations__.update(ctx=StepContext[Ledger, Outside, takes])
    run.__annotations__['return'] = gives
    return g.step(run, node_id=name)


def new_builder(output_type: Any = list[int]) -> Any:
    return GraphBuilder(
        name='harvest',
        state_type=Ledger,
        deps_type=Outside,
        input_type=int,
        output_type=output_type,
        auto_instrument=False,
    )


def harvest(
    *,
    work: str = 'work',
    aside: str = 'aside',
    join: str = 'all',
    reducer: Any = reduce_list_append,
    takes: Any = int,
    between: bool = False,
    outer: str = 'outer',
    parent: str | None = None,
    last: str = 'last',
    removed: bool = False,
) -> Any:
    """Numbers, mapped; each is broadcast to `work` and `aside`; one join of all, and `last`.

    The options are what a deploy may change.
    """
    g = new_builder()
    numbers = add_step(g, 'numbers', gives=list[int], value=lambda n: list(range(n)))
    item = add_step(g, 'item')
    one = add_step(g, work, takes=takes)
    two = add_step(g, aside, value=lambda n: n + 10)
    end = add_step(g, last, takes=list[int], gives=list[int])
    all_ = g.join(reducer, initial_factory=list[int], node_id=join, parent_fork_id=parent)
    g.add(
        g.edge_from(g.start_node).to(numbers),
        g.edge_from(numbers).map(fork_id=outer).to(item),
        g.edge_from(item).to(one, two, fork_id='inner'),
        g.edge_from(two).to(all_),
        g.edge_from(all_).to(end),
        g.edge_from(end).to(g.end_node),
    )
    if between:
        more = add_step(g, 'more')
        g.add(g.edge_from(one).to(more), g.edge_from(more).to(all_))
    else:
        g.add(g.edge_from(one).to(all_))
    return g.build()


UNDISTURBED = [0, 1, 2, 10, 11, 12]
ENDS = {'numbers': 1, 'item': 3, 'work': 3, 'aside': 3, 'last': 1}


async def begin(store: Store, run_id: str, kept: Any, outside: Outside) -> None:
    """Start the run and let it fail."""
    with pytest.raises(ValueError, match='fails'):
        await kept.run(
            state=Ledger(), inputs=3, deps=outside, persistence=store.persistence(run_id)
        )


async def state_of(store: Store, run_id: str, kept: Any) -> Ledger:
    return kept._plan.state.decode((await store.document(run_id)).state)


async def rows(store: Store, run_id: str) -> Any:
    """Everything that is stored of the run."""
    return await store.run(run_id), await store.snapshots(run_id)


# --- where and why it stopped ---------------------------------------------------------------------


@every_store
@pytest.mark.parametrize('step', ['numbers', 'item', 'work', 'aside', 'last'])
async def test_a_failed_run_goes_on_in_another_store_object(
    step: str, make_store: MakeStore, run_id: str
) -> None:
    outside = Outside(fails={step})
    await begin(make_store(), run_id, graphkeep.persist(harvest()), outside)
    failed, outside.fails = outside.ran.copy(), set()
    store, kept = make_store(), graphkeep.persist(harvest())
    done = await state_of(store, run_id, kept)
    output = await graphkeep.resume(kept, store.persistence(run_id), deps=outside)
    assert sorted(output) == UNDISTURBED
    state = await state_of(store, run_id, kept)
    assert state.ends == ENDS
    for name, times in ENDS.items():
        # What was committed did not run again; what was not, ran once more at most.
        assert outside.ran[name] - failed[name] == times - done.ends.get(name, 0)
    run, snapshots = await rows(store, run_id)
    assert run.status == 'done'
    assert [s.seq for s in snapshots] == list(range(run.seq + 1))
    assert [s.event for s in snapshots].count('error') == 1


async def test_failing_again_and_again(store: Store, run_id: str) -> None:
    kept, outside = graphkeep.persist(harvest()), Outside(fails={'numbers'})
    await begin(store, run_id, kept, outside)
    for step in ('item', 'work', 'last'):
        outside.fails = {step}
        with pytest.raises(ValueError, match=f'{step} fails'):
            await kept.resume(store.persistence(run_id), deps=outside)
        run = await store.run(run_id)
        assert run.status == 'failed'
        assert run.error is not None
        assert run.error['node'] == step
    outside.fails = set()
    assert sorted(await kept.resume(store.persistence(run_id), deps=outside)) == UNDISTURBED
    assert (await state_of(store, run_id, kept)).ends == ENDS


async def by_task(coro: Awaitable[Any], outside: Outside) -> None:
    task = asyncio.ensure_future(coro)
    await outside.hung.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def by_timeout(coro: Awaitable[Any], outside: Outside) -> None:
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.3):
            await coro


async def by_scope(coro: Awaitable[Any], outside: Outside) -> None:
    with move_on_after(0.3) as scope:
        await coro
    assert scope.cancelled_caught


async def by_group(coro: Awaitable[Any], outside: Outside) -> None:
    async def run() -> None:
        await coro

    async with create_task_group() as group:
        group.start_soon(run)
        await outside.hung.wait()
        group.cancel_scope.cancel()


@pytest.mark.parametrize('cancel', [by_task, by_timeout, by_scope, by_group])
@pytest.mark.parametrize('step', ['numbers', 'work', 'last'])
async def test_a_run_that_was_cancelled_is_ready_and_goes_on(
    step: str, cancel: Callable[..., Awaitable[None]], make_store: MakeStore, run_id: str
) -> None:
    store, kept, outside = make_store(), graphkeep.persist(harvest()), Outside(hangs={step})
    state = Ledger()
    running = kept.run(state=state, inputs=3, deps=outside, persistence=store.persistence(run_id))
    await cancel(running, outside)
    run = await store.run(run_id)
    assert (run.status, run.owner, run.error) == ('ready', None, None)
    assert state == await state_of(store, run_id, kept)
    outside.hangs = set()
    output = await kept.resume(make_store().persistence(run_id), deps=outside)
    assert sorted(output) == UNDISTURBED
    assert (await state_of(store, run_id, kept)).ends == ENDS


async def test_a_done_run_gives_its_stored_output(store: Store, run_id: str) -> None:
    kept, outside = graphkeep.persist(harvest()), Outside()
    first = await kept.run(
        state=Ledger(), inputs=3, deps=outside, persistence=store.persistence(run_id)
    )
    ran, before = outside.ran.copy(), await rows(store, run_id)
    for _ in range(2):
        assert await kept.resume(store.persistence(run_id), deps=outside) == first
        assert await graphkeep.resume(kept, store.persistence(run_id), deps=outside) == first
    assert outside.ran == ran
    assert await rows(store, run_id) == before


async def test_two_who_resume_at_once(make_store: MakeStore, run_id: str) -> None:
    kept, outside = graphkeep.persist(harvest()), Outside(fails={'work'})
    store, other = make_store(), make_store()
    await begin(store, run_id, kept, outside)
    outside.fails = set()
    results = await asyncio.gather(
        *(kept.resume(s.persistence(run_id), deps=outside) for s in (store, other)),
        return_exceptions=True,
    )
    outputs = [sorted(r) for r in results if isinstance(r, list)]
    errors = [r for r in results if isinstance(r, BaseException)]
    assert outputs
    assert all(output == UNDISTURBED for output in outputs)
    assert all(isinstance(e, graphkeep.RunBusyError) for e in errors)
    assert (await state_of(store, run_id, kept)).ends == ENDS


async def test_recover_continues_what_was_left(store: Store, run_id: str) -> None:
    kept, outside = graphkeep.persist(harvest()), Outside(hangs={'work'})
    running = kept.run(
        state=Ledger(), inputs=3, deps=outside, persistence=store.persistence(run_id)
    )
    await by_task(running, outside)
    await kept.run(
        state=Ledger(), inputs=1, deps=Outside(), persistence=store.persistence(f'{run_id}-done')
    )
    outside.hangs = set()
    assert not await graphkeep.recover(store, {'harvest': kept}, deps=outside)
    (recovered,) = await graphkeep.recover(store, {'harvest': kept}, deps=outside, ready=True)
    assert recovered.run_id == run_id
    assert recovered.graph == 'harvest'
    assert sorted(recovered.result) == UNDISTURBED
    assert recovered.error is None
    assert not await graphkeep.recover(store, {'harvest': kept}, deps=outside, ready=True)


async def test_recover_tells_what_a_run_raised(store: Store, run_id: str) -> None:
    kept, outside = graphkeep.persist(harvest()), Outside(hangs={'work'})
    running = kept.run(
        state=Ledger(), inputs=3, deps=outside, persistence=store.persistence(run_id)
    )
    await by_task(running, outside)
    outside.hangs, outside.fails = set(), {'last'}
    (recovered,) = await graphkeep.recover(store, {'harvest': kept}, deps=outside, ready=True)
    assert isinstance(recovered.error, ValueError)
    assert (await store.run(run_id)).status == 'failed'


_CHILD = """
import asyncio, sys
from tests.builder import test_resuming as here
asyncio.run(here.hang(*sys.argv[1:]))
"""


async def hang(url: str, run_id: str, step: str) -> None:
    """In a process of its own: run up to a step, say so, and hang."""
    outside = Outside(hangs={step})

    async def say() -> None:
        await outside.hung.wait()
        for _ in range(200):  # what is beside it ends before
            await asyncio.sleep(0)
        print('hung', flush=True)

    async with graphkeep.open_store(url) as store, asyncio.TaskGroup() as group:
        group.create_task(say())
        kept: Any = graphkeep.persist(harvest())
        persistence = store.persistence(run_id)
        await kept.run(state=Ledger(), inputs=3, deps=outside, persistence=persistence)


@pytest.mark.parametrize('database', ['sqlite'], indirect=True)
@pytest.mark.parametrize('step', ['numbers', 'work', 'last'])
async def test_a_killed_run_goes_on_at_once(
    step: str, database: str, make_store: MakeStore, run_id: str
) -> None:
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        '-c',
        _CHILD,
        database,
        run_id,
        step,
        cwd=Path(__file__).parents[2],
        stdout=asyncio.subprocess.PIPE,
    )
    assert process.stdout is not None
    assert await process.stdout.readline() == b'hung\n'
    store, kept, outside = make_store(), graphkeep.persist(harvest()), Outside()
    with pytest.raises(graphkeep.RunBusyError):
        await kept.resume(store.persistence(run_id), deps=outside)
    done = await state_of(store, run_id, kept)
    process.kill()
    await process.communicate()
    output = await kept.resume(store.persistence(run_id), deps=outside)
    assert sorted(output) == UNDISTURBED
    assert (await state_of(store, run_id, kept)).ends == ENDS
    assert outside.ran == Counter(ENDS) - Counter(done.ends)


# --- what is restored -----------------------------------------------------------------------------


def counting(ctx: ReducerContext[Ledger, Outside], current: int, inputs: int) -> int:
    ctx.state.mark('counting')
    if ctx.state.ends['counting'] == 2:
        ctx.cancel_sibling_tasks()
    return current + inputs


async def test_a_reducer_with_a_context_goes_on_with_what_it_had(store: Store, run_id: str) -> None:
    """It takes the first two items, and cancels the rest; in between it is resumed."""
    g = new_builder(int)
    numbers = add_step(g, 'numbers', gives=list[int], value=lambda n: list(range(1, n + 1)))

    @g.step
    async def work(ctx: StepContext[Ledger, Outside, int]) -> int:
        await ctx.deps.meet(f'work {ctx.inputs}')
        return ctx.inputs

    some = g.join(counting, initial=0, node_id='some')
    g.add(
        g.edge_from(g.start_node).to(numbers),
        g.edge_from(numbers).map().to(work),
        g.edge_from(work).to(some),
        g.edge_from(some).to(g.end_node),
    )
    kept: Any = graphkeep.persist(g.build(), max_parallel=1)
    outside = Outside(fails={'work 2'})
    await begin(store, run_id, kept, outside)
    outside.fails, outside.hangs = set(), {'work 3'}
    assert await kept.resume(store.persistence(run_id), deps=outside) == 1 + 2
    assert (await state_of(store, run_id, kept)).ends == {'numbers': 1, 'counting': 2}


async def test_a_race_that_was_decided_stays_decided(store: Store, run_id: str) -> None:
    g = new_builder(int)
    go, quick, slow = (add_step(g, name) for name in ('go', 'quick', 'slow'))
    after = add_step(g, 'after', value=lambda n: n + 1)
    race = g.join(ReduceFirstValue[int](), initial=0, node_id='race')
    g.add(
        g.edge_from(g.start_node).to(go),
        g.edge_from(go).to(quick, slow),
        g.edge_from(quick, slow).to(race),
        g.edge_from(race).to(after),
        g.edge_from(after).to(g.end_node),
    )
    kept: Any = graphkeep.persist(g.build())
    outside = Outside(hangs={'slow'}, fails={'after'})
    await begin(store, run_id, kept, outside)
    outside.fails, outside.hangs = set(), set()
    assert await kept.resume(store.persistence(run_id), deps=outside) == 4
    assert outside.ran['slow'] == 1
    assert (await state_of(store, run_id, kept)).ends == {'go': 1, 'quick': 1, 'after': 1}


async def test_a_restarted_stream_skips_what_was_sent(store: Store, run_id: str) -> None:
    g = new_builder()
    fails = [True]

    @g.stream
    async def numbers(ctx: StepContext[Ledger, Outside, int]) -> AsyncIterator[int]:
        for number in range(ctx.inputs):
            if number == 2 and fails[0]:
                raise ValueError('stream fails')
            await ctx.deps.meet(f'send {number}')
            yield number
        ctx.state.mark('numbers')

    work = add_step(g, 'work')
    all_ = g.join(reduce_list_append, initial_factory=list[int], node_id='all')
    g.add(
        g.edge_from(g.start_node).to(numbers),
        g.edge_from(numbers).map().to(work),
        g.edge_from(work).to(all_),
        g.edge_from(all_).to(g.end_node),
    )
    kept: Any = graphkeep.persist(g.build())
    outside = Outside()
    await begin(store, run_id, kept, outside)
    fails[0] = False
    assert sorted(await kept.resume(store.persistence(run_id), deps=outside)) == [0, 1, 2]
    assert (await state_of(store, run_id, kept)).ends == {'numbers': 1, 'work': 3}
    assert [outside.ran[f'send {n}'] for n in range(3)] == [2, 2, 1]


@pytest.mark.parametrize('fails_at', [1, 2, 3])
async def test_forks_of_a_loop_are_not_mixed_up(fails_at: int, store: Store, run_id: str) -> None:
    """Every turn maps anew; a resume must not give a fork run a name that is taken."""
    g = new_builder(int)

    @g.step
    async def spread(ctx: StepContext[Ledger, Outside, int]) -> list[int]:
        await ctx.deps.meet(f'spread {ctx.inputs}')
        return [ctx.inputs] * 2

    @g.step
    async def work(ctx: StepContext[Ledger, Outside, int]) -> int:
        await ctx.deps.meet(f'work {ctx.inputs}')
        return ctx.inputs

    total = g.join(reduce_sum, initial=0, node_id='total')
    g.add(
        g.edge_from(g.start_node).to(spread),
        g.edge_from(spread).map().to(work),
        g.edge_from(work).to(total),
        g.edge_from(total).to(
            g.decision(node_id='enough')
            .branch(g.match(int, matches=lambda n: n < 20).to(spread))
            .branch(g.match(int).to(g.end_node))
        ),
    )
    kept: Any = graphkeep.persist(g.build())
    outside = Outside(fails={f'work {3 * 2 ** (fails_at - 1)}'})
    await begin(store, run_id, kept, outside)
    outside.fails = set()
    assert await kept.resume(store.persistence(run_id), deps=outside) == 24


async def test_attempts_and_keys_over_resumes(store: Store, run_id: str) -> None:
    g, seen = new_builder(int), list[tuple[str, int, str]]()

    def noted(name: str, fails: int) -> Any:
        async def run(ctx: StepContext[Ledger, Outside, int]) -> int:
            task = current_task()
            seen.append((name, task.attempt, task.key))
            await once('paid', lambda: 1)
            if task.attempt <= fails:
                raise ValueError('fails')
            return 1

        return g.step(run, node_id=name)

    first, second = noted('first', 1), noted('second', 2)
    g.add(
        g.edge_from(g.start_node).to(first),
        g.edge_from(first).to(second),
        g.edge_from(second).to(g.end_node),
    )
    kept: Any = graphkeep.persist(g.build())
    await begin(store, run_id, kept, Outside())
    for _ in range(2):
        with pytest.raises(ValueError, match='fails'):
            await kept.resume(store.persistence(run_id), deps=Outside())
    assert await kept.resume(store.persistence(run_id), deps=Outside()) == 1
    assert [(name, attempt) for name, attempt, _ in seen] == [
        ('first', 1),
        ('first', 2),
        ('second', 1),
        ('second', 2),
        ('second', 3),
    ]
    assert len({key for _, _, key in seen}) == 2
    assert [s.event for s in await store.snapshots(run_id)].count('once') == 2


# --- after a deploy -------------------------------------------------------------------------------


async def test_renamed_steps_and_joins_go_on(store: Store, run_id: str) -> None:
    outside = Outside(fails={'work'})
    await begin(store, run_id, graphkeep.persist(harvest()), outside)
    renamed = harvest(work='labour', aside='beside', join='everything', last='final')
    aliases = {'work': 'labour', 'aside': 'beside', 'all': 'everything', 'last': 'final'}
    kept: Any = graphkeep.persist(renamed, aliases=aliases)
    output = await kept.resume(store.persistence(run_id), deps=outside)
    assert sorted(output) == UNDISTURBED
    ends = (await state_of(store, run_id, kept)).ends
    names = {aliases.get(name, name) for name in ENDS}
    summed = Counter[str]()
    for name, times in ends.items():
        summed[aliases.get(name, name)] += times
    assert summed == {aliases.get(name, name): times for name, times in ENDS.items()}
    assert set(summed) == names


async def test_a_run_that_was_renamed_may_fail_and_go_on_again(store: Store, run_id: str) -> None:
    outside = Outside(fails={'work'})
    await begin(store, run_id, graphkeep.persist(harvest()), outside)
    outside.fails = {'labour'}
    kept: Any = graphkeep.persist(harvest(work='labour'), aliases={'work': 'labour'})
    with pytest.raises(ValueError, match='labour fails'):
        await kept.resume(store.persistence(run_id), deps=outside)
    outside.fails = set()
    assert sorted(await kept.resume(store.persistence(run_id), deps=outside)) == UNDISTURBED


def count_items(current: list[int], inputs: int) -> list[int]:
    return [*current, inputs]


CHANGES: dict[str, tuple[Callable[[], Any], str, str]] = {
    'a step is gone': (lambda: harvest(work='labour'), 'work', "'work'"),
    'a step takes something else': (lambda: harvest(takes=dict[str, int]), 'work', "'work'"),
    'another reducer': (lambda: harvest(reducer=count_items), 'all', "'all'"),
    'the join is gone': (lambda: harvest(join='everything'), 'all', "'all'"),
    'the join has other neighbours': (lambda: harvest(between=True), 'all', "'all'"),
    'the outer fork is gone': (lambda: harvest(outer='outer2'), 'work', "'work'"),
}


@pytest.mark.parametrize('change', CHANGES)
async def test_a_graph_that_does_not_fit_any_more_leaves_the_run_as_it_is(
    change: str, store: Store, run_id: str
) -> None:
    build, node, named = CHANGES[change]
    outside = Outside(fails={'work'})
    await begin(store, run_id, graphkeep.persist(harvest()), outside)
    before, ran = await rows(store, run_id), outside.ran.copy()
    assert (await store.document(run_id)).joins, 'something waits at the join'
    kept: Any = graphkeep.persist(build())
    for resume in (
        lambda: kept.resume(store.persistence(run_id), deps=outside),
        lambda: graphkeep.resume(kept, store.persistence(run_id), deps=outside),
        lambda: kept.run(
            state=Ledger(),
            inputs=3,
            deps=outside,
            persistence=store.persistence(run_id, if_exists='resume'),
        ),
    ):
        with pytest.raises(GraphChangedError, match='left as it is') as caught:
            await resume()
        assert caught.value.node == node
        assert named in str(caught.value)
        assert run_id in str(caught.value)
    assert await rows(store, run_id) == before
    assert outside.ran == ran
    # The old graph still goes on.
    outside.fails = set()
    old: Any = graphkeep.persist(harvest())
    assert sorted(await old.resume(store.persistence(run_id), deps=outside)) == UNDISTURBED


async def test_steps_that_are_not_pending_may_change_as_they_like(
    store: Store, run_id: str
) -> None:
    outside = Outside(fails={'last'})
    await begin(store, run_id, graphkeep.persist(harvest()), outside)
    kept: Any = graphkeep.persist(
        harvest(work='other', takes=dict[str, int], join='else', reducer=reduce_list_extend)
    )
    outside.fails = set()
    assert sorted(await kept.resume(store.persistence(run_id), deps=outside)) == UNDISTURBED


@dataclass
class Smaller:
    ends: list[str]


async def test_a_state_that_does_not_fit_any_more(store: Store, run_id: str) -> None:
    outside = Outside(fails={'last'})
    await begin(store, run_id, graphkeep.persist(harvest()), outside)
    before = await rows(store, run_id)
    graph = harvest()
    graph.state_type = Smaller
    kept: Any = graphkeep.persist(graph)
    with pytest.raises(GraphChangedError, match='stored state') as caught:
        await kept.resume(store.persistence(run_id), deps=outside)
    assert caught.value.path is not None
    assert caught.value.path.startswith('state')
    assert await rows(store, run_id) == before


# --- begun by pydantic-graph 1.x ------------------------------------------------------------------


@dataclass
class Sow(BaseNode[Ledger, Outside, int]):
    seeds: int

    async def run(self, ctx: GraphRunContext[Ledger, Outside]) -> Reap:
        await ctx.deps.meet('Sow')
        ctx.state.mark('sow')
        await once('water', lambda: 'watered')
        return Reap(self.seeds * 10)


@dataclass
class Reap(BaseNode[Ledger, Outside, int]):
    ears: int

    async def run(self, ctx: GraphRunContext[Ledger, Outside]) -> End[int]:
        await ctx.deps.meet('Reap')
        ctx.state.mark('reap', await once('sun', lambda: ctx.deps.ran['Reap']))
        await ctx.deps.meet('Reap late')
        return End(self.ears)


@pytest.mark.skipif(
    importlib.util.find_spec('pydantic_graph.persistence') is None,
    reason='pydantic-graph 2.x has no graphs of the 1.x kind',
)
@pytest.mark.parametrize('step', ['Sow', 'Reap', 'Reap late', ''])
async def test_a_run_of_a_1x_graph_goes_on_as_a_builder_graph(
    step: str, store: Store, run_id: str
) -> None:
    from pydantic_graph.graph import Graph

    outside = Outside(fails={step})
    old = Graph[Ledger, Outside, int](nodes=(Sow, Reap), auto_instrument=False)
    begun = old.run(Sow(4), state=Ledger(), deps=outside, persistence=store.persistence(run_id))
    if step:
        with pytest.raises(ValueError, match='fails'):
            await begun
    else:
        await begun
    outside.fails = set()
    g = GraphBuilder(
        state_type=Ledger,
        deps_type=Outside,
        input_type=Sow,
        output_type=int,
        auto_instrument=False,
    )
    g.add(g.edge_from(g.start_node).to(Sow), g.node(Sow), g.node(Reap))
    kept: Any = graphkeep.persist(g.build())
    assert await kept.resume(store.persistence(run_id), deps=outside) == 40
    state = await state_of(store, run_id, kept)
    assert state.ends == {'sow': 1, 'reap': 1}
    # What the failed attempt has kept is known to the next one, whichever front end it has.
    assert state.marks[-1] == f'reap {2 if step == "Reap" else 1}'
    assert (await store.run(run_id)).status == 'done'
    assert await kept.resume(store.persistence(run_id), deps=outside) == 40
