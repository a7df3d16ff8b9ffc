"""A store whose every call of a hook is counted, and may go wrong."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from graphkeep import Run, Store
from graphkeep.hooks import Hooks
from graphkeep.runs import Claim, Commit, Draft, NewRun
from tests.crash.logbook import Journalist

Call = Callable[[], Awaitable[Any]]

CRASHED = 77
"""The exit status of a process that `crash_at` ended."""
MOMENTS = ('before', 'during', 'after')
"""When a process dies: a call was not made; it is on its way; it has returned."""


def around_calls(store: Store, around: Callable[[int, str, Call], Awaitable[Any]]) -> None:
    """Have `around(number, hook, call)` in the place of each call of a hook, numbered from 1."""
    number = 0

    def wrapped(name: str, hook: Callable[..., Awaitable[Any]]) -> Callable[..., Awaitable[Any]]:
        async def counted(*args: Any) -> Any:
            nonlocal number
            number += 1
            return await around(number, name, lambda: hook(*args))

        return counted

    for name in Hooks.__abstractmethods__:
        setattr(store, name, wrapped(name, getattr(store, name)))


def park_at(store: Store, hook: str, number: int, moment: str, park: Call) -> None:
    """Have `park()` awaited before or after the call of this number of a hook."""
    calls = 0

    async def around(_: int, name: str, call: Call) -> Any:
        nonlocal calls
        calls += name == hook
        here = name == hook and calls == number
        if here and moment == 'before':
            await park()
        result = await call()
        if here and moment == 'after':
            await park()
        return result

    around_calls(store, around)


def tell_renewals(store: Store, say: Callable[..., None]) -> None:
    """Say of each renewal of a claim whether it was granted."""
    renew = store._renew

    async def told_renew(claims: Sequence[Claim], ttl: float) -> Sequence[BaseException | None]:
        errors = await renew(claims, ttl)
        say(renewed=[error is None for error in errors])
        return errors

    store._renew = told_renew


def log_acknowledged(store: Store, journalist: Journalist) -> None:
    """Write every snapshot that the store has acknowledged to a log, before anybody else knows."""
    create, append = store._create, store._append

    async def logged_create(run: NewRun, draft: Draft) -> Run:
        created = await create(run, draft)
        journalist.write('ack', run.run_id, draft.seq)
        return created

    async def logged_append(commits: Sequence[Commit]) -> Sequence[BaseException | None]:
        errors = await append(commits)
        for commit, error in zip(commits, errors, strict=True):
            if error is None:
                journalist.write('ack', commit.claim.run_id, commit.draft.seq)
        return errors

    store._create = logged_create
    store._append = logged_append


def crash_at(store: Store, number: int, moment: str) -> None:
    """Let this process die at a call of a hook, without a word to anybody."""

    async def around(n: int, _: str, call: Call) -> Any:
        if n != number:
            return await call()
        if moment == 'during':
            asked = asyncio.ensure_future(call())
            # The request is made, handed to a thread or sent; its answer is not waited for.
            await asyncio.wait((asked,), timeout=0)
            await asyncio.sleep(0)
        elif moment == 'after':
            # Whatever it gives or raises, nobody hears of it.
            await asyncio.wait((asyncio.ensure_future(call()),))
        os._exit(CRASHED)

    around_calls(store, around)
