"""`Worker`: a process, or a part of one, that carries runs on as they become ready."""

from __future__ import annotations

import asyncio
import logging
import random
import signal
from collections.abc import Generator, Mapping
from contextlib import aclosing, contextmanager, nullcontext, suppress
from time import monotonic
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from .errors import StoreUnavailableError
from .resuming import check_graphs, go_on, is_left, running_runs
from .runs import Run, check_count
from .shielding import to_its_end
from .store import Store

if TYPE_CHECKING:
    from .resuming import AnyGraph

__all__ = ('Worker',)

logger = logging.getLogger('graphkeep')

_DEAD = 5.0
"""Seconds between two looks for runs whose process of this machine is dead, lease or not."""
_FIRST_BACKOFF, _LAST_BACKOFF = 5.0, 300.0
"""Seconds for which a run is left alone that could not be continued and stays as it is: it does not
fit the graph, say. They double."""
_FETCH = 50
"""Most candidates beyond those that there is room for: of many workers, each takes others."""


class Worker:
    """Takes runs that are ready, interrupted or past a deadline, and carries each on to its end or
    its next pause. Any number of workers may share a store: each run is continued by one of them.

    ```python
    worker = graphkeep.Worker(store, {'orders': kept}, deps=deps)
    await worker.run()  # until SIGTERM or Ctrl-C
    ```

    Or inside of another program, without signals: `async with graphkeep.Worker(…):`.
    """

    def __init__(
        self,
        store: Store,
        graphs: Mapping[str, AnyGraph],
        *,
        deps: Any = None,
        concurrency: int = 8,
        poll: float = 1.0,
        grace: float = 10.0,
    ) -> None:
        """Describe a worker; it does nothing yet.

        Args:
            store: Where the runs are.
            graphs: The graphs, of 1.x or kept, by the name their runs are recorded under. Runs of
                other graphs are left alone.
            deps: The dependencies of the graphs.
            concurrency: Most runs that go on at once.
            poll: Seconds between two looks for runs. Where the database tells of answers they are
                heard at once.
            grace: Seconds that running steps have to end when the worker stops. After that they are
                cancelled, and run again elsewhere.

        Raises:
            TypeError: One of the graphs cannot be resumed; says which.
            ValueError: A number is not what it may be.
        """
        check_count(concurrency, 'concurrency')
        if not isinstance(store, Store):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise TypeError(
                f'Worker() needs the store of the runs, open_store(…), got {store!r:.80}'
            )
        check_graphs(graphs, 'Worker')
        if not poll > 0 or not grace >= 0:
            raise ValueError(f'poll must be above 0 and grace not below, got {poll} and {grace}')
        for name, graph in graphs.items():
            if graph.name is not None and graph.name not in graphs:
                logger.warning(
                    'the graph that this worker has as %r is named %r: only runs that are recorded '
                    'under %r are found',
                    name,
                    graph.name,
                    name,
                )
        self._store = store
        self._graphs = dict(graphs)
        self._deps = deps
        self._most = concurrency
        self._poll = poll
        self._grace = grace
        self._running: dict[str, asyncio.Task[None]] = {}
        self._refused: dict[str, tuple[float, float]] = {}
        """Runs that could not be continued: until when, and for how long, they are left alone."""
        self._looked_for_dead = 0.0
        self._stops = 0
        self._wake = asyncio.Event()
        self._stopping = asyncio.Event()
        self._background: asyncio.Task[None] | None = None
        self._has_worked = False

    def stop(self) -> None:
        """Take no more runs, and leave those that go on after their running step. Called twice,
        cancel these steps at once.
        """
        self._stops += 1
        self._stopping.set()
        self._wake.set()

    async def run(self, *, signals: bool = True) -> None:
        """Work until `stop` is called, or a SIGTERM or SIGINT comes.

        Whatever ends it, the runs that went on are left so that others can go on with them at once.
        A cancellation does not wait for the running steps.

        Args:
            signals: Handle SIGTERM and SIGINT meanwhile. Only in the main thread.

        Raises:
            RuntimeError: It has worked before.
        """
        if self._has_worked:
            raise RuntimeError('a Worker works once. Make a new one.')
        self._has_worked = True
        with self._signals() if signals else nullcontext():
            try:
                await self._work()
            except asyncio.CancelledError:
                self._stops = 2  # who cancels does not want to wait
                raise
            finally:
                ending = await to_its_end(self._leave(), bound=self._grace + self._store.retry)
                ending.unwrap()

    async def __aenter__(self) -> Self:
        await self._store.open()
        self._background = asyncio.create_task(self.run(signals=False), name='graphkeep-worker')
        self._background.add_done_callback(_tell)
        return self

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        tb: TracebackType | None,
    ) -> None:
        self.stop()
        background, self._background = self._background, None
        if background is not None:
            ending = await to_its_end(_joined(background), bound=self._grace + self._store.retry)
            ending.unwrap()

    # --- taking runs ------------------------------------------------------------------------------

    async def _work(self) -> None:
        with self._store.notices.listening(None) as heard:
            while not self._stops:
                more = False
                if len(self._running) < self._most:
                    try:
                        more = await self._look()
                    except StoreUnavailableError as e:
                        logger.warning('cannot look for runs just now: %s', e)
                if more and len(self._running) < self._most:
                    continue
                await self._pause(heard)

    async def _look(self) -> bool:
        """As `_take`, but for as long as nobody calls `stop`: the database may not answer."""
        look = asyncio.ensure_future(self._take())
        stopping = asyncio.ensure_future(self._stopping.wait())
        try:
            await asyncio.wait((look, stopping), return_when=asyncio.FIRST_COMPLETED)
        finally:
            stopping.cancel()
            look.cancel()
            await asyncio.wait((look, stopping))
        return False if look.cancelled() else look.result()

    async def _take(self) -> bool:
        """Go on with what there is room for; gives whether there is more."""
        room = self._most - len(self._running)
        self._forgive()
        wanted = room + len(self._running) + len(self._refused) + _FETCH
        names = tuple(self._graphs)
        found = await self._store.candidates(names, limit=wanted)
        if monotonic() - self._looked_for_dead >= _DEAD:
            self._looked_for_dead = monotonic()
            found += await self._dead()
        free = {run.run_id: run for run in found if self._is_free(run)}
        # Workers that look at the same moment see the same runs: each begins with others.
        chosen = list(free.values())
        random.shuffle(chosen)
        for run in chosen[:room]:
            self._start(run)
        return len(chosen) > room

    async def _dead(self) -> list[Run]:
        """Runs that were left before their lease has passed: by a process that is known to be dead,
        or by this one, while it could not reach the database.
        """
        found: list[Run] = []
        for name in self._graphs:
            async with aclosing(running_runs(self._store, name)) as runs:
                async for run in runs:
                    if len(found) >= self._most:
                        break
                    if run.run_id not in self._running and is_left(run):
                        found.append(run)
        return found

    def _is_free(self, run: Run) -> bool:
        if run.run_id in self._running or (run.status == 'running' and not is_left(run)):
            return False
        until, _ = self._refused.get(run.run_id, (0.0, 0.0))
        return until <= monotonic()

    def _start(self, run: Run) -> None:
        task = asyncio.get_running_loop().create_task(
            self._go_on(run), name=f'graphkeep-worker-{run.run_id!r}'
        )
        self._running[run.run_id] = task

    async def _go_on(self, run: Run) -> None:
        assert run.graph is not None
        run_id, name = run.run_id, run.graph
        logger.info('run %r: going on (it was %s)', run_id, run.status)
        try:
            ended = await go_on(
                self._store,
                name,
                self._graphs[name],
                run_id,
                deps=self._deps,
                stop=lambda: self._stops > 0,
            )
            if ended is not None and ended.error is None:
                logger.info('run %r: %s', run_id, 'paused' if ended.requests else 'done')
            if ended is not None and ended.error is not None:
                self._refuse(run_id)
            else:
                self._refused.pop(run_id, None)
        except BaseException as e:
            # A step that cancels itself, say: its run is ready again at once.
            self._refuse(run_id)
            if isinstance(e, (asyncio.CancelledError, KeyboardInterrupt, SystemExit)):
                raise
            logger.warning('run %r was continued and raised', run_id, exc_info=e)
        finally:
            del self._running[run_id]
            self._wake.set()

    def _refuse(self, run_id: str) -> None:
        """Leave a run alone for a while, and longer if it was left alone before."""
        _, before = self._refused.get(run_id, (0.0, 0.0))
        seconds = min(before * 2 or _FIRST_BACKOFF, _LAST_BACKOFF)
        self._refused[run_id] = monotonic() + seconds, seconds

    def _forgive(self) -> None:
        """Forget runs that could have been continued for as long as they were left alone: most have
        failed, and never come back.
        """
        now = monotonic()
        for run_id, (until, seconds) in list(self._refused.items()):
            if run_id not in self._running and until + seconds + self._poll < now:
                del self._refused[run_id]

    async def _pause(self, heard: asyncio.Event) -> None:
        """Wait until there is something to do, or it is time to look."""
        full = len(self._running) >= self._most
        waits = [asyncio.ensure_future(self._wake.wait())]
        if not full:
            waits.append(asyncio.ensure_future(heard.wait()))
        try:
            await asyncio.wait(
                waits,
                timeout=None if full else self._poll,
                return_when=asyncio.FIRST_COMPLETED,
            )
        finally:
            for wait in waits:
                wait.cancel()
        self._wake.clear()
        heard.clear()

    # --- stopping ---------------------------------------------------------------------------------

    async def _leave(self) -> None:
        """Let the running steps end, or cancel them when their time is over."""
        self._stops = self._stops or 1
        until = monotonic() + self._grace
        while self._running and self._stops < 2 and monotonic() < until:
            self._wake.clear()
            with suppress(TimeoutError):
                async with asyncio.timeout(until - monotonic()):
                    await self._wake.wait()
        tasks = tuple(self._running.values())
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)

    @contextmanager
    def _signals(self) -> Generator[None]:
        """While it works, the signals that end a process stop it."""
        loop = asyncio.get_running_loop()

        def stop(*_: object) -> None:
            loop.call_soon_threadsafe(self.stop)

        before: dict[signal.Signals, Any] = {}
        for number in (signal.SIGTERM, signal.SIGINT):
            before[number] = signal.getsignal(number)
            try:
                loop.add_signal_handler(number, self.stop)
            except NotImplementedError:
                # Windows: the handler runs between two instructions of the main thread.
                signal.signal(number, stop)
        try:
            yield
        finally:
            for number, handler in before.items():
                with suppress(NotImplementedError):
                    loop.remove_signal_handler(number)
                signal.signal(number, handler)


def _tell(background: asyncio.Task[None]) -> None:
    """Say at once when an embedded worker has ended with an error: its block may last for days."""
    if not background.cancelled() and (error := background.exception()) is not None:
        logger.error('a worker has ended: %s', error, exc_info=error)


async def _joined(task: asyncio.Task[None]) -> None:
    await task
