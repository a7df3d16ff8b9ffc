"""`wait_for` and the answers to it: bad input, values of all kinds, runs that end meanwhile."""

from __future__ import annotations

import asyncio
import enum
import threading
import uuid
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import Annotated, Any, Literal

import pytest
from pydantic import AfterValidator, BaseModel, Field
from pydantic_graph import GraphBuilder, StepContext, reduce_list_append

import graphkeep
from graphkeep import (
    InvalidAnswerError,
    Request,
    RequestClosedError,
    RequestNotFoundError,
    RunNotFoundError,
    RunPausedError,
    Store,
    UnstorableTypeError,
    merge,
    once,
    wait_for,
)

Body = Callable[[], Awaitable[Any]]


@dataclass
class Deps:
    """What the asking step does, and what the one beside it does."""

    body: Body
    beside: Body | None = None
    ran: Counter[str] = field(default_factory=Counter)


@dataclass
class Notes:
    lines: Annotated[list[str], merge.append] = field(default_factory=list)


Ctx = StepContext[Notes, Deps, Any]


def _builder(output_type: Any = Any) -> Any:
    return GraphBuilder(
        state_type=Notes,
        deps_type=Deps,
        input_type=int,
        output_type=output_type,
        auto_instrument=False,
    )


async def _ask(ctx: Ctx) -> str:
    ctx.deps.ran['ask'] += 1
    got = await ctx.deps.body()
    ctx.state.lines.append('asked')
    return repr(got)


def _alone() -> Any:
    g = _builder(str)
    ask = g.step(_ask, node_id='ask')
    g.add(g.edge_from(g.start_node).to(ask), g.edge_from(ask).to(g.end_node))
    return graphkeep.persist(g.build())


def _beside() -> Any:
    g = _builder(list[str])
    ask = g.step(_ask, node_id='ask')

    @g.step
    async def work(ctx: Ctx) -> str:
        ctx.deps.ran['work'] += 1
        if ctx.deps.beside is not None:
            await ctx.deps.beside()
        return 'worked'

    both = g.join(reduce_list_append, initial_factory=list[str], node_id='both')
    g.add(
        g.edge_from(g.start_node).to(ask, work),
        g.edge_from(ask, work).to(both),
        g.edge_from(both).to(g.end_node),
    )
    return graphkeep.persist(g.build())


alone, beside = _alone(), _beside()


@pytest.fixture
async def store() -> AsyncIterator[Store]:
    async with graphkeep.open_store(f'memory://{uuid.uuid4().hex}') as store:
        yield store


async def goes(store: Store, body: Body, *, run_id: str = 'run', kept: Any = alone) -> Any:
    """Start a run whose step does this, or go on with it."""
    persistence = store.persistence(run_id, if_exists='resume')
    return await kept.run(state=Notes(), inputs=0, deps=Deps(body), persistence=persistence)


async def pauses(store: Store, body: Body, *, run_id: str = 'run', kept: Any = alone) -> Request:
    """As `goes`; gives the request that it waits for."""
    with pytest.raises(RunPausedError) as caught:
        await goes(store, body, run_id=run_id, kept=kept)
    assert caught.value.run_id == run_id
    run = await store.run(run_id)
    assert (run.status, run.owner, run.lease_until) == ('paused', None, None)
    [request] = caught.value.requests
    assert [request.request_id] == [r.request_id for r in await store.requests(run_id=run_id)]
    return request


async def refused(store: Store, body: Body, error: type[Exception], match: str) -> None:
    """The step raises, its run fails, and nothing is asked."""
    run_id = uuid.uuid4().hex
    with pytest.raises(error, match=match):
        await goes(store, body, run_id=run_id)
    assert (await store.run(run_id)).status == 'failed'
    assert await store.requests(run_id=run_id, status=()) == []


def asks(type_: Any = str, *args: Any, **options: Any) -> Body:
    async def body() -> Any:
        return await wait_for(type_, *args, **options)

    return body


# --- how it may not be called ---------------------------------------------------------------------


async def test_outside_of_a_run() -> None:
    with pytest.raises(RuntimeError, match='outside of a step'):
        await wait_for(str)


async def test_inside_of_once(store: Store) -> None:
    async def body() -> str:
        return await once('name', asks())

    await refused(store, body, RuntimeError, r"inside of once\('name'\)")


class Unknown:
    """Pydantic knows nothing of it."""


class Model(BaseModel):
    lines: list[threading.Thread]
    model_config = {'arbitrary_types_allowed': True}


@pytest.mark.parametrize('type_', [threading.Lock, Unknown, Model, Callable[[], int], 'Nowhere'])
async def test_a_type_that_cannot_be_given_as_json(store: Store, type_: Any) -> None:
    await refused(store, asks(type_), UnstorableTypeError, 'wait_for')


async def test_the_same_name_twice(store: Store) -> None:
    async def body() -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(wait_for(str, 'name'))
            group.create_task(wait_for(str, 'name'))

    with pytest.raises(ExceptionGroup) as caught:
        await goes(store, body)
    [error] = caught.value.exceptions
    assert isinstance(error, ValueError)
    assert "'name' twice" in str(error)
    assert (await store.run('run')).status == 'failed'


async def test_the_same_name_twice_one_after_the_other(store: Store) -> None:
    async def body() -> None:
        await wait_for(str, 'request-1')
        await wait_for(str)

    request = await pauses(store, body)
    await store.answer('run', request.request_id, 'yes')
    with pytest.raises(ValueError, match="'request-1' twice"):
        await goes(store, body)
    assert (await store.run('run')).status == 'failed'


async def test_without_a_name_in_a_task_of_its_own(store: Store) -> None:
    async def body() -> str:
        return await asyncio.create_task(wait_for(str))

    await refused(store, body, RuntimeError, 'give it a name')


@pytest.mark.parametrize('name', ['', 'a\0b', 'x' * 257, 'ü' * 129, '\ud800'])
async def test_a_name_that_cannot_be_stored(store: Store, name: str) -> None:
    await refused(store, asks(str, name), ValueError, '1 to 256 bytes')


@pytest.mark.parametrize('name', ['x' * 256, 'ü' * 128, ' ', 'a:b', '💥', "'; --", '0'])
async def test_any_other_name(store: Store, name: str) -> None:
    request = await pauses(store, asks(str, name))
    assert (request.name, request.request_id) == (name, f'{request.task}:{name}')
    await store.answer('run', request.request_id, 'yes')
    assert await goes(store, asks(str, name)) == "'yes'"


@pytest.mark.parametrize(
    ('timeout', 'error'),
    [
        (0, ValueError),
        (-1, ValueError),
        (float('nan'), ValueError),
        (float('inf'), ValueError),
        (1e300, ValueError),
        (timedelta(0), ValueError),
        (timedelta(seconds=-1), ValueError),
        (timedelta.max, ValueError),
        (True, TypeError),
        ('1', TypeError),
        (Decimal(1), TypeError),
    ],
)
async def test_bad_timeouts(store: Store, timeout: Any, error: type[Exception]) -> None:
    await refused(store, asks(str, timeout=timeout), error, 'timeout')


@pytest.mark.parametrize(
    ('options', 'match'),
    [
        ({'default': 'x'}, 'Give a timeout'),
        ({'default': None}, 'Give a timeout'),
        ({'name': 1}, 'name of a request'),
        ({'prompt': b'Why?'}, 'prompt must be a string'),
        ({'payload': object()}, 'payload cannot be made JSON'),
        ({'payload': {'lock': threading.Lock()}}, 'payload cannot be made JSON'),
    ],
)
async def test_other_bad_options(store: Store, options: dict[str, Any], match: str) -> None:
    await refused(store, asks(str, **options), TypeError, match)


async def test_a_payload_that_contains_itself(store: Store) -> None:
    payload: list[Any] = []
    payload.append(payload)
    await refused(store, asks(str, payload=payload), TypeError, 'payload cannot be made JSON')


async def test_what_the_request_says(store: Store) -> None:
    payload = {
        'at': date(2026, 1, 2),
        'nul': '\0',
        'big': 10**30,
        'model': Refund(amount=Decimal('1.10')),
    }
    before = datetime.now(tz=UTC)
    request = await pauses(
        store, asks(bool, 'ok', payload=payload, prompt='Really?', timeout=timedelta(hours=1))
    )
    assert (request.name, request.node, request.status) == ('ok', 'ask', 'open')
    assert request.prompt == 'Really?'
    assert request.payload == {
        'at': '2026-01-02',
        'nul': '\0',
        'big': 10**30,
        'model': {'amount': '1.10'},
    }
    assert request.schema == {'type': 'boolean'}
    assert request.deadline is not None
    assert timedelta(minutes=59) < request.deadline - before < timedelta(minutes=61)
    assert (await store.run('run')).wake_at == request.deadline


WRONG: tuple[Any, ...] = ('Raise', '', None, True, 'stay')


async def test_on_pause_is_raise_or_wait(store: Store) -> None:
    persistence = store.persistence('run')
    for wrong in WRONG:
        with pytest.raises(ValueError, match='on_pause'):
            await alone.run(persistence=persistence, on_pause=wrong)
        with pytest.raises(ValueError, match='on_pause'):
            await alone.resume(persistence, on_pause=wrong)
        with pytest.raises(ValueError, match='on_pause'):
            await graphkeep.resume(alone, persistence, on_pause=wrong)
    assert await store.runs() == []


def test_on_pause_of_run_sync_is_raise_or_wait() -> None:
    store = graphkeep.open_store('memory://')
    for wrong in WRONG:
        with pytest.raises(ValueError, match='on_pause'):
            alone.run_sync(persistence=store.persistence('run'), on_pause=wrong)


def test_run_sync_pauses_and_waits() -> None:
    # A store lives in one event loop: that of the call.
    body = asks(str, timeout=0.02, default='too late')
    url = f'memory://{uuid.uuid4().hex}'
    first, second = graphkeep.open_store(url), graphkeep.open_store(url)
    with pytest.raises(RunPausedError):
        alone.run_sync(
            state=Notes(), inputs=0, deps=Deps(body), persistence=first.persistence('run')
        )
    output = alone.run_sync(
        deps=Deps(body),
        persistence=second.persistence('run', if_exists='resume'),
        on_pause='wait',
    )
    assert output == "'too late'"
    for store in (first, second):
        asyncio.run(store.close())


# --- answers --------------------------------------------------------------------------------------


class Colour(enum.Enum):
    RED = 'red'
    TEN = 10


class Refund(BaseModel):
    amount: Decimal


class Inner(BaseModel):
    value: int = Field(alias='theValue')


class Outer(BaseModel):
    inner: Inner
    others: list[Inner] = []


class Cat(BaseModel):
    kind: Literal['cat'] = 'cat'
    lives: int


class Dog(BaseModel):
    kind: Literal['dog'] = 'dog'
    name: str


Pet = Annotated[Cat | Dog, Field(discriminator='kind')]


@dataclass
class Point:
    x: int
    y: float


UUID = uuid.UUID(int=7)


@pytest.mark.parametrize(
    ('type_', 'answer', 'value'),
    [
        (Decimal, '1.10', Decimal('1.10')),
        (Decimal, Decimal('1.10'), Decimal('1.10')),
        (datetime, '2026-01-02T03:04:05Z', datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)),
        (
            datetime,
            datetime(2026, 1, 2, 3, 4, 5, 6, tzinfo=UTC),
            datetime(2026, 1, 2, 3, 4, 5, 6, tzinfo=UTC),
        ),
        (timedelta, timedelta(days=1, microseconds=1), timedelta(days=1, microseconds=1)),
        (uuid.UUID, UUID, UUID),
        (Colour, Colour.TEN, Colour.TEN),
        (Colour, 'red', Colour.RED),
        (bool, True, True),
        (int, 1, 1),
        (int | bool, True, True),
        (int | bool, 1, 1),
        (int, 10**40, 10**40),
        (int, -(2**63) - 1, -(2**63) - 1),
        (float, 0.1, 0.1),
        (float, 1e300, 1e300),
        (str, 'a\0b', 'a\0b'),
        (str, '"\\\u2028 ü 💥', '"\\\u2028 ü 💥'),
        (str, '', ''),
        (bytes, 'abc', b'abc'),
        (None, None, None),
        (str | None, None, None),
        (Any, {'b': [1, None, 2.5], 'a': {}}, {'b': [1, None, 2.5], 'a': {}}),
        (Outer, {'inner': {'theValue': 1}}, Outer.model_validate({'inner': {'theValue': 1}})),
        (
            Outer,
            {'inner': {'theValue': 1}, 'others': [{'theValue': 2}]},
            Outer.model_validate({'inner': {'theValue': 1}, 'others': [{'theValue': 2}]}),
        ),
        (Pet, {'kind': 'dog', 'name': 'Rex'}, Dog(name='Rex')),
        (Pet, Cat(lives=9), Cat(lives=9)),
        (list[Pet], [Cat(lives=1), Dog(name='')], [Cat(lives=1), Dog(name='')]),
        (Point, Point(1, 2.5), Point(1, 2.5)),
        (tuple[int, str], (1, 'x'), (1, 'x')),
        (set[int], [3, 1], {1, 3}),
        (dict[int, date], {5: date(2026, 1, 2)}, {5: date(2026, 1, 2)}),
        (Literal['yes', 3], 3, 3),
    ],
)
async def test_answers_of_many_types(store: Store, type_: Any, answer: Any, value: Any) -> None:
    body = asks(type_)
    request = await pauses(store, body)
    answered = await store.answer('run', request.request_id, answer)
    # The same again is accepted.
    assert (
        await store.answer('run', request.request_id, answer)
    ).answered_at == answered.answered_at
    got: list[Any] = []

    async def noted() -> None:
        got.append(await body())

    await goes(store, noted)
    assert got == [value]
    assert type(got[0]) is type(value)


async def test_the_last_answer_is_kept_for_the_requests_after_it(store: Store) -> None:
    """The task holds what it has used: of a name, the same on every attempt."""

    async def body() -> list[Any]:
        first = await wait_for(Decimal)
        second = await wait_for(Outer, 'second', payload=first)
        return [first, second.inner.value, await wait_for(bool)]

    for answer in ('1.10', {'inner': {'theValue': 3}}, False):
        request = await pauses(store, body)
        await store.answer('run', request.request_id, answer, by='ann')
    assert await goes(store, body) == repr([Decimal('1.10'), 3, False])
    requests = await store.requests(run_id='run', status=())
    assert [r.name for r in requests] == ['request-1', 'second', 'request-2']
    assert all(r.status == 'answered' and r.closed_at is not None for r in requests)
    assert (await store.run('run')).answered == 3


def _even(value: int) -> int:
    if value % 2:
        raise ValueError(f'{value} is odd')
    return value


class Even(BaseModel):
    numbers: list[Annotated[int, AfterValidator(_even)]]


async def test_an_answer_that_does_not_fit_the_schema(store: Store) -> None:
    request = await pauses(store, asks(Even))
    where = 'run', request.request_id
    wrong: list[tuple[Any, str]] = [
        ('x', 'answer'),
        ({}, 'answer'),
        ({'numbers': [2, 'x']}, 'answer.numbers[1]'),
        ({'numbers': [float('nan')]}, 'answer'),
        ({'numbers': [threading.Lock()]}, 'answer'),
        (object(), 'answer'),
        ('\ud800', 'answer'),
    ]
    for answer, path in wrong:
        with pytest.raises(InvalidAnswerError) as caught:
            await store.answer(*where, answer)
        assert caught.value.path == path
        assert caught.value.request_id == request.request_id
    assert await store.requests() == [request]
    assert (await store.run('run')).answered == 0


async def test_an_answer_that_fits_the_schema_but_not_the_type(store: Store) -> None:
    """The request is open again and says why; a later good answer is used."""
    body = asks(Even, 'numbers')
    request = await pauses(store, body)
    for attempt in (1, 2):
        await store.answer('run', request.request_id, {'numbers': [2] * attempt + [3]})
        again = await pauses(store, body)
        assert (again.request_id, again.status) == (request.request_id, 'open')
        assert again.created_at == request.created_at
        assert (again.answer, again.answered_by, again.answered_at) == (None, None, None)
        assert again.error is not None
        assert again.error.startswith(f'answer.numbers[{attempt}]: ')
        assert ' is odd' in again.error
    await store.answer('run', request.request_id, {'numbers': [2, 4]}, by='bob')
    assert await goes(store, body) == repr(Even(numbers=[2, 4]))
    [used] = await store.requests(status=())
    assert (used.status, used.answered_by) == ('answered', 'bob')


async def test_who_answers_is_kept(store: Store) -> None:
    request = await pauses(store, asks())
    where = 'run', request.request_id
    for wrong in ('', 'x' * 513, 'a\0', '\ud800', 7):
        with pytest.raises((ValueError, TypeError)):
            await store.answer(*where, 'yes', by=wrong)  # pyright: ignore[reportArgumentType]
    answered = await store.answer(*where, 'yes', by='Ann 💥')
    assert (answered.answer, answered.answered_by) == ('yes', 'Ann 💥')
    # The same answer of somebody else is accepted, and changes nothing.
    assert (await store.answer(*where, 'yes', by='bob')).answered_by == 'Ann 💥'
    with pytest.raises(RequestClosedError, match='Ann 💥'):
        await store.answer(*where, 'no', by='bob')


async def test_answers_to_what_is_not_asked(store: Store) -> None:
    request = await pauses(store, asks(str, 'mine'))
    await pauses(store, asks(str, 'other'), run_id='other')
    with pytest.raises(RequestNotFoundError, match="no request '0:other'"):
        await store.answer('run', request.request_id.replace('mine', 'other'), 'yes')
    with pytest.raises(RequestNotFoundError):
        await store.answer('other', request.request_id, 'yes')
    with pytest.raises(RunNotFoundError):
        await store.answer('nowhere', request.request_id, 'yes')
    assert len(await store.requests()) == 2


async def test_answers_to_a_run_that_has_ended(store: Store) -> None:
    request = await pauses(store, asks())
    await store.answer('run', request.request_id, 'yes')
    await goes(store, asks())
    # The same answer again is a call whose reply was lost.
    assert (await store.answer('run', request.request_id, 'yes')).answer == 'yes'
    with pytest.raises(RequestClosedError, match='another answer'):
        await store.answer('run', request.request_id, 'no')


async def test_a_paused_run_that_is_cancelled(store: Store) -> None:
    request = await pauses(store, asks())
    await store.cancel('run')
    assert (await store.request('run', request.request_id)).status == 'closed'
    assert await store.requests() == []
    with pytest.raises(RequestClosedError, match='cancelled'):
        await store.answer('run', request.request_id, 'yes')
    with pytest.raises(graphkeep.RunStatusError):
        await alone.resume(store.persistence('run'), deps=Deps(asks()))


async def test_a_paused_run_that_is_deleted(store: Store) -> None:
    request = await pauses(store, asks())
    await store.delete('run')
    assert await store.requests(status=()) == []
    with pytest.raises(RunNotFoundError):
        await store.answer('run', request.request_id, 'yes')
    # A new run of this id asks for itself.
    again = await pauses(store, asks())
    assert again.created_at > request.created_at


async def test_a_fork_of_a_paused_run_asks_for_itself(store: Store) -> None:
    request = await pauses(store, asks())
    await store.fork('run', new_run_id='fork')
    other = await pauses(store, asks(), run_id='fork')
    assert other.request_id == request.request_id
    await store.answer('fork', other.request_id, 'forked')
    assert await goes(store, asks(), run_id='fork') == "'forked'"
    assert (await store.request('run', request.request_id)).status == 'open'


# --- deadlines ------------------------------------------------------------------------------------


async def _due(store: Store) -> None:
    async with asyncio.timeout(10):
        while not (await store.run('run')).due:
            await asyncio.sleep(0.005)


@pytest.mark.parametrize('default', [None, 'late', ...])
async def test_a_deadline_passes(store: Store, default: Any) -> None:
    body = asks(str, 'ok', timeout=0.01, default=default)
    request = await pauses(store, body)
    await _due(store)
    with pytest.raises(RequestClosedError, match='expired'):
        await store.answer('run', request.request_id, 'yes')
    assert await goes(store, body) == repr(default)
    assert (await store.run('run')).answered == 0


async def test_a_deadline_without_a_default(store: Store) -> None:
    body = asks(str, 'ok', timeout=0.01)
    request = await pauses(store, body)
    await _due(store)
    with pytest.raises(TimeoutError, match="'0:ok'") as caught:
        await goes(store, body)
    error = caught.value
    assert isinstance(error, graphkeep.RequestTimeoutError)
    assert (error.run_id, error.request_id) == ('run', request.request_id)
    assert error.deadline == request.deadline
    assert (await store.run('run')).status == 'failed'
    # What has passed stays so: with a default it goes on.
    assert await goes(store, asks(str, 'ok', timeout=0.01, default='x')) == "'x'"


async def test_an_answer_in_time_counts_however_late_it_is_used(store: Store) -> None:
    body = asks(str, 'ok', timeout=0.2, default='late')
    request = await pauses(store, body)
    await store.answer('run', request.request_id, 'yes')
    await asyncio.sleep(0.25)
    assert await goes(store, body) == "'yes'"


# --- beside others --------------------------------------------------------------------------------


async def test_watching_a_run_that_pauses(store: Store) -> None:
    """Its events come first; then the loop raises."""
    seen: list[Any] = []
    with pytest.raises(RunPausedError) as caught:
        async with beside.iter(
            state=Notes(), inputs=0, deps=Deps(asks()), persistence=store.persistence('run')
        ) as run:
            async for event in run:
                seen.append(event)  # noqa: PERF401 - those before the error count
    assert len(seen) >= 2
    assert len(caught.value.requests) == 1
    assert (await store.run('run')).status == 'paused'


async def test_a_caller_who_watches_waits_no_longer_than_it_wants(store: Store) -> None:
    """The run can be asked to go on again when it was answered, by the same object."""
    body = asks()
    async with alone.iter(
        state=Notes(), inputs=0, deps=Deps(body), persistence=store.persistence('run')
    ) as run:
        with pytest.raises(RunPausedError) as caught:
            async for _ in run:
                pass
        assert (await store.run('run')).status == 'paused'
        await store.answer('run', caught.value.requests[0].request_id, 'yes')
        async for _ in run:
            pass
        assert run.output == "'yes'"
    assert (await store.run('run')).status == 'done'


async def test_a_step_beside_one_that_waits_fails(store: Store) -> None:
    """The run has failed; the request stays open and can be answered, and a resume uses it."""

    async def fails() -> None:
        await asyncio.sleep(0.01)
        raise ValueError('no')

    deps = Deps(asks(), beside=fails)
    with pytest.raises(ValueError, match='no'):
        await beside.run(state=Notes(), inputs=0, deps=deps, persistence=store.persistence('run'))
    assert (await store.run('run')).status == 'failed'
    [request] = await store.requests(run_id='run')
    await store.answer('run', request.request_id, 'yes')
    assert (await store.run('run')).status == 'failed'
    deps.beside = None
    assert sorted(await beside.resume(store.persistence('run'), deps=deps)) == ["'yes'", 'worked']
    assert deps.ran == {'ask': 2, 'work': 2}


async def test_a_step_that_is_resumed_beside_one_that_still_waits(store: Store) -> None:
    async def fails() -> None:
        await asyncio.sleep(0.01)
        raise ValueError('no')

    deps = Deps(asks(), beside=fails)
    with pytest.raises(ValueError, match='no'):
        await beside.run(state=Notes(), inputs=0, deps=deps, persistence=store.persistence('run'))
    deps.beside = None
    with pytest.raises(RunPausedError) as caught:
        await beside.resume(store.persistence('run'), deps=deps)
    # Who waits is not asked again.
    assert deps.ran == {'ask': 1, 'work': 2}
    await store.answer('run', caught.value.requests[0].request_id, 'yes')
    assert sorted(await beside.resume(store.persistence('run'), deps=deps)) == ["'yes'", 'worked']


def _mapped(*, stream: bool) -> Any:
    g = _builder(list[str])

    @g.step
    async def ask(ctx: Ctx) -> str:
        ctx.deps.ran[f'ask {ctx.inputs}'] += 1
        if ctx.inputs < 3:
            return str(ctx.inputs) + await wait_for(str)
        return str(ctx.inputs)

    collect = g.join(reduce_list_append, initial_factory=list[str], node_id='collect')
    if stream:

        @g.stream
        async def items(ctx: Ctx) -> AsyncIterator[int]:
            ctx.deps.ran['items'] += 1
            for n in range(4):
                if n == 2:
                    assert await wait_for(str, 'more') == 'yes'
                yield n + 3

    else:

        @g.step
        async def items(ctx: Ctx) -> list[int]:
            return list(range(6))

    g.add(
        g.edge_from(g.start_node).to(items),
        g.edge_from(items).map().to(ask),
        g.edge_from(ask).to(collect),
        g.edge_from(collect).to(g.end_node),
    )
    return g.build()


async def test_tasks_that_wait_take_no_place(store: Store) -> None:
    """With one step at a time, all that can run are run."""
    kept = graphkeep.persist(_mapped(stream=False), max_parallel=1)
    deps = Deps(asks())
    with pytest.raises(RunPausedError) as caught:
        await kept.run(state=Notes(), inputs=0, deps=deps, persistence=store.persistence('run'))
    assert deps.ran == {f'ask {n}': 1 for n in range(6)}
    assert len(caught.value.requests) == 3
    for request in caught.value.requests:
        await store.answer('run', request.request_id, '!')
    output = await kept.resume(store.persistence('run'), deps=deps)
    assert sorted(output) == ['0!', '1!', '2!', '3', '4', '5']
    assert deps.ran == {f'ask {n}': 1 + (n < 3) for n in range(6)}


@pytest.mark.parametrize('most', [None, 2])
async def test_a_stream_that_waits_in_the_middle(store: Store, most: int | None) -> None:
    """What it has sent on is not sent again."""
    kept = graphkeep.persist(_mapped(stream=True), max_parallel=most)
    deps = Deps(asks())
    with pytest.raises(RunPausedError) as caught:
        await kept.run(state=Notes(), inputs=0, deps=deps, persistence=store.persistence('run'))
    [request] = caught.value.requests
    assert (request.name, request.node) == ('more', 'items')
    assert deps.ran == {'items': 1, 'ask 3': 1, 'ask 4': 1}
    await store.answer('run', request.request_id, 'yes')
    output = await kept.resume(store.persistence('run'), deps=deps)
    assert sorted(output) == ['3', '4', '5', '6']
    assert deps.ran == {'items': 2, **{f'ask {n}': 1 for n in range(3, 7)}}


async def test_a_pause_that_is_swallowed(store: Store) -> None:
    async def gathers() -> None:
        await asyncio.gather(wait_for(str, 'a'), wait_for(str, 'b'), return_exceptions=True)

    async def bare() -> str:
        try:
            return await wait_for(str, 'a')
        except BaseException:
            return 'swallowed'

    for body in (gathers, bare):
        await refused(store, body, RuntimeError, 'is open: something in it has caught')


async def test_an_error_beside_a_pause(store: Store) -> None:
    async def fails() -> None:
        raise ValueError('mine')

    async def body() -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(wait_for(str, 'a'))
            group.create_task(fails())

    with pytest.raises(ExceptionGroup) as caught:
        await goes(store, body)
    assert [repr(e) for e in caught.value.exceptions] == ["ValueError('mine')"]
    assert (await store.run('run')).status == 'failed'
    assert await store.requests(run_id='run', status=()) == []


async def test_an_error_after_an_answer_keeps_the_answer(store: Store) -> None:
    """The step that failed runs again, and is not asked again."""
    fails = True

    async def body() -> str:
        answer = await wait_for(str)
        if fails:
            raise ValueError('mine')
        return answer

    request = await pauses(store, body)
    await store.answer('run', request.request_id, 'yes')
    with pytest.raises(ValueError, match='mine'):
        await goes(store, body)
    fails = False
    assert await goes(store, body) == "'yes'"
    assert len(await store.requests(run_id='run', status=())) == 1


async def test_a_status_that_there_is_not_is_no_empty_list(store: Store) -> None:
    statuses: Any
    for statuses in ('bogus', ('open', 'bogus'), ['OPEN']):
        with pytest.raises(ValueError, match='there is no status'):
            await store.requests(status=statuses)
        with pytest.raises(ValueError, match='there is no status'):
            await store.runs(status=statuses)


async def test_the_type_is_given_itself(store: Store) -> None:
    class Answer(BaseModel):
        ok: bool = True

    wrong: Any
    for wrong in (Answer(), 'Answer'):

        async def body(wrong: Any = wrong) -> Any:
            return await wait_for(wrong)

        await refused(store, body, UnstorableTypeError, 'give the type of the answer itself')
