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
    DamagedRunError,
    FormatVersionError,
    GraphChangedError,
    LossyStateError,
    Store,
    UnstorableTypeError,
)
from graphkeep.stores.memory import MemoryStore
from graphkeep.stores.sqlite import SQLiteStore
from tests.classic.conftest import every_store, in_memory
from tests.classic.graphs import Deps, Order, Pay, Pick, fails, nodes, orders, rows

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


# --- names ----------------------------------------------------------------------------------------

HOSTILE = [
    "'; DROP TABLE graphkeep_runs; --",
    '"quoted"',
    '{}',
    '{tag}',
    '%s %(x)s $1 :x ?',
    'line\nbreak\r\ttab',
    '../../etc/passwd',
    ' ',
    '*',
    'run:log:requests',
    'ä' * 256,
    '\u202e\u200b\U0001f600',
    'a' * 512,
    '\x7f\x1b[31m',
]


@every_store
async def test_a_hostile_run_id_is_a_name_like_any_other(store: Store, run_id: str) -> None:
    for name in HOSTILE:
        label = {'hostile label': name, name[:200]: run_id}
        # Postgres keeps the runs of a whole module: of the long ones, a part is this test's own.
        named = f'{name[: -len(run_id)]}{run_id}' if name == 'a' * 512 else name
        handle = store.persistence(named, graph=name, labels=label)
        await orders.initialize(Pick('tea'), handle, state=Order())

        assert (await graphkeep.resume(orders, store.persistence(named))).output == 300
        run = await store.run(named)
        assert (run.run_id, run.graph, run.labels) == (named, name, label)
        assert [r.run_id for r in await store.runs(labels=label)] == [named]
        assert [r.run_id for r in await store.runs(graph=name, labels=label)] == [named]
        assert nodes(await history(store, named))[-1] == 'end'
        await store.delete(named)


async def history(store: Store, run_id: str) -> Any:
    persistence = store.persistence(run_id)
    persistence.set_graph_types(orders)
    return await persistence.load_all()


@pytest.mark.parametrize('name', ['', 'a' * 513, 'ä' * 257, 'a\0b', '\ud800'])
def test_a_name_that_cannot_be_stored(store: Store, name: str) -> None:
    with pytest.raises(ValueError, match='run_id'):
        store.persistence(name)
    with pytest.raises(ValueError, match='graph'):
        store.persistence('run', graph=name)
    with pytest.raises(ValueError, match='label'):
        store.persistence('run', labels={name: 'x'})
    if name:
        with pytest.raises(ValueError, match='label'):
            store.persistence('run', labels={'x': name})


def test_a_name_that_is_no_string(store: Store) -> None:
    for wrong in (None, 5, b'run'):
        with pytest.raises(TypeError, match='run_id'):
            store.persistence(wrong)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match='graph'):
        store.persistence('run', graph=5)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match='label'):
        store.persistence('run', labels={'x': 5})  # type: ignore[dict-item]


async def test_the_name_of_the_graph(store: Store, run_id: str) -> None:
    """The handle's, else the graph's own, else the variable that holds it, as upstream finds it."""
    some_graph = Graph[Order, Deps | None, int](nodes=orders.get_nodes())
    await some_graph.run(Pick('a'), state=Order(), persistence=store.persistence(f'{run_id}/1'))
    handle = store.persistence(f'{run_id}/2', graph='given')
    await some_graph.run(Pick('a'), state=Order(), persistence=handle)
    resumed_graph = Graph[Order, Deps | None, int](nodes=orders.get_nodes())
    await graphkeep.resume(
        resumed_graph, store.persistence(f'{run_id}/3'), start=Pick('a'), state=Order()
    )
    await Graph[Order, Deps | None, int](nodes=orders.get_nodes()).run(
        Pick('a'), state=Order(), persistence=store.persistence(f'{run_id}/4')
    )

    names = [(await store.run(f'{run_id}/{n}')).graph for n in (1, 2, 3, 4)]
    assert names == ['some_graph', 'given', 'resumed_graph', None]


async def test_a_graph_with_a_name_that_cannot_be_stored(store: Store, run_id: str) -> None:
    graph = Graph[Order, Deps | None, int](nodes=orders.get_nodes(), name='a\0b')

    with pytest.raises(ValueError, match='graph'):
        await graph.run(Pick('a'), state=Order(), persistence=store.persistence(run_id))
    assert await store.runs() == []


async def test_labels_are_those_of_the_start(store: Store, run_id: str) -> None:
    labels = {'customer': 'c1'}
    handle = store.persistence(run_id, labels=labels)
    labels['customer'] = 'changed'
    await orders.initialize(Pick('a'), handle, state=Order())

    await graphkeep.resume(orders, store.persistence(run_id, labels={'other': 'x'}))

    assert (await store.run(run_id)).labels == {'customer': 'c1'}


# --- the error of a failed run --------------------------------------------------------------------


class UnprintableError(Exception):
    def __str__(self) -> str:
        raise RuntimeError('no')

    __repr__ = __str__


class ChattyError(Exception):
    def __str__(self) -> str:
        return 'x' * 1_000_000


async def failed_with(store: Store, run_id: str, error: Exception) -> Any:
    deps = Deps(hooks={'Price': fails(error)})
    with pytest.raises(type(error)) as raised:
        await orders.run(
            Pick('tea'), state=Order(), deps=deps, persistence=store.persistence(run_id)
        )
    assert raised.value is error
    run = await store.run(run_id)
    assert run.status == 'failed'
    assert (await store.snapshots(run_id))[-1].error == run.error
    return run.error


@every_store
async def test_what_is_stored_of_an_error(store: Store, run_id: str) -> None:
    error = ValueError('no price')
    error.__cause__ = KeyError('tea')

    stored = await failed_with(store, run_id, error)

    assert stored.keys() == {'type', 'message', 'node', 'traceback'}
    assert (stored['type'], stored['message']) == ('builtins.ValueError', 'no price')
    assert stored['node'] == 'Price'
    assert 'raise left.pop()' in stored['traceback']
    assert "KeyError: 'tea'" in stored['traceback']
    assert stored['traceback'].rstrip().endswith('ValueError: no price')


ERRORS = [
    UnprintableError(),
    ChattyError(),
    ValueError('\0 and \ud800 and \U0001f600'),
    ValueError(),
    ValueError(b'\xff', {'x': object()}),
    ExceptionGroup('many', [ValueError('a'), ExceptionGroup('more', [KeyError('b')])]),
    type('Ünäme', (Exception,), {})('odd class'),
    type('Local', (Exception,), {'__module__': None})('odd module'),
]


@every_store
async def test_any_exception_can_be_stored(store: Store, run_id: str) -> None:
    for number, error in enumerate(ERRORS):
        name = f'{run_id}/{number}'
        stored = await failed_with(store, name, error)

        assert type(error).__qualname__ in stored['type']
        assert len(stored['message']) <= 4_000
        assert len(stored['traceback']) <= 8_000
        assert (await graphkeep.resume(orders, store.persistence(name))).output == 300
        error.__traceback__ = None


async def test_an_endless_recursion_is_an_error_like_any_other(store: Store, run_id: str) -> None:
    async def recurse(ctx: Any, node: Any) -> None:
        await recurse(ctx, node)

    deps = Deps(hooks={'Price': recurse})
    with pytest.raises(RecursionError):
        await orders.run(
            Pick('tea'), state=Order(), deps=deps, persistence=store.persistence(run_id)
        )

    assert (await store.run(run_id)).status == 'failed'


# --- damage ---------------------------------------------------------------------------------------


async def damage(store: Store, run_id: str, seq: int, data: bytes | None) -> None:
    """Write other bytes into a stored snapshot, or remove it."""
    if isinstance(store, MemoryStore):
        from dataclasses import replace

        row = store._data.rows[run_id]
        row.snapshots = [
            s if s.seq != seq else replace(s, data=data or b'')
            for s in row.snapshots
            if s.seq != seq or data is not None
        ]
        return
    assert isinstance(store, SQLiteStore)
    import sqlite3

    with sqlite3.connect(store.path) as connection:
        key = (run_id, seq)
        if data is None:
            sql = 'DELETE FROM graphkeep_snapshots WHERE run_id = ? AND seq = ?'
            changed = connection.execute(sql, key)
        else:
            sql = (
                'UPDATE graphkeep_snapshots SET data = CAST(? AS TEXT) WHERE run_id = ? AND seq = ?'
            )
            changed = connection.execute(sql, (data, *key))
        assert changed.rowcount == 1
    connection.close()


async def two_runs(store: Store, run_id: str, *, long: bool = False) -> tuple[str, str]:
    """Two runs, left after two nodes: of full snapshots, or of one and two deltas if `long`."""
    names = f'{run_id}/bad', f'{run_id}/good'
    for name in names:
        state = Order(['x' * 800] if long else [])
        persistence = store.persistence(name)
        async with orders.iter(Pick('tea'), state=state, persistence=persistence) as run:
            await run.next()
            await run.next()
        kinds = [snapshot.kind for snapshot in await store.snapshots(name)]
        assert kinds == (['full', 'delta', 'delta'] if long else ['full', 'full', 'full'])
    return names


GARBAGE = [b'', b'{', b'null', b'[]', b'\xff\xfe', b'{"format":1}x', None]
NO_DOCUMENT = [
    *GARBAGE,
    b'{"format":1}',
    b'{"format":1,"state":{}',
    b'{"format":1,"state":{},"tasks":{"1":5},"joins":{},"next":{"task":2,"fork":1}}',
    b'{"format":1,"state":{},"tasks":{"1":{"node":5,"inputs":{}}},"joins":{},"next":{"task":2}}',
    b'{"format":1,"state":{},"tasks":{"1":{"node":"Pick"}},"joins":{},"next":{"task":2}}',
]


@pytest.mark.parametrize(
    ('seq', 'data', 'long'),
    [
        *((seq, data, True) for seq in (0, 1, 2) for data in GARBAGE),
        *((2, data, False) for data in NO_DOCUMENT),
    ],
)
async def test_a_damaged_snapshot_is_named_and_other_runs_go_on(
    store: Store, run_id: str, seq: int, data: bytes | None, long: bool
) -> None:
    bad, good = await two_runs(store, run_id, long=long)
    await damage(store, bad, seq, data)
    handle = store.persistence(bad)
    handle.set_graph_types(orders)

    for attempt in (
        lambda: graphkeep.resume(orders, handle),
        lambda: graphkeep.resume(orders, handle, start=Pick('x'), state=Order()),
        handle.load_next,
        handle.load_all,
    ):
        with pytest.raises(DamagedRunError, match=f'of run {bad!r} cannot be read') as error:
            await attempt()
        assert error.value.run_id == bad
        # Of a row that is missing, the next ones tell.
        assert error.value.seq == seq or (data is None and error.value.seq in (0, 1, 2))
        assert isinstance(error.value, ValueError)
    assert (await graphkeep.resume(orders, store.persistence(good))).output == 300
    assert {run.run_id for run in await store.runs()} == {bad, good}


@pytest.mark.parametrize('counters', [b'{}', b'{"task":"x"}', b'5'])
async def test_damaged_counters(store: Store, run_id: str, counters: bytes) -> None:
    bad, _ = await two_runs(store, run_id)
    document = await store.document(bad)
    document.next = counters
    await damage(store, bad, 2, document.to_json())

    with pytest.raises(DamagedRunError, match='counters') as error:
        await graphkeep.resume(orders, store.persistence(bad))
    assert error.value.seq == 2


async def test_an_earlier_snapshot_of_a_damaged_run_can_be_forked(
    store: Store, run_id: str
) -> None:
    bad, _ = await two_runs(store, run_id)
    await damage(store, bad, 2, b'{"format":1,"stat')

    with pytest.raises(DamagedRunError, match=r'Snapshot 2 of run.*store\.fork') as error:
        await graphkeep.resume(orders, store.persistence(bad))
    assert error.value.seq == 2
    await store.fork(bad, new_run_id=f'{bad}/fork', at=1)
    result = await graphkeep.resume(orders, store.persistence(f'{bad}/fork'))
    assert result.output == 300


async def test_a_snapshot_with_any_byte_flipped_never_gives_an_odd_error(run_id: str) -> None:
    """It is read as it is, or refused by name: no error but ours."""
    async with MemoryStore() as store:
        bad, _ = await two_runs(store, run_id)
        whole = (await store.snapshots(bad))[2].data
        handle = store.persistence(bad)
        handle.set_graph_types(orders)
        refused = 0
        for at in range(len(whole)):
            broken = bytearray(whole)
            broken[at] ^= 0x15
            await damage(store, bad, 2, bytes(broken))
            for call in (handle.load_next, handle.load_all):
                try:
                    await call()
                except (DamagedRunError, GraphChangedError, FormatVersionError) as error:
                    assert error.run_id == bad  # noqa: PT017
                    refused += 1
        assert refused > len(whole)


@pytest.mark.parametrize('seq', [0, 2])
async def test_a_newer_format_is_refused(store: Store, run_id: str, seq: int) -> None:
    newer, good = await two_runs(store, run_id, long=True)
    data = (await store.snapshots(newer))[seq].data.replace(b'"format":1', b'"format":2', 1)
    await damage(store, newer, seq, data)
    before = await rows(store, newer)
    handle = store.persistence(newer)
    handle.set_graph_types(orders)

    for attempt in (
        lambda: graphkeep.resume(orders, handle),
        handle.load_next,
        handle.load_all,
        lambda: store.fork(newer, new_run_id='fork'),
    ):
        with pytest.raises(FormatVersionError, match='Upgrade graphkeep') as error:
            await attempt()
        assert (error.value.run_id, error.value.found, error.value.known) == (newer, 2, 1)
    assert (await store.snapshots(newer), (await store.run(newer)).seq) == (before[1], 2)
    assert (await graphkeep.resume(orders, store.persistence(good))).output == 300


async def test_a_run_of_a_parallel_graph_is_not_run_as_a_graph_of_nodes(
    store: Store, run_id: str
) -> None:
    bad, _ = await two_runs(store, run_id)
    document = await store.document(bad)
    document.tasks['9'] = document.tasks['2']
    await damage(store, bad, 2, document.to_json())

    with pytest.raises(GraphChangedError, match='GraphBuilder'):
        await graphkeep.resume(orders, store.persistence(bad))


async def test_a_done_run_without_its_output(store: Store, run_id: str) -> None:
    handle = store.persistence(run_id)
    await orders.run(Pay(), state=Order(), persistence=handle)
    document = await store.document(run_id)
    document.output = None
    await damage(store, run_id, 1, document.to_json())

    with pytest.raises(DamagedRunError, match='no output'):
        await graphkeep.resume(orders, handle)
