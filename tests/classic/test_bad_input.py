"""Bad input gets a clear error, and nothing is lost or half-written."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from datetime import timedelta
from decimal import Decimal
from typing import Any

import pytest
from pydantic import BaseModel
from pydantic_graph import BaseNode, End, GraphRunContext
from pydantic_graph.graph import Graph

import graphkeep
from graphkeep import (
    LossyStateError,
    Store,
    UnstorableTypeError,
)
from tests.classic.conftest import every_store, in_memory
from tests.classic.graphs import nodes

# --- what cannot be stored is refused when the graph is bound -------------------------------------


class Client:
    """Stands for an HTTP client, a database pool and the like."""


@dataclass
class WithLock:
    lock: threading.Lock


@dataclass
class Inner:
    client: Client


@dataclass
class WithClient:
    name: str
    inner: list[Inner] = field(default_factory=list[Inner])


@in_memory
@pytest.mark.parametrize(
    ('state', 'path'),
    [
        (WithLock(threading.Lock()), 'state.lock'),
        (WithClient('x'), 'state.inner[…].client'),
    ],
)
@pytest.mark.parametrize('how', ['run', 'initialize', 'iter_from_persistence', 'resume'])
async def test_a_lock_or_a_client_belongs_in_deps(
    store: Store, run_id: str, state: Any, path: str, how: str
) -> None:
    class Base(BaseNode[type(state), None, int]):
        pass

    @dataclass
    class Node(Base):
        async def run(self, ctx: GraphRunContext[Any]) -> End[int]:
            raise AssertionError('it must not run')

    graph: Graph[Any, None, int] = Graph(nodes=(Node,), name='graph')
    persistence = store.persistence(run_id)

    with pytest.raises(UnstorableTypeError, match='deps') as error:
        if how == 'run':
            await graph.run(Node(), state=state, persistence=persistence)
        elif how == 'initialize':
            await graph.initialize(Node(), persistence, state=state)
        elif how == 'resume':
            await graphkeep.resume(graph, persistence, start=Node(), state=state)
        else:
            async with graph.iter_from_persistence(persistence):
                pass

    assert error.value.path == path
    assert isinstance(error.value, TypeError)
    assert await store.runs() == []


async def test_a_client_in_the_output(store: Store, run_id: str) -> None:
    @dataclass
    class Node(BaseNode[None, None, Client]):
        async def run(self, ctx: GraphRunContext[None]) -> End[Client]:
            raise AssertionError('it must not run')

    with pytest.raises(UnstorableTypeError, match='deps') as error:
        await Graph(nodes=(Node,)).run(Node(), persistence=store.persistence(run_id))

    assert error.value.path == 'output'
    assert await store.runs() == []


# --- what would change is refused before anything is written --------------------------------------


class Animal(BaseModel):
    name: str


class Cat(Animal):
    lives: int


class Cage(BaseModel):
    """Its fields have one trap each."""

    any: Any = None
    animal: Animal | None = None
    number: int | float | bool | None = None
    decimal: Decimal | None = None
    raw: bytes = b''
    text: str = ''
    ratio: float | None = None
    mapping: dict[str, Any] = {}


class BigCage(Cage):
    pass


@dataclass
class Put(BaseNode[Cage, Any, Any]):
    """Puts what `deps` holds into the state, or ends with it."""

    where: str = 'any'

    async def run(self, ctx: GraphRunContext[Cage, Any]) -> Put | End[Any]:
        if self.where == 'end':
            return End(ctx.deps)
        if self.where == 'node':
            return Put(ctx.deps)
        if self.where == 'done':
            return End('done')
        setattr(ctx.state, self.where, ctx.deps)
        return Put('done')


cages = Graph[Cage, Any, Any](nodes=(Put,), name='cages')


LOSSY = [
    ('any', (1, 2), 'state.any'),
    ('any', {1: 'a'}, 'state.any'),
    ('any', timedelta(seconds=1), 'state.any'),
    ('any', {'deep': [0, {1, 2}]}, "state.any['deep'][1]"),
    ('any', float('nan'), 'state.any'),
    ('any', object(), 'state.any'),
    ('any', Client(), 'state.any'),
    ('any', threading.Lock(), 'state.any'),
    ('animal', Cat(name='Tom', lives=9), 'state.animal'),
    ('mapping', {'x': b'bytes'}, "state.mapping['x']"),
    ('mapping', {1: 'not a string'}, 'state.mapping'),
    ('text', 5, 'state.text'),
    ('text', '\ud83d\ude00', 'state.text'),
    ('ratio', 'high', 'state.ratio'),
    ('end', {1, 2}, 'output'),
    ('end', object(), 'output'),
    ('node', 5, 'Put.where'),
]


@in_memory
@pytest.mark.parametrize(
    ('where', 'value', 'path'), LOSSY, ids=[f'{where}={value!r:.20}' for where, value, _ in LOSSY]
)
async def test_what_would_not_come_back_is_refused(
    store: Store, run_id: str, where: str, value: Any, path: str
) -> None:
    persistence = store.persistence(run_id)

    with pytest.raises(LossyStateError, match='Nothing was written') as error:
        await cages.run(Put(where), state=Cage(), deps=value, persistence=persistence)

    assert error.value.path.startswith(path)
    assert isinstance(error.value, ValueError)
    run = await store.run(run_id)
    assert (run.status, run.seq) == ('failed', 1)
    assert run.error is not None
    assert (run.error['type'], run.error['node']) == ('graphkeep.errors.LossyStateError', 'Put')
    assert nodes(await persistence.load_all()) == ['Put error']
    # The state is the one from before the step, and the step can run again.
    good: dict[str, Any] = {'animal': Animal(name='x'), 'mapping': {'x': 1}, 'ratio': 1.5}
    await graphkeep.resume(cages, persistence, deps=good.get(where, 'done'))
    assert (await store.run(run_id)).status == 'done'


@in_memory
@pytest.mark.parametrize(
    'state',
    [
        Cage(any=(1,)),
        BigCage(),
        Cage.model_construct(text=5),
        None,
        {'any': None},
    ],
)
async def test_a_first_state_that_would_not_come_back(
    store: Store, run_id: str, state: Any
) -> None:
    for start in (
        lambda p: cages.run(Put(), state=state, persistence=p),
        lambda p: cages.initialize(Put(), p, state=state),
    ):
        with pytest.raises(LossyStateError) as error:
            await start(store.persistence(run_id))
        assert error.value.path.startswith('state')
    assert await store.runs() == []


async def test_a_subclass_of_the_state_is_named(store: Store, run_id: str) -> None:
    with pytest.raises(LossyStateError, match=r'`BigCage`.*`Cage` is declared'):
        await cages.run(Put(), state=BigCage(), persistence=store.persistence(run_id))


async def test_a_first_node_that_would_not_come_back(store: Store, run_id: str) -> None:
    with pytest.raises(LossyStateError) as error:
        await cages.run(
            Put((1, 2)),  # type: ignore[arg-type]
            state=Cage(),
            persistence=store.persistence(run_id),
        )
    assert error.value.path.startswith('Put.where')
    assert await store.runs() == []


class Stubborn(BaseModel):
    value: Any = None

    def __repr__(self) -> str:
        raise RuntimeError('no repr')


async def test_a_value_that_cannot_even_be_shown(store: Store, run_id: str) -> None:
    with pytest.raises(LossyStateError):
        await cages.run(
            Put('any'),
            state=Cage(),
            deps=Stubborn(value=(1,)),
            persistence=store.persistence(run_id),
        )

    assert (await store.run(run_id)).status == 'failed'


# --- what is odd, and survives --------------------------------------------------------------------

NESTED: Any = 'bottom'
for _ in range(90):
    NESTED = [NESTED]

ODD = [
    ('text', 'a\0b'),
    ('text', '\0'),
    ('text', '\ud800'),
    ('text', 'lone \udfff and \ud800, then \U0001f600'),
    ('text', '\ude00\ud83d'),
    ('any', 'a\0b\ud800'),
    ('mapping', {'\0': 1, '\ud800': 2, '': 3, '"\\\n\u2028': 4}),
    ('any', 2**64),
    ('any', -(2**2000)),
    ('number', 10**400),
    ('number', True),
    ('number', 1.0),
    ('number', -0.0),
    ('decimal', Decimal('1.10')),
    ('ratio', 1e308),
    ('ratio', 5e-324),
    ('any', NESTED),
    ('raw', b'\xff\x00\xfe'),
    ('raw', bytes(range(256))),
    ('animal', Animal(name='a')),
]


@every_store
async def test_what_is_odd_survives(store: Store, run_id: str) -> None:
    for number, (where, value) in enumerate(ODD):
        persistence = store.persistence(f'{run_id}/{number}')
        await cages.run(Put(where), state=Cage(), deps=value, persistence=persistence)

        found = (await graphkeep.resume(cages, store.persistence(persistence.run_id))).state
        again = getattr(found, where)

        assert type(again) is type(value)
        assert again == value
        assert repr(again) == repr(value)
        history: Any = await persistence.load_all()
        assert getattr(history[-1].state, where) == value


@every_store
async def test_a_float_that_is_not_a_number_survives_where_a_float_is_declared(
    store: Store, run_id: str
) -> None:
    for value in (float('inf'), float('-inf'), float('nan')):
        persistence = store.persistence(f'{run_id}/{value}')
        await cages.run(Put('ratio'), state=Cage(), deps=value, persistence=persistence)
        found = (await graphkeep.resume(cages, persistence)).state
        assert repr(found.ratio) == repr(value)


async def test_very_deep_nesting_is_refused_or_survives(store: Store, run_id: str) -> None:
    """What cannot be loaded again must not be written."""
    for depth in (150, 250, 1_000, 10_000, 100_000):
        value: Any = 'bottom'
        for _ in range(depth):
            value = [value]
        handle = store.persistence(f'{run_id}/{depth}')
        try:
            await cages.run(Put('any'), state=Cage(), deps=value, persistence=handle)
        except LossyStateError as error:
            assert error.path.startswith('state.any')  # noqa: PT017
            assert (await store.run(handle.run_id)).status == 'failed'
            await graphkeep.resume(cages, handle, deps=None)
        else:
            assert depth < 10_000
            found: Any = (await graphkeep.resume(cages, handle)).state.any
            for _ in range(depth):
                (found,) = found
            assert found == 'bottom'


@every_store
async def test_a_state_of_twenty_megabytes(store: Store, run_id: str) -> None:
    text = 'äöü ' * 3_000_000
    assert len(text.encode()) > 20_000_000
    persistence = store.persistence(run_id)
    await cages.initialize(Put('any'), persistence, state=Cage(text=text))

    result = await graphkeep.resume(cages, store.persistence(run_id), deps='x')

    assert result.state.text == text
    snapshots = await store.snapshots(run_id)
    assert sum(len(s.data) for s in snapshots[1:]) < 1000
    assert (await graphkeep.resume(cages, store.persistence(run_id))).state.text == text
