"""Commits as calls of `append.lua` and `ask.lua`, and the replies as errors. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from redis.exceptions import ResponseError

from ..errors import DamagedRunError, LeaseLostError
from ..runs import Commit
from .redis_client import Call
from .redis_errors import meaning
from .redis_keys import STATUSES, Layout, RunKeys, json_of, meta_of, micros, whole_micros
from .redis_requests import asked_of
from .redis_waiting import id_of

__all__ = ('calls_for', 'error_of', 'script_for')

_MOST_COMMITS = 64
_MOST_BYTES = 1_000_000
"""Most commits of a call, and most payload bytes beyond its first: the server does nothing else
meanwhile.
"""


def calls_for(layout: Layout, commits: Sequence[Commit]) -> Iterator[tuple[list[int], Call]]:
    """The calls that write `commits`: each those of one bucket, given by their positions."""
    keys = [layout.keys(commit.claim.run_id) for commit in commits]
    if len(commits) == 1:
        yield [0], _call(keys, commits)
        return
    buckets: dict[bytes, list[int]] = {}
    for position, of_run in enumerate(keys):
        buckets.setdefault(of_run.tag, []).append(position)
    for bucket in buckets.values():
        part: list[int] = []
        size = 0
        for position in bucket:
            more = _size(commits[position])
            if part and (len(part) == _MOST_COMMITS or size + more > _MOST_BYTES):
                yield part, _call([keys[i] for i in part], [commits[i] for i in part])
                part, size = [], 0
            part.append(position)
            size += more
        yield part, _call([keys[i] for i in part], [commits[i] for i in part])


def _call(keys: Sequence[RunKeys], commits: Sequence[Commit]) -> Call:
    where: list[bytes] = []
    args: list[bytes | str | int] = [len(commits), '']
    for (run, log, *_), commit in zip(keys, commits, strict=True):
        draft = commit.draft
        where += (run, log)
        head = (
            f'{commit.claim.epoch} {draft.seq - 1} {draft.seq} {whole_micros(commit.ttl)} '
            f'{draft.kind} {commit.history} {commit.status} {commit.nonce}'
        )
        error = '' if draft.error is None else json_of(dict(draft.error))
        args += (head, meta_of(draft), draft.data, error)
    if any(commit.status != 'running' for commit in commits):
        where += (keys[0].having(status) for status in STATUSES)
        args[1] = ' '.join(STATUSES)
    if script_for(commits) == 'ask':
        where += (keys[0].open, keys[0].listed, keys[0].wake)
        for position, (of_run, commit) in enumerate(zip(keys, commits, strict=True), 1):
            if not commit.plain:
                where.append(of_run.requests)
                args += _asking(position, commit)
    return Call(keys=where, args=args)


def script_for(commits: Iterable[Commit]) -> str:
    """The script that writes commits: most need no more than the quicker one."""
    return 'append' if all(commit.plain for commit in commits) else 'ask'


def _asking(position: int, commit: Commit) -> Iterator[bytes | str]:
    wake_at = '' if commit.wake_at is None else micros(commit.wake_at)
    yield f'{position} {len(commit.asks)} {len(commit.closes)} {commit.answered} {wake_at}'
    for new in commit.asks:
        yield id_of(new.request_id)
        yield '' if new.timeout is None else f'{whole_micros(new.timeout)}'
        yield '' if new.error is None else json_of(new.error)
        yield asked_of(new)
        yield new.payload
        yield new.schema
    yield from map(id_of, commit.closes)


def _size(commit: Commit) -> int:
    size = len(commit.draft.data)
    if commit.asks:
        size += sum(len(new.payload) + len(new.schema) for new in commit.asks)
    return size


def error_of(commit: Commit, reply: bytes, *, where: str) -> BaseException | None:
    """What a line of the reply says of its commit."""
    run_id = commit.claim.run_id
    if reply == b'written':
        return None
    if reply == b'lost':
        return LeaseLostError(run_id=run_id, epoch=commit.claim.epoch)
    if reply == b'damaged':
        reason = 'the log of the run is gone, or has an entry that graphkeep did not write'
        return DamagedRunError(run_id=run_id, seq=commit.draft.seq - 1, reason=reason)
    return meaning(ResponseError(reply.decode(errors='replace')), where=where, writes=True)
