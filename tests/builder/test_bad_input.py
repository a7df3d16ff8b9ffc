"""What is given that is of the wrong kind is refused at once, with what to do instead."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic_graph import GraphBuilder, StepContext, reduce_list_append

import graphkeep
from graphkeep import GraphChangedError, Store
from tests.classic.conftest import on_sqlite


def builder(name: str = 'numbers') -> Any:
    """A map of `work` over its inputs, joined by `all`; an item 13 raises."""
    g = GraphBuilder(name=name, input_type=list[int], output_type=list[int], auto_instrument=False)

    @g.step
    async def work(ctx: StepContext[None, None, int]) -> int:
        if ctx.inputs == 13:
            raise ValueError('unlucky')
        return ctx.inputs

    all_ = g.join(reduce_list_append, initial_factory=list[int], node_id='all')
    g.add(
        g.edge_from(g.start_node).map(fork_id='each').to(work),
        g.edge_from(work).to(all_),
        g.edge_from(all_).to(g.end_node),
    )
    return g


def built() -> Any:
    return builder().build()


def kept() -> Any:
    return graphkeep.persist(built())


# --- what is persisted ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ('given', 'says'),
    [
        (None, r'takes the graph that GraphBuilder\.build\(\) gives; got None \(NoneType\)'),
        ('numbers', r"got 'numbers' \(str\)"),
        ([1], r'got \[1\] \(list\)'),
        (builder(), r'got a GraphBuilder: build it first, .*persist\(builder\.build\(\)\)'),
        (kept(), r'got <PersistentGraph numbers>.*kept already: use it as it is'),
    ],
)
def test_only_a_built_graph_is_persisted(given: Any, says: str) -> None:
    with pytest.raises(TypeError, match=says):
        graphkeep.persist(given)


def test_a_graph_of_1x_is_not_persisted() -> None:
    pytest.importorskip('pydantic_graph.persistence')
    from tests.classic.graphs import orders

    with pytest.raises(TypeError, match=r'1\.x.*graph\.run\(node, persistence=store\.persistence'):
        graphkeep.persist(orders)  # pyright: ignore[reportArgumentType]


@pytest.mark.parametrize(
    ('options', 'error', 'says'),
    [
        ({'max_parallel': 1.5}, TypeError, 'max_parallel must be a whole number.*got 1.5'),
        ({'max_parallel': True}, TypeError, 'max_parallel must be a whole number.*got True'),
        ({'max_parallel': '3'}, TypeError, "max_parallel must be a whole number.*got '3'"),
        ({'verify': 'never'}, ValueError, "verify must be 'changed' or 'always', got 'never'"),
        ({'aliases': ['work']}, TypeError, r"aliases=…\) must be a mapping.*got \['work'\]"),
        ({'types': 'work'}, TypeError, r'types=…\) must be a mapping'),
        ({'joins': {int: int}}, TypeError, r"joins=…\) goes by names.*got the key <class 'int'>"),
        ({'namespace': [int]}, TypeError, r'namespace=…\) must be a mapping'),
        (
            {'aliases': {'work': 'all'}},
            ValueError,
            r"maps 'work', a step, to 'all', a join: what waits at one cannot",
        ),
        ({'aliases': {'all': 'work'}}, ValueError, r"maps 'all', a join, to 'work', a step"),
        ({'aliases': {'old': '__end__'}}, ValueError, r"maps 'old' to '__end__', the end of the"),
    ],
)
def test_options_of_the_wrong_kind(options: Any, error: type[Exception], says: str) -> None:
    with pytest.raises(error, match=says):
        graphkeep.persist(built(), **options)


async def test_an_old_name_is_mapped_to_a_node_of_its_kind(store: Store, run_id: str) -> None:
    """The graph does not know what it was any more; the stored run does."""
    persistence = store.persistence(run_id)
    with pytest.raises(ValueError, match='unlucky'):
        await kept().run(inputs=[1, 13], persistence=persistence)
    other = GraphBuilder(input_type=list[int], output_type=list[int], auto_instrument=False)

    @other.step
    async def fresh(ctx: StepContext[None, None, int]) -> int:
        return ctx.inputs

    total = other.join(reduce_list_append, initial_factory=list[int], node_id='total')
    other.add(
        other.edge_from(other.start_node).map(fork_id='each').to(fresh),
        other.edge_from(fresh).to(total),
        other.edge_from(total).to(other.end_node),
    )
    before = await store.run(run_id)
    graph: Any = other.build()
    for aliases, says in (
        ({'work': 'total', 'all': 'total'}, r"step 'work', which .*maps to a join\. Map it to a s"),
        (
            {'work': 'fresh', 'all': 'each'},
            r"join 'all', which .*maps to a fork\. Map it to a join",
        ),
    ):
        with pytest.raises(GraphChangedError, match=says) as caught:
            await graphkeep.persist(graph, aliases=aliases).resume(store.persistence(run_id))
        assert repr(run_id) in str(caught.value)
        assert await store.run(run_id) == before
    again = graphkeep.persist(graph, aliases={'work': 'fresh', 'all': 'total'})
    assert await again.resume(store.persistence(run_id)) == [1, 13]


# --- where a run is kept --------------------------------------------------------------------------


async def test_persistence_is_a_handle_and_nothing_else(store: Store) -> None:
    graph = kept()

    async def watch(**options: Any) -> None:
        async with graph.iter(inputs=[1], **options):
            raise AssertionError

    async def watch_resumed(persistence: Any) -> None:
        async with graph.iter_resumed(persistence):
            raise AssertionError

    resume: Any = graphkeep.resume
    for given, says in (
        ('order-42', r"handle of a run, store\.persistence\('order-42'\); got 'order-42' \(str\)"),
        (store, r'store\.persistence\(run_id\); got <.*, a store, which does not say which run'),
        (store.persistence, r'store\.persistence\(run_id\); got <bound method'),
        (7, r'got 7 \(int\)'),
    ):
        for use in (
            lambda: graph.run(inputs=[1], persistence=given),  # noqa: B023
            lambda: watch(persistence=given),  # noqa: B023
            lambda: graph.resume(given),  # noqa: B023
            lambda: watch_resumed(given),  # noqa: B023
            lambda: resume(graph, given),  # noqa: B023
        ):
            with pytest.raises(TypeError, match=says):
                await use()
    for use in (graph.resume, watch_resumed, lambda p: resume(graph, p)):
        with pytest.raises(TypeError, match=r'got None \(NoneType\)'):
            await use(None)
    assert await store.runs() == []


def test_run_sync_takes_a_handle_too() -> None:
    with pytest.raises(TypeError, match=r"store\.persistence\('order-42'\)"):
        kept().run_sync(inputs=[1], persistence='order-42')


def test_a_handle_refuses_another_verify() -> None:
    store = graphkeep.open_store('memory://')
    with pytest.raises(ValueError, match="verify must be 'changed' or 'always'"):
        store.persistence('run', verify='never')  # pyright: ignore[reportArgumentType]


# --- what is resumed and recovered ----------------------------------------------------------------

UNRESUMABLE = [
    (built(), r'a GraphBuilder graph.*graphkeep\.persist\(graph\)'),
    (builder(), r'a GraphBuilder: give graphkeep\.persist\(builder\.build\(\)\)'),
    (None, r'None \(NoneType\): give what graphkeep\.persist\(\) gave'),
    ('numbers', r"'numbers' \(str\)"),
]


@pytest.mark.parametrize(('given', 'says'), UNRESUMABLE)
async def test_only_a_kept_graph_is_resumed(
    given: Any, says: str, store: Store, run_id: str
) -> None:
    resume: Any = graphkeep.resume
    with pytest.raises(TypeError, match=rf'graphkeep\.resume\(\) got {says}'):
        await resume(given, store.persistence(run_id))


@on_sqlite
@pytest.mark.parametrize(('given', 'says'), UNRESUMABLE)
async def test_recover_looks_at_its_graphs_before_anything_else(
    given: Any, says: str, store: Store, run_id: str
) -> None:
    """Also while there is nothing to recover: when it is written, and not when it is needed."""
    recover: Any = graphkeep.recover
    graphs = {'kept': kept(), 'numbers': given}
    with pytest.raises(TypeError, match=rf"recover\(…, \{{'numbers': …\}}\) got {says}"):
        await recover(store, graphs)
    with pytest.raises(ValueError, match='unlucky'):
        await kept().run(inputs=[13], persistence=store.persistence(run_id))
    fork = await store.fork(run_id, new_run_id=f'{run_id}-2')
    with pytest.raises(TypeError, match="'numbers': …"):
        await recover(store, graphs, ready=True)
    assert await store.run(fork.run_id) == fork, 'nothing was claimed'


@pytest.mark.parametrize(
    ('graphs', 'options', 'error', 'says'),
    [
        ({3: kept()}, {}, TypeError, 'by their names, got the key 3'),
        ({None: kept()}, {}, TypeError, 'by their names, got the key None'),
        (kept(), {}, TypeError, 'graphs must be a mapping'),
        ({}, {'concurrency': 0}, ValueError, 'concurrency must be at least 1, got 0'),
        ({}, {'concurrency': 1.5}, TypeError, 'concurrency must be a whole number.*got 1.5'),
        ({}, {'concurrency': True}, TypeError, 'concurrency must be a whole number.*got True'),
    ],
)
async def test_recover_refuses_what_it_cannot_use(
    graphs: Any, options: Any, error: type[Exception], says: str, store: Store
) -> None:
    with pytest.raises(error, match=says):
        await graphkeep.recover(store, graphs, **options)


async def test_recover_needs_a_store(store: Store) -> None:
    recover: Any = graphkeep.recover
    with pytest.raises(TypeError, match=r"the store of the runs, open_store\(…\), got 'memory://'"):
        await recover('memory://', {})
    with pytest.raises(TypeError, match='limit must be a whole number'):
        await store.runs(limit=1.5)  # pyright: ignore[reportArgumentType]


# --- which item of a map it was -------------------------------------------------------------------


async def test_an_error_says_which_item_of_a_map_it_was(store: Store, run_id: str) -> None:
    with pytest.raises(ValueError, match='unlucky') as caught:
        await kept().run(inputs=[1, 2, 13, 4], persistence=store.persistence(run_id))
    (note,) = caught.value.__notes__
    assert note.startswith("In step 'work', branch 2 of 'each'; task key ")
    assert run_id in note
    stored = (await store.run(run_id)).error
    assert stored is not None
    assert note in stored['traceback']
    assert stored['message'] == 'unlucky'


async def test_the_same_error_is_told_once_and_a_frozen_one_not_at_all() -> None:
    class FrozenError(Exception):
        def __setattr__(self, name: str, value: Any) -> None:
            if name == '__notes__':
                raise AttributeError(name)
            super().__setattr__(name, value)

    once, frozen = ValueError('again'), FrozenError('frozen')

    def of(error: Exception) -> Any:
        g = GraphBuilder(input_type=list[int], output_type=int, auto_instrument=False)

        @g.step
        async def work(ctx: StepContext[None, None, int]) -> int:
            raise error

        g.add(
            g.edge_from(g.start_node).map(fork_id='each').to(work),
            g.edge_from(work).to(g.end_node),
        )
        return graphkeep.persist(g.build())

    store = graphkeep.open_store('memory://')
    with pytest.raises(ValueError, match='again'):
        await of(once).run(inputs=[1], persistence=store.persistence('run'))
    with pytest.raises(ValueError, match='again'):
        await of(once).resume(store.persistence('run'))
    assert len(once.__notes__) == 1
    with pytest.raises(FrozenError):
        await of(frozen).run(inputs=[1], persistence=store.persistence('frozen'))


async def test_an_error_outside_of_forks_has_no_note() -> None:
    g = GraphBuilder(input_type=int, output_type=int, auto_instrument=False)

    @g.step
    async def alone(ctx: StepContext[None, None, int]) -> int:
        raise ValueError('alone')

    g.add(g.edge_from(g.start_node).to(alone), g.edge_from(alone).to(g.end_node))
    with pytest.raises(ValueError, match='alone') as caught:
        await graphkeep.persist(g.build()).run(inputs=1)
    assert not hasattr(caught.value, '__notes__')
