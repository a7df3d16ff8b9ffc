"""How runs lie in Redis: keys, and records to fields and back. Pure.

```
{graphkeep:0}:meta          hash    schema version, number of buckets, hash function; in bucket 0
{graphkeep:3}:run:order-42  hash    the header: status, seq, epoch, nonce, owner, lease_until, …
{graphkeep:3}:log:order-42  stream  the snapshots: entry 7-1 has seq 7, its fields are meta and data
{graphkeep:3}:requests:order-42  hash  what the run asks: `lua/request.lua` has the fields
{graphkeep:3}:created       zset    every run of the bucket, by its time of creation
{graphkeep:3}:status:ready  zset    the same for the runs with that status
{graphkeep:3}:open          zset    the open requests of the bucket, by the time of asking
{graphkeep:3}:listed        hash    what a list shows of each of these
{graphkeep:3}:wake          zset    the paused runs of the bucket, by their first deadline
{graphkeep:3}:answers       stream  which runs of the bucket were answered: field run
{graphkeep:0}:talk:…        hashes and zsets of all conversations: `redis_talks` has them
```

What stands in the first braces decides the slot in a cluster, so that all keys of a bucket share
one, whatever a run id has in it. An entry id is `<seq>-1`, since a stream has no entry 0-0. There
is no index of leases: every commit would have to write it, and the runs whose lease has passed are
among those that are `running`.

Times are whole microseconds since 1970. `meta` is a JSON array: kind, event, node, task, start,
duration, error, time of the commit.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from json.encoder import encode_basestring_ascii
from typing import Any, NamedTuple, cast, get_args
from zlib import crc32

from ..errors import DamagedRunError
from ..runs import Draft, Run, RunQuery, Snapshot, SnapshotData, SnapshotKind, Status

__all__ = (
    'HASH',
    'STATUSES',
    'HeaderError',
    'Layout',
    'RunKeys',
    'TalkKeys',
    'check_prefix',
    'json_of',
    'meta_of',
    'micros',
    'query_of',
    'read_data',
    'read_header',
    'read_snapshots',
    'time_of',
    'whole_micros',
)

HASH = 'crc32'
"""The function that gives a run its bucket: CRC-32 of the id, modulo the number of buckets."""
STATUSES: tuple[Status, ...] = get_args(Status)

_PREFIX = re.compile(r'[A-Za-z0-9_.:/-]{1,64}')
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_KINDS = frozenset(get_args(SnapshotKind))

json_of = json.JSONEncoder(separators=(',', ':')).encode
"""Compact ASCII JSON: lone surrogates survive as escapes."""


class HeaderError(ValueError):
    """The stored header of a run cannot be read."""


class RunKeys(NamedTuple):
    """The keys of one run."""

    run: bytes
    log: bytes
    run_id: bytes
    tag: bytes

    @property
    def requests(self) -> bytes:
        """What the run asks."""
        return b'%b:requests:%b' % (self.tag, self.run_id)

    @property
    def created(self) -> bytes:
        """The index of all runs of the bucket."""
        return self.tag + b':created'

    @property
    def open(self) -> bytes:
        """The index of the open requests of the bucket."""
        return self.tag + b':open'

    @property
    def listed(self) -> bytes:
        """What a list shows of the open requests of the bucket."""
        return self.tag + b':listed'

    @property
    def wake(self) -> bytes:
        """The index of the runs of the bucket that have a `wake_at`."""
        return self.tag + b':wake'

    @property
    def answers(self) -> bytes:
        """The stream that tells of answers to runs of the bucket."""
        return self.tag + b':answers'

    def having(self, status: Status) -> bytes:
        """The index of the runs of the bucket that have this status."""
        return b'%b:status:%b' % (self.tag, status.encode())


class TalkKeys(NamedTuple):
    """The keys of all conversations, in the order in which scripts take them."""

    rows: bytes
    entries: bytes
    long: bytes
    refs: bytes
    blobs: bytes
    uses: bytes
    written: bytes
    scoped: bytes
    expiring: bytes


class Layout:
    """Which keys a run has."""

    __slots__ = ('_tags', 'buckets', 'prefix', 'talks')

    def __init__(self, *, prefix: str, buckets: int) -> None:
        self.prefix = prefix
        self.buckets = buckets
        self._tags = tuple(f'{{{prefix}:{bucket}}}'.encode() for bucket in range(buckets))
        # Whatever the number of buckets: conversations share entries, so all are in one slot.
        self.talks = TalkKeys(*(f'{{{prefix}:0}}:talk:{n}'.encode() for n in TalkKeys._fields))

    def keys(self, run_id: str) -> RunKeys:
        """The keys of a run."""
        name = run_id.encode()
        tag = self._tags[crc32(name) % self.buckets]
        return RunKeys(tag + b':run:' + name, tag + b':log:' + name, name, tag)

    def indexes(self, statuses: Sequence[Status]) -> list[bytes]:
        """Where to look, over all buckets, for runs with one of these statuses; any if empty."""
        names = [f'status:{status}' for status in statuses] or ['created']
        return [b'%b:%b' % (tag, name.encode()) for tag in self._tags for name in names]

    def buckets_of(self, name: str) -> list[bytes]:
        """A key that every bucket has, of all buckets."""
        return [b'%b:%b' % (tag, name.encode()) for tag in self._tags]

    @staticmethod
    def meta(prefix: str) -> bytes:
        """Where the layout itself is written down, whatever the number of buckets."""
        return f'{{{prefix}:0}}:meta'.encode()


def check_prefix(prefix: str) -> str:
    """Refuse a prefix that would break the braces or is awkward in patterns.

    Raises:
        TypeError: It is not a string.
        ValueError: It is not 1 to 64 ASCII letters, digits and characters of `_.:/-`.
    """
    if not isinstance(prefix, str):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise TypeError(f'prefix must be a string, got {type(prefix).__name__}')
    if not _PREFIX.fullmatch(prefix):
        raise ValueError(
            f'prefix {prefix!r} cannot begin the names of keys: use 1 to 64 ASCII letters, digits '
            'and characters of _.:/-'
        )
    return prefix


def micros(time: datetime) -> int:
    """An aware datetime as whole microseconds since 1970."""
    return (time - _EPOCH) // timedelta(microseconds=1)


def whole_micros(seconds: float) -> int:
    """Seconds as whole microseconds."""
    return int(seconds * 1_000_000)


def time_of(value: int) -> datetime:
    """Whole microseconds since 1970 as an aware datetime."""
    return _EPOCH + timedelta(0, 0, value)


# --- what is written -----------------------------------------------------------------------------


def meta_of(draft: Draft) -> str:
    """The meta of a snapshot up to its last element, the time, which the server adds."""
    # Put together by hand: an encoder takes as long as the rest of preparing a commit.
    started_at = 'null' if draft.started_at is None else micros(draft.started_at)
    duration = 'null' if draft.duration is None else json_of(draft.duration)
    error = 'null' if draft.error is None else json_of(dict(draft.error))
    return (
        f'["{draft.kind}","{draft.event}",{_quoted(draft.node)},{_quoted(draft.task)},'
        f'{started_at},{duration},{error},'
    )


def _quoted(text: str | None) -> str:
    return 'null' if text is None else encode_basestring_ascii(text)


def query_of(query: RunQuery) -> str:
    """A query as `match.lua` takes it: what is not asked for is left out."""
    asked: dict[str, object] = {}
    if query.graph is not None:
        asked['graph'] = query.graph
    if query.status:
        asked['status'] = dict.fromkeys(query.status, True)
    if query.interrupted is not None:
        asked['interrupted'] = query.interrupted
    if query.labels:
        asked['labels'] = dict(query.labels)
    if query.parent_run_id is not None:
        asked['parent_run_id'] = query.parent_run_id
    if query.updated_before is not None:
        asked['updated_before'] = str(micros(query.updated_before))
    return json_of(asked)


# --- what is read --------------------------------------------------------------------------------


def read_header(run_id: str, header: bytes) -> Run:
    """The header of a run, from the reply that `header.lua` makes.

    Raises:
        HeaderError: It is not what graphkeep writes.
    """
    try:
        graph, status, seq, full_seq, epoch, owner, lease_until, *others = json.loads(header)
        labels, error, parent_run_id, parent_seq, created_at, updated_at, *others = others
        answered, wake_at, now = others
        if status not in STATUSES:
            raise ValueError(f'its status is {status!r}')
        until = None if lease_until is False else int(lease_until)
        wakes = None if wake_at is False else int(wake_at)
        return Run(
            run_id=run_id,
            graph=graph or None,
            status=status,
            seq=int(seq),
            full_seq=int(full_seq),
            epoch=int(epoch),
            owner=owner or None,
            lease_until=None if until is None else time_of(until),
            interrupted=status == 'running' and until is not None and until <= int(now),
            # A run of schema 1 has none.
            answered=0 if answered is False else int(answered),
            wake_at=None if wakes is None else time_of(wakes),
            due=status == 'paused' and wakes is not None and wakes <= int(now),
            labels=_object(labels) or {},
            error=_object(error),
            parent_run_id=parent_run_id or None,
            parent_seq=None if parent_seq is False else int(parent_seq),
            created_at=time_of(int(created_at)),
            updated_at=time_of(int(updated_at)),
        )
    except (ValueError, TypeError, OverflowError) as e:
        raise HeaderError(f'{e}') from e


def _object(text: str | bool) -> Mapping[str, Any] | None:
    if text is False:
        return None
    found = json.loads(cast('str', text))
    if not isinstance(found, dict):
        raise TypeError(f'{text!r} is not a JSON object')
    return cast('dict[str, Any]', found)


def read_data(run_id: str, reply: Sequence[bytes]) -> list[SnapshotData]:
    """As `read_snapshots`, without what is not needed to put a document together."""
    found: list[SnapshotData] = []
    at = 0
    ids, sizes, metas, data = reply[:4]
    try:
        for name, meta, size in _entries(ids, metas, sizes):
            kind = 'delta' if meta.startswith(b'["delta",') else 'full'
            if kind == 'full' and not meta.startswith(b'["full",'):
                raise ValueError('it has no kind')
            found.append(SnapshotData(_seq(name), kind, data[at : at + size]))
            at += size
    except ValueError:
        raise _damage(run_id, ids, metas) from None
    return found


def read_snapshots(run_id: str, reply: Sequence[bytes]) -> list[Snapshot]:
    """Snapshots, from the reply that `log.lua` makes.

    Raises:
        DamagedRunError: One of them is not what graphkeep writes; names it.
    """
    found: list[Snapshot] = []
    at = 0
    ids, sizes, metas, data = reply[:4]
    try:
        for name, meta, size in _entries(ids, metas, sizes):
            found.append(_snapshot(_seq(name), meta, data[at : at + size]))
            at += size
    except (ValueError, TypeError, OverflowError):
        raise _damage(run_id, ids, metas) from None
    return found


def _entries(ids: bytes, metas: bytes, sizes: bytes) -> Iterator[tuple[bytes, bytes, int]]:
    # No entry and an empty meta look the same.
    lines = metas.split(b'\n') if ids else []
    return zip(ids.split(), lines, map(int, sizes.split()), strict=True)


def _seq(name: bytes) -> int:
    if not name.endswith(b'-1'):
        raise ValueError('it is not an entry of ours')
    return int(name[:-2])


def _snapshot(seq: int, meta: bytes, data: bytes) -> Snapshot:
    kind, event, node, task, started_at, duration, error, created_at = json.loads(meta)
    if kind not in _KINDS:
        raise ValueError(f'its kind is {kind!r}')
    return Snapshot(
        seq=seq,
        kind=kind,
        event=event,
        data=data,
        node=node,
        task=task,
        started_at=None if started_at is None else time_of(started_at),
        duration=duration,
        error=error,
        created_at=time_of(created_at),
    )


def _damage(run_id: str, ids: bytes, metas: bytes) -> DamagedRunError:
    """Which of the entries of a reply is the one that cannot be read."""
    seq, reason = -1, 'the log is damaged'
    # A damaged meta may have a line break of its own: it is the first that cannot be read.
    for name, meta in zip(ids.split(), metas.split(b'\n'), strict=False):
        try:
            seq = _seq(name)
            if not meta:
                reason = 'its entry does not have the fields meta and data'
                break
            _snapshot(seq, meta, b'')
        except (ValueError, TypeError, OverflowError) as e:
            reason = f'its meta is damaged ({e})'
            if not name.endswith(b'-1'):
                reason = f'an entry {name.decode()} comes after it that graphkeep did not write'
            break
    return DamagedRunError(run_id=run_id, seq=seq, reason=reason)
