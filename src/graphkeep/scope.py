"""What a step can know and keep while it runs: which task it is, and side effects it must not
repeat.
"""

from __future__ import annotations

import asyncio
import inspect
import typing
from collections.abc import Awaitable, Callable, Coroutine, Generator
from contextlib import suppress
from contextvars import Context, ContextVar, Token
from dataclasses import dataclass
from datetime import timedelta
from types import TracebackType, coroutine
from typing import TYPE_CHECKING, Any, TypeVar, cast, overload

from .codec import Codec
from .parts import text_of
from .pausing import REQUIRED, Asking, Question, question

if TYPE_CHECKING:
    from collections.abc import Mapping

    from .journal import Journal
    from .requests import Request
    from .tasks import Task

__all__ = (
    'CurrentTask',
    'Scope',
    'current_task',
    'in_context',
    'once',
    'refuse_inside_once',
    'running_scope',
    'wait_for',
)

T = TypeVar('T')
D = TypeVar('D')


@dataclass(frozen=True, kw_only=True, slots=True)
class CurrentTask:
    """The task that is running."""

    run_id: str
    """The run it belongs to."""
    key: str
    """The same on every attempt, and no other task's: an idempotency key for the outside world."""
    attempt: int
    """1 for the first, one more for each time the run was claimed with this task pending."""
    node_id: str
    """The node or step."""


class Scope:
    """A running task, as `current_task` and `once` find it inside `with scope`."""

    __slots__ = (
        '_attempt',
        '_ended',
        '_journal',
        '_keep',
        '_known',
        '_own',
        '_shared',
        '_task',
        '_token',
        'asking',
        'last',
        'taken',
    )

    def __init__(
        self,
        journal: Journal,
        task: Task,
        *,
        keep: Callable[[str, bytes], Awaitable[None]],
        known: Mapping[str, Request],
    ) -> None:
        """Make a scope.

        Args:
            journal: Of the run.
            task: Which of its tasks runs.
            keep: Commits one more value, and returns when it is durable.
            known: The requests of the run by id, as far as they are known.
        """
        self.asking: Asking | None = None
        """What `wait_for` was called for, if it was called."""
        self.last: set[asyncio.Future[Any]] = set()
        """What else a pause of the step waits for."""
        self.taken: set[str] = set()
        """Names that this attempt uses up, of what may not be there twice."""
        self._known = known
        self._own: asyncio.Task[Any] | None = None
        self._ended = False
        self._journal = journal
        self._task = task
        self._attempt = journal.attempt(task.born)
        self._keep = keep
        self._shared: dict[str, _Shared] | None = None
        self._token: Token[Scope | None] | None = None

    def __enter__(self) -> None:
        """The task runs from now on, in this context."""
        self._ended = False
        self._own = asyncio.current_task()
        self._token = _current.set(self)

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        tb: TracebackType | None,
    ) -> None:
        self._ended = True
        if isinstance(exc, Exception):
            self._note(exc)
        token, self._token = self._token, None
        if token is not None:
            try:
                _current.reset(token)
            except ValueError:
                # A coroutine that is closed by the garbage collector ends in another context.
                pass

    def _note(self, error: Exception) -> None:
        """Say in an error which item of a map, or which branch, it was."""
        inside = [f'branch {fork.branch} of {fork.fork!r}' for fork in self._task.forks[1:]]
        if not inside:
            return
        task = self.task
        note = f'In step {task.node_id!r}, {", ".join(inside)}; task key {task.key!r}.'
        # Frozen exceptions take none, and one that is raised again need not say it twice.
        with suppress(Exception):
            if note not in getattr(error, '__notes__', ()):
                error.add_note(note)

    @property
    def task(self) -> CurrentTask:
        """The task, for the user."""
        return CurrentTask(
            run_id=self._journal.run_id,
            key=self._journal.key_of(self._task.id),
            attempt=self._attempt,
            node_id=self._task.node,
        )

    def wait_for(self, asks: Question) -> Any:
        """The answer to a question. Errors as for `Asking.answer`."""
        if self._ended:
            if self.asking is not None and self.asking.asked:
                raise asyncio.CancelledError  # the step has paused, and runs again from its start
            raise RuntimeError('wait_for() was called after its step had ended')
        if self.asking is None:
            self.asking = Asking(self._journal.run_id, self._task, self._known, own=self._own)
        return self.asking.answer(asks)

    def has_kept(self, name: str) -> bool:
        """Whether `once` has kept a value under a name, in this attempt or an earlier one."""
        return name in self._task.memo

    @property
    def is_pausing(self) -> bool:
        """Whether something in this attempt waits for an answer."""
        return self.asking is not None and bool(self.asking.asked)

    async def quiet(self) -> None:
        """Wait for what is under way and must not be thrown away: every `once`, and `last`."""
        while True:
            calls = [shared.task for shared in (self._shared or {}).values()]
            under_way = [task for task in (*calls, *self.last) if not task.done()]
            if not under_way:
                return
            await asyncio.wait(under_way)

    async def once(self, name: str, function: Callable[[], Any], type_: Any) -> Any:
        """The value of `function`, called unless an earlier attempt has kept its value."""
        codec = Codec[Any](type_, path=f'once({name!r})')
        if name in self._task.memo:
            return codec.decode(self._task.memo[name])
        if self._shared is None:
            self._shared = {}
        shared = self._shared.get(name)
        if shared is None:
            shared = self._shared[name] = _Shared(
                asyncio.ensure_future(self._call(name, function, codec))
            )
        shared.waiting += 1
        try:
            # Shielded: others may wait for the same value.
            return await asyncio.shield(shared.task)
        except asyncio.CancelledError:
            # What is under way when the step pauses is brought to its end, and kept.
            if shared.waiting == 1 and not shared.task.done() and not self.is_pausing:
                self._forget(name, shared)
                shared.task.cancel()
                await asyncio.wait((shared.task,))
            raise
        finally:
            shared.waiting -= 1
            if shared.task.done() and (shared.task.cancelled() or shared.task.exception()):
                self._forget(name, shared)

    def _forget(self, name: str, shared: _Shared) -> None:
        """The next call with this name is made anew."""
        if self._shared is not None and self._shared.get(name) is shared:
            del self._shared[name]

    async def _call(self, name: str, function: Callable[[], Any], codec: Codec[Any]) -> Any:
        token = _inside.set((self, name))
        try:
            value = function()
            if inspect.isawaitable(value):
                value = await value
        finally:
            _inside.reset(token)
        data = text_of(codec.encode(value).parts)
        await self._keep(name, data)
        # As a later attempt will see it.
        return codec.decode(data)


class _Shared:
    """A call that those who ask for the same name at the same time wait for."""

    __slots__ = ('task', 'waiting')

    def __init__(self, task: asyncio.Task[Any]) -> None:
        task.add_done_callback(_seen)
        self.task = task
        self.waiting = 0


_current: ContextVar[Scope | None] = ContextVar('graphkeep_task', default=None)
_inside: ContextVar[tuple[Scope, str] | None] = ContextVar('graphkeep_once', default=None)
"""The task and the name of the `once` whose function runs here."""


def current_task() -> CurrentTask:
    """The task that is running here.

    Raises:
        RuntimeError: Not called from a step or node of a kept run.
    """
    return running_scope('current_task()').task


async def once(
    name: str,
    function: Callable[[], Awaitable[T]] | Callable[[], T],
    *,
    type: Any = None,  # noqa: A002 - as pydantic-graph names its own
) -> T:
    """Call `function`, and keep its value: later attempts of the same task get it without calling.

    The value is committed before it is returned. A process that dies between the side effect and
    the commit calls again: give `current_task().key` to the other side as its idempotency key.

    Args:
        name: Names the value within the task; the same in every attempt. Calls at the same time
            with the same name share one.
        function: Takes no arguments; may be async. What it raises is not kept.
        type: The type of the value; by default the return annotation of `function`, else anything
            that JSON keeps as it is.

    Raises:
        RuntimeError: Not called from a step or node of a kept run, or inside of another `once`.
        LossyStateError: The value would not come back as it is. It is not kept.
    """
    if not isinstance(name, str) or not name:  # pyright: ignore[reportUnnecessaryIsInstance]
        raise ValueError(f'once() needs a name, got {name!r}')
    scope = running_scope('once()')
    refuse_inside_once(scope, f'once({name!r})', 'it would be kept before that')
    type_ = _returned(function) if type is None else type
    return cast('T', await scope.once(name, function, type_))


@overload
async def wait_for(
    type: type[T],
    name: str | None = None,
    *,
    payload: object = None,
    prompt: str | None = None,
    timeout: float | timedelta | None = None,
) -> T: ...


@overload
async def wait_for(
    type: type[T],
    name: str | None = None,
    *,
    payload: object = None,
    prompt: str | None = None,
    timeout: float | timedelta,
    default: D,
) -> T | D: ...


@overload
async def wait_for(
    type: Any,
    name: str | None = None,
    *,
    payload: object = None,
    prompt: str | None = None,
    timeout: float | timedelta | None = None,
    default: Any = ...,
) -> Any: ...


async def wait_for(
    type: Any,  # noqa: A002 - as pydantic-graph names its own
    name: str | None = None,
    *,
    payload: object = None,
    prompt: str | None = None,
    timeout: float | timedelta | None = None,
    default: Any = REQUIRED,
) -> Any:
    """Wait for an answer of a person or of another program, holding no process meanwhile.

    The first time, the request is committed and the step unwinds, with an exception that `except
    Exception` does not catch. When everything that it waits for has been answered, with
    `store.answer(run_id, request_id, value)`, the step runs again from its beginning, and this
    returns the answer. Side effects before it belong into `once`.

    Args:
        type: What the answer has to be; anything that pydantic validates. Its JSON schema is
            stored, and an answer has to fit it.
        name: Names the request within the step, the same on every attempt: 1 to 256 bytes. Without
            one, requests are numbered in the order of the calls.
        payload: What whoever answers has to know: anything that pydantic makes JSON of.
        prompt: What to ask a person.
        timeout: Seconds, or a timedelta, until the request expires, by the database's clock.
        default: What an expired request gives; without one it raises.

    Returns:
        The answer, a value of `type`.

    Raises:
        RequestTimeoutError: It was not answered in time, and there is no default.
        UnstorableTypeError: Values of `type` cannot be given as JSON.
        RuntimeError: Not called from a step or node of a kept run, or inside of a `once`; or
            without a name from a task of its own.
        ValueError: This attempt of the step has asked under this name before.
    """
    scope = running_scope('wait_for()')
    refuse_inside_once(scope, 'wait_for()', 'what it keeps has happened before')
    return scope.wait_for(
        question(type, name, payload=payload, prompt=prompt, timeout=timeout, default=default)
    )


def running_scope(what: str) -> Scope:
    """The task that runs here. Raises `RuntimeError` if none does; `what` was called."""
    scope = _current.get()
    if scope is None:
        raise RuntimeError(f'{what} was called outside of a step or node of a kept run')
    return scope


def refuse_inside_once(scope: Scope, what: str, why: str) -> None:
    """Refuse a call from the function of a `once` of the same task. Raises `RuntimeError`."""
    outer = _inside.get()
    if outer is not None and outer[0] is scope:
        raise RuntimeError(
            f'{what} was called inside of once({outer[1]!r}), and {why}. Call one after the other.'
        )


def _returned(function: Any) -> Any:
    try:
        returned = typing.get_type_hints(function).get('return', Any)
    except Exception:  # noqa: BLE001 - what does not resolve says nothing
        return Any
    return Any if isinstance(returned, TypeVar) else returned


def _seen(task: asyncio.Task[Any]) -> None:
    """Whoever called has got the exception: asyncio need not report it."""
    if not task.cancelled():
        task.exception()


@coroutine
def in_context(context: Context, run: Coroutine[Any, Any, T]) -> Generator[Any, Any, T]:
    """Await `run` in this asyncio task, but with context variables of its own."""
    try:
        waits_for = context.run(run.send, None)
        while True:
            try:
                sent = yield waits_for
            except BaseException as e:  # noqa: BLE001 - handed on
                waits_for = context.run(run.throw, e)
            else:
                waits_for = context.run(run.send, sent)
    except StopIteration as done:
        return done.value
