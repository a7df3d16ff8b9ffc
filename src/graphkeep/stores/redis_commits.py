"""Commits as calls of `append.lua`, and its replies as errors. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from redis.exceptions import ResponseError

from ..errors import DamagedRunError, LeaseLostError
from ..runs import Commit
from .redis_client import Call
from .redis_errors import meaning
from .redis_keys import STATUSES, Layout, RunKeys, json_of, meta_of, whole_micros

__all__ = ('calls_for', 'error_of')

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
            more = len(commits[position].draft.data)
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
    return Call(keys=where, args=args)


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
