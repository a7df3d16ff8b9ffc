"""Names of runs, graphs and labels, hostile ones too; and what is stored of an error."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic_graph.graph import Graph

import graphkeep
from graphkeep import (
    Store,
)
from tests.classic.conftest import every_store
from tests.classic.graphs import Deps, Order, Pick, fails, nodes, order_tea, orders

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
        await order_tea(store, run_id, deps=deps)
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
        await order_tea(store, run_id, deps=deps)

    assert (await store.run(run_id)).status == 'failed'
