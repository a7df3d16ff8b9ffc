"""`wait_for`: a step that waits for a person or another program, without being there meanwhile.

The first attempt of a step asks, and unwinds with `Waiting`; the front end commits what it asked.
When everything that it waits for has been answered, the step runs again from its beginning, and
`wait_for` returns what was given.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from dataclasses import is_dataclass
from datetime import datetime, timedelta
from functools import lru_cache
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar, cast

from pydantic import BaseModel, TypeAdapter, ValidationError
from pydantic.errors import PydanticUserError
from pydantic_core import PydanticSerializationError, from_json, to_json

from .errors import RequestTimeoutError, UnstorableTypeError
from .parts import split
from .requests import NewRequest, Request
from .tasks import request_id_of

if TYPE_CHECKING:
    from .tasks import Task

__all__ = ('REQUIRED', 'Asking', 'Leaving', 'Question', 'Waiting', 'question', 'split_waiting')

T = TypeVar('T')

REQUIRED: Any = object()
"""There is no default: a passed deadline raises."""


class Waiting(BaseException):
    """A step unwinds because it waits for an answer. `except Exception` does not catch it."""


class Leaving(Exception):  # noqa: N818 - as `Waiting`
    """A run is left between two steps, because its worker stops."""


class Question(NamedTuple):
    """What `wait_for` was called with."""

    adapter: TypeAdapter[Any]
    name: str | None
    prompt: str | None
    payload: bytes
    schema: bytes
    timeout: float | None
    default: Any


def question(
    type_: Any, name: object, *, payload: object, prompt: object, timeout: object, default: object
) -> Question:
    """Check what `wait_for` was called with.

    Raises:
        UnstorableTypeError: The type has no JSON schema.
        TypeError: Something is of another type than it may be.
        ValueError: Something is not what it may be.
    """
    if name is not None and not isinstance(name, str):
        raise TypeError(f'wait_for(): the name of a request must be a string, got {name!r}')
    if isinstance(name, str):
        _check_text(name, 'the name', most=256)
    if prompt is not None and not isinstance(prompt, str):
        raise TypeError(f'wait_for(): the prompt must be a string, got {prompt!r:.80}')
    seconds = timeout.total_seconds() if isinstance(timeout, timedelta) else timeout
    if seconds is not None:
        if not isinstance(seconds, (int, float)) or isinstance(seconds, bool):
            raise TypeError(f'wait_for(): timeout is seconds or a timedelta, got {timeout!r}')
        if not 0 < seconds < 3_000_000_000:
            raise ValueError(
                'wait_for(): the timeout must be above 0 and below 3,000,000,000 s, got '
                f'{timeout!r}'
            )
    elif default is not REQUIRED:
        raise TypeError('wait_for(): a default is what a passed deadline gives. Give a timeout too')
    adapter, schema = _described(type_)
    try:
        data = to_json(payload, inf_nan_mode='strings')
        json.loads(data)  # integers may have more digits than Python reads
    except (PydanticSerializationError, ValueError) as e:
        raise TypeError(f'wait_for(): the payload cannot be made JSON: {e}') from e
    return Question(
        adapter, name, prompt, data, schema, None if seconds is None else float(seconds), default
    )


def _described(type_: Any) -> tuple[TypeAdapter[Any], bytes]:
    # Of anything else, such as `int | str` and `str | int`, two that are equal may not be the same.
    return _described_class(type_) if isinstance(type_, type) else _describe(type_)


@lru_cache(maxsize=256)
def _described_class(type_: type[Any]) -> tuple[TypeAdapter[Any], bytes]:
    return _describe(type_)


def _describe(type_: Any) -> tuple[TypeAdapter[Any], bytes]:
    if isinstance(type_, (str, BaseModel)) or (is_dataclass(type_) and not isinstance(type_, type)):
        raise UnstorableTypeError(
            f'wait_for({type_!r:.80}): give the type of the answer itself, not its name and not a '
            'value of it',
            path='answer',
        )
    try:
        adapter = TypeAdapter[Any](type_)
        return adapter, to_json(adapter.json_schema())
    except (PydanticUserError, NameError) as e:
        # Both errors of pydantic's schemas are such: of a type, and of its JSON schema.
        raise UnstorableTypeError(
            f'wait_for({type_!r:.80}): an answer of this type cannot be given as JSON: {e}',
            path='answer',
        ) from e


def _check_text(text: str, what: str, *, most: int) -> None:
    try:
        size = len(text.encode())
    except UnicodeEncodeError:
        size = 0
    if not 1 <= size <= most or '\0' in text:
        raise ValueError(
            f'wait_for(): {what} must be 1 to {most} bytes of UTF-8 without NUL, got {text!r:.80}'
        )


class Asking:
    """What one attempt of a task asks, and what it has been given."""

    __slots__ = ('_known', '_names', '_own', '_run_id', '_task', '_unnamed', 'asked', 'used')

    def __init__(
        self,
        run_id: str,
        task: Task,
        known: Mapping[str, Request],
        *,
        own: asyncio.Task[Any] | None,
    ) -> None:
        """Begin an attempt.

        Args:
            run_id: The run.
            task: The task.
            known: The requests of the run by id, as far as they are known.
            own: The asyncio task that the step runs in.
        """
        self._run_id = run_id
        self._task = task
        self._known = known
        self._own = own
        self._names: set[str] = set()
        self._unnamed = 0
        self.asked: dict[str, NewRequest | None] = {}
        """What it waits for, by name; `None` for what is stored already."""
        self.used: dict[str, bytes] = dict(task.answers)
        """What it was given, by name, as a task stores it."""

    def answer(self, asks: Question) -> Any:
        """The answer to a question, or its default.

        Raises:
            Waiting: There is none yet.
            RequestTimeoutError: Its deadline has passed.
            ValueError: This attempt has asked under this name before.
            RuntimeError: A question without a name was asked in a task of its own.
        """
        name = self._name(asks.name)
        given = self.used.get(name)
        request = self._known.get(request_id_of(self._task.id, name))
        if given is None and request is not None:
            given = _given(request)
        if given is not None:
            entry = cast('dict[str, bytes]', split(given))
            if 'answer' not in entry:
                self.used[name] = given
                return self._expired(name, asks, from_json(entry['expired']))
            try:
                value = asks.adapter.validate_json(entry['answer'])
            except ValidationError as e:
                self.used.pop(name, None)
                self.asked[name] = self._request(name, asks, error=_said(e))
                raise Waiting from e
            self.used[name] = given
            return value
        known = request is not None and request.status == 'open'
        self.asked[name] = None if known else self._request(name, asks)
        raise Waiting

    def _name(self, given: str | None) -> str:
        if given is None:
            if asyncio.current_task() is not self._own:
                raise RuntimeError(
                    'wait_for() without a name is numbered in the order of the calls, which is '
                    "only sure in the step's own asyncio task. In another task, give it a name."
                )
            self._unnamed += 1
            given = f'request-{self._unnamed}'
        if given in self._names:
            raise ValueError(
                f'wait_for() was called with the name {given!r} twice in one attempt of step '
                f'{self._task.node!r}. Each request of a step needs a name of its own.'
            )
        self._names.add(given)
        return given

    def _expired(self, name: str, asks: Question, deadline: object) -> Any:
        if asks.default is not REQUIRED:
            return asks.default
        raise RequestTimeoutError(
            run_id=self._run_id,
            request_id=request_id_of(self._task.id, name),
            deadline=datetime.fromisoformat(deadline) if isinstance(deadline, str) else None,
        )

    def _request(self, name: str, asks: Question, *, error: str | None = None) -> NewRequest:
        return NewRequest(
            request_id=request_id_of(self._task.id, name),
            task=self._task.id,
            node=self._task.node,
            name=name,
            prompt=asks.prompt,
            payload=asks.payload,
            schema=asks.schema,
            timeout=asks.timeout,
            error=error,
        )

    def outcome(self, raised: BaseException | None) -> BaseException | None:
        """What a step that has ended failed with.

        Args:
            raised: What it raised. If this gives `None` then, it has paused.

        Returns:
            What it raised beside its pauses; of a step that returned, a `RuntimeError` if something
            in it has swallowed a pause.
        """
        if raised is not None:
            return split_waiting(raised)
        if not self.asked:
            return None
        names = ', '.join(map(repr, self.asked))
        return RuntimeError(
            f'Step {self._task.node!r} returned while its request {names} is open: something '
            'in it has caught the BaseException that pauses it (asyncio.gather(…, '
            'return_exceptions=True), a bare except, a return in finally). Let it pass.'
        )


def _given(request: Request) -> bytes | None:
    """What a request was given, as a task stores it; `None` while it is open."""
    if request.status == 'answered' and request.answer_json is not None:
        return b'{"answer":%b}' % request.answer_json
    if request.status == 'expired':
        deadline = None if request.deadline is None else request.deadline.isoformat()
        return b'{"expired":%b}' % to_json(deadline)
    return None


def _said(error: ValidationError) -> str:
    first, *others = error.errors(include_url=False, include_context=False, include_input=False)
    where = ''.join(f'[{p}]' if isinstance(p, int) else f'.{p}' for p in first['loc'])
    more = f' (and {len(others)} more)' if others else ''
    return f'answer{where}: {first["msg"]}{more}'


def split_waiting(error: BaseException) -> BaseException | None:
    """What a step raised beside the pauses in it; `None` if it only waits.

    `TaskGroup` and anyio put the pauses of sub-tasks into a `BaseExceptionGroup`.
    """
    if isinstance(error, Waiting):
        return None
    if isinstance(error, BaseExceptionGroup):
        group = cast('BaseExceptionGroup[BaseException]', error)
        waiting, others = group.split(Waiting)
        return group if waiting is None else others
    return error
