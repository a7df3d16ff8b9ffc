"""Waiting for people, to a type checker."""

# pyright: strict
from __future__ import annotations

from datetime import timedelta
from typing import Any, Literal, assert_type

from pydantic import BaseModel

import graphkeep
from graphkeep import PersistentGraph, Request, RunPausedError, Store, Worker, wait_for


class Approval(BaseModel):
    ok: bool


async def an_answer_has_the_type_that_was_asked_for() -> None:
    assert_type(await wait_for(Approval, 'manager'), Approval)
    assert_type(await wait_for(int, payload={'amount': 1}, prompt='How many?'), int)
    assert_type(await wait_for(int, timeout=timedelta(days=1)), int)
    assert_type(await wait_for(int, timeout=60, default=None), int | None)
    assert_type(await wait_for(list[int]), list[int])
    answer: Literal['yes', 'no'] = await wait_for(Literal['yes', 'no'])  # what is no class is Any
    assert answer
    await wait_for(int, 1)  # pyright: ignore[reportCallIssue, reportArgumentType]


async def requests_have_types(
    store: Store, kept: PersistentGraph[None, None, str, int], error: RunPausedError
) -> None:
    assert_type(await store.requests(name='manager', status=('open', 'expired')), list[Request])
    assert_type(await store.answer('run', '0:manager', Approval(ok=True), by='me'), Request)
    assert_type(error.requests, tuple[Request, ...])
    handle = store.persistence('run')
    assert_type(await kept.run(inputs='a', persistence=handle, on_pause='wait'), int)
    assert_type(await graphkeep.resume(kept, handle, on_pause='raise'), int)
    assert_type(await kept.start(inputs='a', persistence=handle), None)
    await kept.run(inputs='a', on_pause='later')  # pyright: ignore[reportArgumentType]
    graphs: dict[str, PersistentGraph[Any, Any, Any, Any]] = {'g': kept}
    async with Worker(store, graphs, concurrency=2) as worker:
        worker.stop()
