"""`wait_for` in the nodes of 1.x graphs, through all that runs them."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest
from pydantic_graph import BaseNode, End, GraphBuilder, GraphRunContext
from pydantic_graph.graph import Graph

import graphkeep
from graphkeep import (
    Request,
    RequestClosedError,
    RequestTimeoutError,
    RunPausedError,
    Store,
    once,
    wait_for,
)
from tests.builder.asking import (
    AskingRig,
    Book,
    Case,
    Outside,
    People,
    everybody,
    one_person,
    two_at_once,
)
from tests.builder.dying import Death, Moment
from tests.classic.conftest import MakeStore, every_store, in_memory
from tests.classic.graphs import answer_quiz, events, nodes, status

Body = Callable[[], Awaitable[Any]]


@dataclass
class Talk:
    lines: list[str] = field(default_factory=list[str])


@dataclass
class Deps:
    """What the asking node does."""

    body: Body
    ran: Counter[str] = field(default_factory=Counter[str])


Ctx = GraphRunContext[Talk, Deps]


@dataclass
class Hello(BaseNode[Talk, Deps, str]):
    async def run(self, ctx: GraphRunContext[Talk, Deps]) -> Ask:
        ctx.deps.ran['Hello'] += 1
        ctx.state.lines.append('hello')
        return Ask('well')


@dataclass
class Ask(BaseNode[Talk, Deps, str]):
    word: str

    async def run(self, ctx: GraphRunContext[Talk, Deps]) -> Bye:
        ctx.deps.ran['Ask'] += 1
        ctx.state.lines.append('half')
        got = await ctx.deps.body()
        ctx.state.lines[-1] = f'{self.word}: {got!r}'
        return Bye()


@dataclass
class Bye(BaseNode[Talk, Deps, str]):
    async def run(self, ctx: GraphRunContext[Talk, Deps]) -> End[str]:
        ctx.deps.ran['Bye'] += 1
        return End(', '.join(ctx.state.lines))


talk = Graph[Talk, Deps, str](nodes=(Hello, Ask, Bye), name='talk', auto_instrument=False)


def _built() -> Any:
    g: Any = GraphBuilder(
        name='talk', state_type=Talk, deps_type=Deps, input_type=Hello, output_type=str
    )
    g.add(g.node(Hello), g.node(Ask), g.node(Bye), g.edge_from(g.start_node).to(Hello))
    return graphkeep.persist(g.build())


built = _built()
"""The same nodes in a builder graph."""


async def two_questions() -> tuple[str, int]:
    return await wait_for(str, prompt='Who?'), await wait_for(int, 'age')


async def one_question() -> str:
    return await wait_for(str)


async def both_at_once() -> list[str]:
    async with asyncio.TaskGroup() as group:
        asked = [group.create_task(wait_for(str, name)) for name in 'ab']
    return [task.result() for task in asked]


async def pauses(call: Awaitable[Any]) -> list[Request]:
    """What a call waits for, which says so."""
    with pytest.raises(RunPausedError) as caught:
        await call
    return [*caught.value.requests]


async def begun(store: Store, run_id: str, deps: Deps) -> list[Request]:
    """A run that has paused."""
    requests = await pauses(
        talk.run(Hello(), state=Talk(), deps=deps, persistence=store.persistence(run_id))
    )
    run = await store.run(run_id)
    assert (run.status, run.owner, run.lease_until) == ('paused', None, None)
    return requests


async def answer(store: Store, request: Request, value: Any) -> None:
    await store.answer(request.run_id, request.request_id, value)


async def lines(store: Store, run_id: str) -> Any:
    """The state as it is stored."""
    return (await store.document(run_id)).state


# --- asked and answered ---------------------------------------------------------------------------


@every_store
async def test_a_node_asks_and_goes_on(make_store: MakeStore, run_id: str) -> None:
    store, other, deps = make_store(), make_store(), Deps(two_questions)
    [request] = await begun(store, run_id, deps)
    assert (request.node, request.name, request.prompt) == ('Ask', 'request-1', 'Who?')
    # What the node did to the state before is thrown away.
    assert await lines(store, run_id) == {'lines': b'["hello"]'}
    await answer(other, request, 'ann')
    assert await status(store, run_id) == 'ready'
    [request] = await pauses(graphkeep.resume(talk, other.persistence(run_id), deps=deps))
    assert request.name == 'age'
    await answer(store, request, 42)
    result = await graphkeep.resume(talk, store.persistence(run_id), deps=deps)
    assert result.output == "hello, well: ('ann', 42)"
    assert deps.ran == {'Hello': 1, 'Ask': 3, 'Bye': 1}
    assert await events(store, run_id) == ['start', 'step', 'pause', 'pause', 'step', 'end']
    requests = await store.requests(run_id=run_id, status=())
    assert all(r.status == 'answered' and r.closed_at is not None for r in requests)


async def test_a_run_that_is_watched_pauses(store: Store, run_id: str) -> None:
    deps, seen = Deps(one_question), list[str]()
    with pytest.raises(RunPausedError):
        async with talk.iter(
            Hello(), state=Talk(), deps=deps, persistence=store.persistence(run_id)
        ) as run:
            async for node in run:
                seen.append(type(node).__name__)
    assert seen == ['Hello', 'Ask']
    assert await status(store, run_id) == 'paused'
    [request] = await store.requests(run_id=run_id)
    await answer(store, request, 'yes')
    async with talk.iter_from_persistence(store.persistence(run_id), deps=deps) as run:
        async for _ in run:
            pass
    assert run.result is not None
    assert run.result.output == "hello, well: 'yes'"


async def test_the_same_handle_goes_on(store: Store, run_id: str) -> None:
    deps, handle = Deps(one_question), store.persistence(run_id)
    [request] = await pauses(talk.run(Hello(), state=Talk(), deps=deps, persistence=handle))
    assert await pauses(graphkeep.resume(talk, handle, deps=deps)) == [request]
    await answer(store, request, 'yes')
    result = await graphkeep.resume(talk, handle, deps=deps)
    assert (result.output, result.state) == ("hello, well: 'yes'", Talk(['hello', "well: 'yes'"]))
    assert deps.ran['Ask'] == 2


@every_store
async def test_waiting_for_the_answer(make_store: MakeStore, run_id: str) -> None:
    store, other, deps = make_store(), make_store(), Deps(two_questions)
    waiting = asyncio.create_task(
        graphkeep.resume(
            talk,
            store.persistence(run_id),
            deps=deps,
            start=Hello(),
            state=Talk(),
            on_pause='wait',
        )
    )
    for value in ('ann', 42):
        async with asyncio.timeout(10):
            while not (requests := await other.requests(run_id=run_id)):
                await asyncio.sleep(0.005)
        await answer(other, requests[0], value)
    async with asyncio.timeout(10):
        assert (await waiting).output == "hello, well: ('ann', 42)"


async def test_waiting_while_another_goes_on(make_store: MakeStore, run_id: str) -> None:
    """Whoever goes on: the output comes to all who wait."""
    store, other, deps = make_store(), make_store(), Deps(one_question)
    [request] = await begun(store, run_id, deps)
    waiting = [
        asyncio.create_task(
            graphkeep.resume(talk, each.persistence(run_id), deps=deps, on_pause='wait')
        )
        for each in (store, other, store)
    ]
    await asyncio.sleep(0.02)
    await answer(other, request, 'yes')
    async with asyncio.timeout(10):
        results = await asyncio.gather(*waiting)
    assert {result.output for result in results} == {"hello, well: 'yes'"}
    assert deps.ran == {'Hello': 1, 'Ask': 2, 'Bye': 1}


async def test_two_requests_at_once(store: Store, run_id: str) -> None:
    deps = Deps(both_at_once)
    a, b = await begun(store, run_id, deps)
    assert (a.name, b.name) == ('a', 'b')
    await answer(store, b, '2')
    # One is still open: the node does not run for that.
    assert await pauses(graphkeep.resume(talk, store.persistence(run_id), deps=deps)) == [a]
    assert await status(store, run_id) == 'paused'
    assert deps.ran['Ask'] == 1
    await answer(store, a, '1')
    result = await graphkeep.resume(talk, store.persistence(run_id), deps=deps)
    assert result.output == "hello, well: ['1', '2']"
    assert deps.ran['Ask'] == 2


async def test_a_deadline_passes(store: Store, run_id: str) -> None:
    async def body() -> str:
        first = await wait_for(str, 'first', timeout=0.01, default='nobody')
        with pytest.raises(RequestTimeoutError, match="'1:second'"):
            await wait_for(str, 'second', timeout=0.01)
        return first

    deps = Deps(body)
    result = await graphkeep.resume(
        talk,
        store.persistence(run_id),
        deps=deps,
        start=Hello(),
        state=Talk(),
        on_pause='wait',
    )
    assert result.output == "hello, well: 'nobody'"
    requests = await store.requests(run_id=run_id, status='expired')
    assert [request.name for request in requests] == ['first', 'second']
    for request in requests:
        with pytest.raises(RequestClosedError):
            await answer(store, request, 'late')


async def test_a_deadline_fails_the_node(store: Store, run_id: str) -> None:
    deps = Deps(lambda: wait_for(str, timeout=0.01))
    with pytest.raises(RequestTimeoutError):
        await graphkeep.resume(
            talk,
            store.persistence(run_id),
            deps=deps,
            start=Hello(),
            state=Talk(),
            on_pause='wait',
        )
    assert await status(store, run_id) == 'failed'


async def test_a_side_effect_between_two_requests(store: Store, run_id: str) -> None:
    charged: list[str] = []

    def charge() -> int:
        charged.append('charged')
        return len(charged)

    async def body() -> tuple[str, int, str]:
        return await wait_for(str), await once('charge', charge), await wait_for(str)

    deps = Deps(body)
    [request] = await begun(store, run_id, deps)
    await answer(store, request, 'a')
    [request] = await pauses(graphkeep.resume(talk, store.persistence(run_id), deps=deps))
    await answer(store, request, 'b')
    result = await graphkeep.resume(talk, store.persistence(run_id), deps=deps)
    assert result.output == "hello, well: ('a', 1, 'b')"
    assert charged == ['charged']
    assert deps.ran['Ask'] == 3


# --- what goes wrong in the node ------------------------------------------------------------------


async def _fails(store: Store, run_id: str, body: Body, error: type[Exception]) -> Exception:
    with pytest.raises(error) as caught:
        await talk.run(
            Hello(), state=Talk(), deps=Deps(body), persistence=store.persistence(run_id)
        )
    assert await status(store, run_id) == 'failed'
    assert await store.requests(run_id=run_id, status=()) == []
    return caught.value


async def test_an_error_of_its_own_beside_a_pause(store: Store, run_id: str) -> None:
    async def fails() -> None:
        raise ValueError('mine')

    async def body() -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(wait_for(str, 'a'))
            group.create_task(fails())

    error = await _fails(store, run_id, body, ExceptionGroup)
    assert isinstance(error, ExceptionGroup)
    assert [repr(each) for each in error.exceptions] == ["ValueError('mine')"]
    # It runs again, and asks for the first time.
    deps = Deps(one_question)
    assert len(await pauses(graphkeep.resume(talk, store.persistence(run_id), deps=deps))) == 1


async def test_a_pause_that_is_swallowed(store: Store, run_id: str) -> None:
    async def body() -> None:
        await asyncio.gather(wait_for(str, 'a'), wait_for(str, 'b'), return_exceptions=True)

    error = await _fails(store, run_id, body, RuntimeError)
    assert "'a', 'b' is open: something in it has caught" in str(error)


async def test_an_error_after_an_answer(store: Store, run_id: str) -> None:
    fails = True

    async def body() -> str:
        got = await wait_for(str)
        if fails:
            raise ValueError('mine')
        return got

    deps = Deps(body)
    [request] = await begun(store, run_id, deps)
    await answer(store, request, 'yes')
    with pytest.raises(ValueError, match='mine'):
        await graphkeep.resume(talk, store.persistence(run_id), deps=deps)
    assert await status(store, run_id) == 'failed'
    fails = False
    result = await graphkeep.resume(talk, store.persistence(run_id), deps=deps)
    assert result.output == "hello, well: 'yes'"
    assert len(await store.requests(run_id=run_id, status=())) == 1


# --- what the caller does meanwhile ---------------------------------------------------------------


async def test_a_paused_run_cannot_be_loaded(store: Store, run_id: str) -> None:
    """Upstream would run its node; there is nothing to be run."""
    deps = Deps(one_question)
    [request] = await begun(store, run_id, deps)
    handle = store.persistence(run_id)
    handle.set_graph_types(talk)
    assert await pauses(handle.load_next()) == [request]
    with pytest.raises(RunPausedError):
        async with talk.iter_from_persistence(store.persistence(run_id), deps=deps):
            pass
    assert await status(store, run_id) == 'paused'
    assert deps.ran['Ask'] == 1


async def test_the_history_of_a_paused_run(store: Store, run_id: str) -> None:
    deps, handle = Deps(one_question), store.persistence(run_id)
    [request] = await pauses(talk.run(Hello(), state=Talk(), deps=deps, persistence=handle))
    other = store.persistence(run_id)
    other.set_graph_types(talk)
    for each in (handle, other):
        history: Any = await each.load_all()
        assert nodes(history) == ['Hello success', 'Ask created']
        assert history[-1].state == Talk(['hello'])
    await answer(store, request, 'yes')
    assert nodes(await other.load_all()) == ['Hello success', 'Ask created']
    await graphkeep.resume(talk, other, deps=deps)
    assert nodes(await other.load_all()) == ['Hello success', 'Ask success', 'Bye success', 'end']


async def test_a_node_that_waits_has_not_started_in_the_history(store: Store, run_id: str) -> None:
    await begun(store, run_id, Deps(one_question))
    handle = store.persistence(run_id)
    handle.set_graph_types(talk)
    waiting: Any = (await handle.load_all())[-1]
    assert (waiting.status, waiting.start_ts, waiting.duration) == ('created', None, None)


async def test_what_the_caller_edits_after_the_answer(store: Store, run_id: str) -> None:
    deps = Deps(one_question)
    [request] = await begun(store, run_id, deps)
    await answer(store, request, 'yes')
    async with talk.iter_from_persistence(store.persistence(run_id), deps=deps) as run:
        assert run.state == Talk(['hello'])
        run.state.lines.append('edited')
        assert isinstance(run.next_node, Ask)
        run.next_node.word = 'better'
        async for _ in run:
            pass
    assert run.result is not None
    assert run.result.output == "hello, edited, better: 'yes'"
    assert deps.ran['Ask'] == 2


async def test_what_the_caller_edits_stays_when_the_node_asks_again(
    store: Store, run_id: str
) -> None:
    deps = Deps(two_questions)
    [request] = await begun(store, run_id, deps)
    await answer(store, request, 'ann')
    with pytest.raises(RunPausedError) as caught:
        async with talk.iter_from_persistence(store.persistence(run_id), deps=deps) as run:
            run.state.lines.append('edited')
            await run.next()
    assert await lines(store, run_id) == {'lines': b'["hello","edited"]'}
    await answer(store, caught.value.requests[0], 42)
    result = await graphkeep.resume(talk, store.persistence(run_id), deps=deps)
    assert result.output == "hello, edited, well: ('ann', 42)"


async def test_another_node_in_the_place_of_one_that_waits(store: Store, run_id: str) -> None:
    """Its request is closed."""
    deps = Deps(one_question)
    async with talk.iter(
        Hello(), state=Talk(), deps=deps, persistence=store.persistence(run_id)
    ) as run:
        await run.next()
        [request] = await pauses(run.next())
        end = await run.next(Bye())
    assert isinstance(end, End)
    assert await status(store, run_id) == 'done'
    with pytest.raises(RequestClosedError):
        await answer(store, request, 'yes')
    assert (await store.request(run_id, request.request_id)).status == 'closed'


async def test_another_node_in_the_place_of_one_that_was_answered(
    store: Store, run_id: str
) -> None:
    deps = Deps(one_question)
    [request] = await begun(store, run_id, deps)
    await answer(store, request, 'yes')
    async with talk.iter_from_persistence(store.persistence(run_id), deps=deps) as run:
        end = await run.next(Bye())
    assert isinstance(end, End)
    assert end.data == 'hello'
    found = await store.request(run_id, request.request_id)
    assert (found.status, found.closed_at is not None) == ('answered', True)


async def test_a_fork_of_a_paused_run_asks_anew(store: Store, run_id: str) -> None:
    deps, fork = Deps(one_question), f'{run_id}/fork'
    [request] = await begun(store, run_id, deps)
    await store.fork(run_id, new_run_id=fork)
    [other] = await pauses(graphkeep.resume(talk, store.persistence(fork), deps=deps))
    assert (other.run_id, other.request_id) == (fork, request.request_id)
    await answer(store, other, 'forked')
    result = await graphkeep.resume(talk, store.persistence(fork), deps=deps)
    assert result.output == "hello, well: 'forked'"
    await answer(store, request, 'yes')
    result = await graphkeep.resume(talk, store.persistence(run_id), deps=deps)
    assert result.output == "hello, well: 'yes'"


@every_store
async def test_a_paused_run_goes_on_as_a_builder_graph(store: Store, run_id: str) -> None:
    deps = Deps(two_questions)
    [request] = await begun(store, run_id, deps)
    assert await pauses(built.resume(store.persistence(run_id), deps=deps)) == [request]
    await answer(store, request, 'ann')
    [second] = await pauses(built.resume(store.persistence(run_id), deps=deps))
    await answer(store, second, 42)
    assert await built.resume(store.persistence(run_id), deps=deps) == "hello, well: ('ann', 42)"
    assert deps.ran == {'Hello': 1, 'Ask': 3, 'Bye': 1}


async def test_a_paused_builder_run_goes_on_as_a_1x_graph(store: Store, run_id: str) -> None:
    """As any other with one pending task."""
    deps = Deps(one_question)
    [request] = await pauses(
        built.run(state=Talk(), inputs=Hello(), deps=deps, persistence=store.persistence(run_id))
    )
    await answer(store, request, 'yes')
    result = await graphkeep.resume(talk, store.persistence(run_id), deps=deps)
    assert result.output == "hello, well: 'yes'"


@every_store
async def test_recover_goes_on_with_what_was_answered_or_is_due(store: Store, run_id: str) -> None:
    async def asks() -> str:
        if name.startswith('due'):
            return await wait_for(str, timeout=0.01, default='late')
        return await wait_for(str)

    graph = f'talk {run_id}'
    found: dict[str, Request] = {}
    for name in ('answered', 'asks again', 'left', 'due'):
        handle = store.persistence(f'{run_id}/{name}', graph=graph)
        deps = Deps(two_questions if name == 'asks again' else asks)
        [found[name]] = await pauses(talk.run(Hello(), state=Talk(), deps=deps, persistence=handle))
    for name in ('answered', 'asks again'):
        await answer(store, found[name], 'yes')
    async with asyncio.timeout(10):
        while not (await store.run(f'{run_id}/due')).due:
            await asyncio.sleep(0.005)

    async def two() -> tuple[str, int | None]:
        first = await wait_for(str, timeout=60, default='late')
        again = graphkeep.current_task().run_id.endswith('asks again')
        return first, await wait_for(int, 'age') if again else None

    assert await graphkeep.recover(store, {graph: talk}, deps=Deps(two)) == []
    recovered = await graphkeep.recover(store, {graph: talk}, deps=Deps(two), ready=True)
    by_name = {each.run_id.removeprefix(f'{run_id}/'): each for each in recovered}
    assert by_name.keys() == {'answered', 'asks again', 'due'}
    assert by_name['answered'].result.output == "hello, well: ('yes', None)"
    assert by_name['due'].result.output == "hello, well: ('late', None)"
    again = by_name['asks again']
    assert (again.result, again.error) == (None, None)
    assert [request.name for request in again.requests] == ['age']
    assert await status(store, f'{run_id}/left') == 'paused'


@every_store
async def test_a_worker_carries_it_on(store: Store, run_id: str) -> None:
    deps, graph = Deps(two_questions), f'talk {run_id}'
    handle = store.persistence(run_id, graph=graph)
    await talk.initialize(Hello(), handle, state=Talk(), infer_name=False)
    async with graphkeep.Worker(store, {graph: talk}, deps=deps, poll=0.05), asyncio.timeout(10):
        for value in ('ann', 42):
            while not (requests := await store.requests(run_id=run_id)):
                await asyncio.sleep(0.005)
            await answer(store, requests[0], value)
        while await status(store, run_id) != 'done':
            await asyncio.sleep(0.005)
    assert deps.ran == {'Hello': 1, 'Ask': 3, 'Bye': 1}


@every_store
async def test_the_way_of_upstreams_documentation(make_store: MakeStore, run_id: str) -> None:
    """Iterate to the node that asks, leave, and come back elsewhere with the answer in the node."""
    question = 'What is the capital of France?'
    assert await answer_quiz(make_store(), run_id, None) == question
    assert await answer_quiz(make_store(), run_id, 'Vichy') == question
    end = await answer_quiz(make_store(), run_id, 'Paris')
    assert end == 'END: Paris is right, after 1 wrong answers'


# --- deaths ---------------------------------------------------------------------------------------

BookCtx = GraphRunContext[Book, Outside]


@dataclass
class AskOne(BaseNode[Book, Outside, str]):
    async def run(self, ctx: GraphRunContext[Book, Outside]) -> AskInTurn:
        ctx.deps.note()
        ctx.state.ends['half'] = 99  # thrown away when the node pauses
        answer = await wait_for(str, 'ok', payload={'n': 1})
        del ctx.state.ends['half']
        ctx.state.end(ok=answer)
        return AskInTurn(answer)


@dataclass
class AskInTurn(BaseNode[Book, Outside, str]):
    before: str

    async def run(self, ctx: GraphRunContext[Book, Outside]) -> End[str]:
        task = ctx.deps.note()

        def charge() -> int:
            ctx.deps.charged[task] += 1
            return ctx.deps.charged[task]

        first = await wait_for(str)
        charged = await once('charge', charge)
        second = await wait_for(str, 'second', prompt=f'{first}, {charged}?')
        ctx.state.end(**{'request-1': first, 'second': second})
        return End(first + second)


@dataclass
class AskAtOnce(BaseNode[Book, Outside, str]):
    again: bool = True

    async def run(self, ctx: GraphRunContext[Book, Outside]) -> AskAtOnce | End[str]:
        ctx.deps.note()
        async with asyncio.TaskGroup() as group:
            a = group.create_task(wait_for(str, 'a'))
            b = group.create_task(wait_for(str, 'b'))
        ctx.state.end(a=a.result(), b=b.result())
        return AskAtOnce(again=False) if self.again else End(a.result() + b.result())


@dataclass
class AskInTime(BaseNode[Book, Outside, str]):
    async def run(self, ctx: GraphRunContext[Book, Outside]) -> End[str]:
        ctx.deps.note()
        first = await wait_for(str, 'first', timeout=0.004, default='none')
        try:
            second = await wait_for(str, 'second', timeout=0.004)
        except RequestTimeoutError:
            second = 'too late'
        ctx.state.end(first=first, second=second)
        return End(f'{first}, {second}')


def _of(*classes: type[BaseNode[Book, Outside, str]]) -> Callable[[], Any]:
    """The nodes as a builder graph: what the rig reads the state with."""

    def build() -> Any:
        g: Any = GraphBuilder(
            state_type=Book,
            deps_type=Outside,
            input_type=classes[0],
            output_type=str,
            auto_instrument=False,
        )
        g.add(*(g.node(each) for each in classes), g.edge_from(g.start_node).to(classes[0]))
        return g.build()

    return build


@dataclass(frozen=True, kw_only=True)
class Nodes(Case):
    graph: Graph[Book, Outside, str]
    start: type[Any]


def _case(requests: int, *classes: type[Any], expires: bool = False) -> Nodes:
    return Nodes(
        build=_of(*classes),
        requests=requests,
        expires=expires,
        graph=Graph[Book, Outside, str](nodes=classes, name='asking', auto_instrument=False),
        start=classes[0],
    )


CASES = {
    'in turn': _case(3, AskOne, AskInTurn),
    'at once': _case(4, AskAtOnce),
    'expiring': _case(2, AskInTime, expires=True),
}


@dataclass(kw_only=True)
class ClassicRig(AskingRig):
    case: Nodes  # pyright: ignore[reportIncompatibleVariableOverride]

    async def _run(self, store: Store) -> Any:
        while True:
            try:
                result = await graphkeep.resume(
                    self.case.graph,
                    store.persistence(self.run_id),
                    deps=self.deps,
                    start=self.case.start(),
                    state=Book(),
                )
            except RunPausedError as paused:
                self.pauses += 1
                if self.case.expires:
                    await asyncio.sleep(0.002)
                else:
                    await self.people(store, self.keeper, paused.requests)
            else:
                assert 'half' not in result.state.ends
                return result.output


every_case = pytest.mark.parametrize('name', CASES)
moments = pytest.mark.parametrize('moment', ['before', 'during', 'after'])


async def _die(rig: ClassicRig, deaths: Sequence[Death] = ()) -> ClassicRig:
    await rig.check(await rig.live_and_die(deaths))
    return rig


@every_store
@every_case
@pytest.mark.parametrize('people', [one_person, everybody, two_at_once])
async def test_answers_carry_a_run_on(
    name: str, people: People, store: Store, open_again: MakeStore
) -> None:
    rig = ClassicRig(case=CASES[name], keeper=store, make_store=open_again, people=people)
    await _die(rig)
    assert rig.pauses > 0


@every_store
@every_case
@moments
async def test_a_run_that_asks_dies_at_any_call_of_the_store(
    name: str, moment: Moment, store: Store, open_again: MakeStore
) -> None:
    number, died = 0, True
    while died:
        number += 1
        rig = ClassicRig(case=CASES[name], keeper=store, make_store=open_again, people=one_person)
        died = (await _die(rig, [Death(number, moment)])).deaths > 0


@in_memory
@every_case
@moments
async def test_a_run_dies_while_two_people_answer_or_somebody_answers_at_once(
    name: str, moment: Moment, store: Store, open_again: MakeStore
) -> None:
    for at_once in (False, True):
        number, died = 0, True
        while died:
            number += 1
            rig = ClassicRig(
                case=CASES[name],
                keeper=store,
                make_store=open_again,
                people=two_at_once,
                at_once=at_once,
            )
            died = (await _die(rig, [Death(number, moment)])).deaths > 0


@pytest.mark.slow
@in_memory
@every_case
@moments
async def test_a_run_that_asks_dies_at_any_call_and_again(
    name: str, moment: Moment, store: Store, open_again: MakeStore
) -> None:
    first, died = 0, True
    while died:
        first += 1
        second, died_twice = 0, True
        while died_twice:
            second += 1
            rig = ClassicRig(
                case=CASES[name], keeper=store, make_store=open_again, people=everybody
            )
            deaths = (await _die(rig, [Death(first, moment), Death(second, 'before')])).deaths
            died, died_twice = deaths > 0, deaths > 1
