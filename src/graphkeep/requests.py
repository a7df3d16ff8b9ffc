"""The records of what paused tasks wait for: requests, and what is written of them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Any, Literal, NamedTuple, cast

__all__ = ('NewRequest', 'Request', 'RequestQuery', 'RequestStatus')

RequestStatus = Literal['open', 'answered', 'expired', 'closed']
"""`open`: waits for an answer. `answered`: has one. `expired`: its deadline has passed before one
came. `closed`: nobody needs one any more, because its run or its branch has ended."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Request:
    """What a task of a run waits for, and what it was given."""

    run_id: str
    request_id: str
    """`<task>:<name>`: one in its run."""
    name: str
    """The name that `wait_for` was given, or `request-1`, `request-2`, … in the order of asking."""
    node: str
    """The node or step that waits."""
    task: str
    """Its task."""
    status: RequestStatus
    prompt: str | None = None
    """What to ask a person."""
    payload_json: bytes = b'null'
    schema_json: bytes = b'true'
    deadline: datetime | None = None
    """Until when it can be answered (UTC, the database's clock)."""
    created_at: datetime
    """When it was asked (UTC, the database's clock)."""
    answer_json: bytes | None = None
    answered_by: str | None = None
    """Who answered, if that was said."""
    answered_at: datetime | None = None
    closed_at: datetime | None = None
    """When its task had ended, and the answer was of no more use."""
    error: str | None = None
    """Why an answer before did not do, of a request that was opened again."""
    graph: str | None = None
    """The name that the run's graph is recorded under."""
    labels: Mapping[str, str] = field(default_factory=dict[str, str])
    """The labels of the run."""

    @property
    def payload(self) -> Any:
        """What `wait_for(payload=…)` was given, as plain JSON."""
        return json.loads(self.payload_json)

    @property
    def schema(self) -> Mapping[str, Any]:
        """The JSON schema that an answer has to fit."""
        schema = json.loads(self.schema_json)
        return cast('dict[str, Any]', {} if schema is True else schema)

    @property
    def answer(self) -> Any:
        """The answer as plain JSON; `None` while there is none."""
        return None if self.answer_json is None else json.loads(self.answer_json)


class NewRequest(NamedTuple):
    """A request that is about to be stored, or to be opened again."""

    request_id: str
    task: str
    node: str
    name: str
    prompt: str | None
    payload: bytes
    """JSON."""
    schema: bytes
    """JSON."""
    timeout: float | None
    """Seconds from its commit to its deadline."""
    error: str | None = None
    """Opens a request again that was answered: why the answer did not do. Its deadline stays."""

    def opened(
        self,
        run_id: str,
        *,
        at: datetime,
        graph: str | None = None,
        labels: Mapping[str, str] | None = None,
    ) -> Request:
        """The request as it is when it has just been stored."""
        return Request(
            run_id=run_id,
            request_id=self.request_id,
            name=self.name,
            node=self.node,
            task=self.task,
            status='open',
            prompt=self.prompt,
            payload_json=self.payload,
            schema_json=self.schema,
            deadline=None if self.timeout is None else at + timedelta(seconds=self.timeout),
            created_at=at,
            error=self.error,
            graph=graph,
            labels={} if labels is None else labels,
        )

    def opened_again(self, known: Request) -> Request:
        """A request that is stored, opened again by this one."""
        return replace(
            known,
            status='open',
            prompt=self.prompt,
            payload_json=self.payload,
            schema_json=self.schema,
            error=self.error,
            answer_json=None,
            answered_by=None,
            answered_at=None,
            closed_at=None,
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class RequestQuery:
    """Which requests to find. Every field that is set must match."""

    run_id: str | None = None
    request_id: str | None = None
    graph: str | None = None
    name: str | None = None
    labels: Mapping[str, str] = field(default_factory=dict[str, str])
    """All of these labels of the run with these values."""
    status: tuple[RequestStatus, ...] = ()
    """Any of these; empty means all."""
    unused: bool = False
    """Only those whose task has not ended."""
    created_before: datetime | None = None
    """Asked before this time (an aware datetime)."""
    after: tuple[datetime, str, str] | None = None
    """Only requests after this one in the order: `(created_at, run_id, request_id)` of the last one
    of the previous page."""
    limit: int | None = 100
    """At most this many, oldest first (by `created_at`, `run_id`, `request_id`); `None` for all."""
