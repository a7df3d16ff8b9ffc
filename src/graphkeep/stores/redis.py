"""Runs in Redis 6.2 or Valkey 7.2 and newer, standalone or as a cluster, without modules.

A run is a hash and a stream; `redis_keys` has the layout. Every transition is one Lua script, in
`lua/`. What an acknowledged commit survives is up to the server: with `appendonly yes` and
`appendfsync always` a crash, with `everysec` all but about its last second. A failover may lose the
last commits, and with them the epoch.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any, Literal, Self, TypeVar

from ..conversations import (
    ConversationQuery,
    ConversationWrite,
    EntriesQuery,
    StoredConversation,
    StoredEntries,
)
from ..errors import (
    DamagedRunError,
    LeaseLostError,
    RunExistsError,
    RunNotFoundError,
    StoreClosedError,
    StoreError,
    StoreUnavailableError,
)
from ..requests import Request, RequestQuery
from ..runs import (
    Claim,
    Claimed,
    ClaimRequest,
    Commit,
    Draft,
    NewRun,
    Run,
    RunQuery,
    Snapshot,
    SnapshotData,
    Status,
)
from ..shielding import to_its_end
from ..store import Store, busy, not_claimable, refused_claim
from .redis_client import Call, Client, Link
from .redis_commits import calls_for, error_of, script_for
from .redis_conversations import (
    delete_conversation,
    find_conversations,
    find_entries,
    write_conversation,
)
from .redis_find import find, find_candidates
from .redis_keys import (
    STATUSES,
    HeaderError,
    Layout,
    RunKeys,
    check_prefix,
    json_of,
    meta_of,
    micros,
    read_data,
    read_header,
    read_snapshots,
    whole_micros,
)
from .redis_opening import agree, check_client, connect, link_to, take_options, warn
from .redis_requests import answered, find_requests
from .redis_waiting import id_of
from .redis_watch import watch

__all__ = ('RedisStore',)

SnapshotT = TypeVar('SnapshotT', Snapshot, SnapshotData)

_ALL = 2**31
_REPLY_BYTES = 16_000_000
"""Most payload bytes in one reply, beyond its first snapshot."""
_READS = 5
"""How often a long read begins anew because what it reads was replaced meanwhile."""
_OTHERS: tuple[Status, ...] = tuple(status for status in STATUSES if status != 'cancelled')
_URL_OPTIONS = {
    'buckets': int,
    'heartbeat': float,
    'history': str,
    'lease': float,
    'prefix': str,
    'retry': float,
}


class RedisStore(Store):
    """A store in Redis or Valkey."""

    _stretch = 512

    def __init__(
        self,
        url: str | None = None,
        *,
        client: Client | None = None,
        prefix: str = 'graphkeep',
        buckets: int | None = None,
        timeout: float = 10.0,
        check_server: bool = True,
        lease: float = 30.0,
        heartbeat: float | None = None,
        history: Literal['all', 'latest'] = 'all',
        retry: float = 10.0,
    ) -> None:
        """Describe a store; nothing is opened.

        Args:
            url: `redis://…`, `rediss://…`, `unix://…`, `valkey://…`, or
                `redis+cluster://host:port` with any node of a cluster. After a `?` may follow
                options of redis-py.
            client: Instead of a URL, your own `redis.asyncio.Redis` or `RedisCluster`, which you
                close.
            prefix: All keys begin with `{prefix:`. 1 to 64 ASCII letters, digits and characters of
                `_.:/-`.
            buckets: Over how many slots of a cluster the runs are spread. The first use of a
                database fixes it; `None` takes what was fixed, or 16 in a cluster and 1 elsewhere.
            timeout: Seconds that one command may take.
            check_server: Whether opening logs a warning of settings that can lose commits.
            lease: As for every store.
            heartbeat: As for every store.
            history: As for every store.
            retry: As for every store.

        Raises:
            TypeError: Not exactly one of `url` and `client` was given, or another kind of client.
            ValueError: The URL, the prefix or another option is not what it may be.
        """
        super().__init__(lease=lease, heartbeat=heartbeat, history=history, retry=retry)
        if buckets is not None and not 1 <= buckets <= 16_384:
            raise ValueError(f'buckets must be 1 to 16384, got {buckets}')
        if timeout <= 0:
            raise ValueError(f'timeout must be above 0, got {timeout}')
        self._prefix = check_prefix(prefix)
        self._buckets = buckets
        self._timeout = timeout
        self._check_server = check_server
        if (url is None) == (client is None):
            raise TypeError('RedisStore takes a URL, or client=, and not both')
        self._url = url
        self._client = None if client is None else check_client(client)
        self._where = self._connect().where
        self._opened: tuple[Link, Layout] | None = None

    @classmethod
    def from_url(cls, url: str, **options: Any) -> Self:
        """Describe the store that a URL names.

        Args:
            url: As for the class. Among its options may be `prefix`, `buckets`, `lease`,
                `heartbeat`, `history` and `retry`: `redis://localhost/0?prefix=shop&lease=60`.
            **options: As for the class; they win over those of the URL.

        Raises:
            ValueError: The URL names no server, or has an option that there is not.
        """
        url, found = take_options(url, _URL_OPTIONS)
        return cls(url, **{**found, **options})

    @classmethod
    def from_client(cls, client: Client, **options: Any) -> Self:
        """A store over your own client, which you close. Options and errors as for the class."""
        return cls(client=client, **options)

    def __repr__(self) -> str:
        return f'<RedisStore {self._where} prefix={self._prefix!r}>'

    # --- opening and closing ----------------------------------------------------------------------

    def _connect(self) -> Link:
        if self._client is not None:
            return link_to(self._client, timeout=self._timeout)
        assert self._url is not None
        return connect(self._url, timeout=self._timeout)

    async def _open(self) -> None:
        link = self._connect()
        try:
            layout = await agree(link, prefix=self._prefix, buckets=self._buckets)
            if self._check_server:
                await warn(link)
        except BaseException:
            await to_its_end(link.close(), bound=self._timeout)
            raise
        self._opened = link, layout

    async def _close(self) -> None:
        opened, self._opened = self._opened, None
        if opened is not None:
            await opened[0].close()

    @property
    def _now(self) -> tuple[Link, Layout]:
        if self._opened is None:
            raise StoreClosedError(f'{self!r} has been closed. Open a new one with open_store().')
        return self._opened

    def _keys(self, run_id: str) -> RunKeys:
        return self._now[1].keys(run_id)

    async def _call(self, name: str, keys: Sequence[bytes], *args: bytes | str | int) -> Any:
        return await self._now[0].call(name, Call(keys=keys, args=args))

    # --- writing ----------------------------------------------------------------------------------

    async def _create(self, run: NewRun, draft: Draft) -> Run:
        keys = self._keys(run.run_id)
        status: Status = 'ready' if run.owner is None else 'running'
        lease = '' if run.owner is None else whole_micros(run.ttl)
        fields: dict[str, str | int | None] = {
            'status': status,
            'graph': run.graph,
            'owner': run.owner,
            'labels': json_of(dict(run.labels)) if run.labels else None,
            'parent_run_id': run.parent_run_id,
            'parent_seq': run.parent_seq,
        }
        pairs: list[bytes | str | int] = []
        for name, value in fields.items():
            if value is not None:
                pairs += (name, value.encode() if isinstance(value, str) else value)
        where = (keys.run, keys.log, keys.requests, keys.open, keys.listed)
        indexes = (keys.created, keys.having(status))
        args = (keys.run_id, run.nonce, lease, meta_of(draft), draft.data, *pairs)
        what, found = await self._call('create', (*where, *indexes), *args)
        if what == b'exists':
            raise RunExistsError(run_id=run.run_id, status=found.decode() or None)
        return _header(run.run_id, found)

    async def _claim(self, request: ClaimRequest) -> Claimed:
        run_id = request.run_id
        keys = self._keys(run_id)
        allowed = [keys.having(status) for status in request.allow]
        reply = await self._call(
            'claim',
            (
                keys.run,
                keys.log,
                keys.having('running'),
                keys.having('paused'),
                keys.wake,
                *allowed,
            ),
            keys.run_id,
            request.owner.encode(),
            whole_micros(request.ttl),
            request.nonce,
            '' if request.expected_epoch is None else request.expected_epoch,
            '' if request.expected_seq is None else request.expected_seq,
            _REPLY_BYTES,
            *request.allow,
        )
        if reply is None:
            raise RunNotFoundError(run_id=run_id)
        run = _header(run_id, reply[1])
        if reply[0] == b'refused':
            raise refused_claim(request, run)
        claim = Claim(run_id=run_id, owner=request.owner, epoch=run.epoch)
        if request.expected_seq is not None:
            return Claimed(claim=claim, run=run, snapshots=())
        try:
            snapshots = await self._whole(run, reply[2:], last=run.seq, read=read_snapshots)
        except DamagedRunError:
            # Nobody can work with this claim.
            await self._release(claim)
            raise
        if snapshots is None:
            raise LeaseLostError(run_id=run_id, epoch=run.epoch)
        return Claimed(claim=claim, run=run, snapshots=tuple(snapshots))

    async def _append(self, commits: Sequence[Commit]) -> Sequence[BaseException | None]:
        results = await self._append_once(commits)
        if not any(results):
            return results
        left = _unavailable(results)
        if left and len(left) == len(results):
            raise left[0]
        # One node of a cluster is down: its commits are tried again, the others are written.
        loop = asyncio.get_running_loop()
        deadline, pause = loop.time() + self.retry, 0.05
        while left and loop.time() + pause < deadline:
            await asyncio.sleep(pause)
            pause = min(pause * 2, 1.0)
            # One alone first: for a single command redis-py looks where the slot is now.
            first, *others = left
            for part in filter(None, ([first], others)):
                again = await self._append_once([commits[i] for i in part])
                for i, error in zip(part, again, strict=True):
                    results[i] = error
            left = _unavailable(results)
        return results

    async def _append_once(self, commits: Sequence[Commit]) -> list[BaseException | None]:
        link, layout = self._now
        parts = list(calls_for(layout, commits))
        replies = await link.call_each(script_for(commits), [call for _, call in parts])
        results: list[BaseException | None] = [None] * len(commits)
        for (positions, _), reply in zip(parts, replies, strict=True):
            if isinstance(reply, StoreError):
                for position in positions:
                    results[position] = reply
                continue
            for position, line in zip(positions, reply.split(b'\n'), strict=True):
                results[position] = error_of(commits[position], line, where=link.where)
        return results

    async def _renew(self, claims: Sequence[Claim], ttl: float) -> Sequence[BaseException | None]:
        lease = whole_micros(ttl)
        calls = [
            Call(keys=(self._keys(claim.run_id).run,), args=(claim.epoch, lease))
            for claim in claims
        ]
        replies = await self._now[0].call_each('renew', calls)
        for reply in replies:
            if isinstance(reply, StoreError):
                raise reply
        return [
            None if reply == b'renewed' else LeaseLostError(run_id=claim.run_id, epoch=claim.epoch)
            for claim, reply in zip(claims, replies, strict=True)
        ]

    async def _release(self, claim: Claim) -> None:
        keys = self._keys(claim.run_id)
        where = (keys.run, keys.having('running'), keys.having('ready'))
        await self._call('release', where, keys.run_id, claim.epoch)

    async def _cancel(self, run_id: str) -> Run:
        keys = self._keys(run_id)
        where = (keys.run, keys.requests, keys.open, keys.listed, keys.wake)
        indexes = map(keys.having, ('cancelled', *_OTHERS))
        reply = await self._call('cancel', (*where, *indexes), keys.run_id, *_OTHERS)
        if reply is None:
            raise RunNotFoundError(run_id=run_id)
        run = _header(run_id, reply[1])
        if reply[0] == b'done':
            raise not_claimable(run)
        return run

    async def _delete(self, run_id: str, force: bool) -> None:
        keys = self._keys(run_id)
        where = (keys.run, keys.log, keys.requests, keys.open, keys.listed)
        indexes = (keys.wake, keys.created, *map(keys.having, STATUSES))
        what = 'force' if force else ''
        reply = await self._call('delete', (*where, *indexes), keys.run_id, what)
        if reply is None:
            raise RunNotFoundError(run_id=run_id)
        if reply[0] == b'busy':
            run = _header(run_id, reply[1])
            raise busy(run)

    async def _answer(
        self, run_id: str, request_id: str, answer: bytes, by: str | None
    ) -> Request | None:
        keys = self._keys(run_id)
        where = (keys.run, keys.requests, keys.open, keys.listed, keys.wake, keys.answers)
        indexes = (keys.having('paused'), keys.having('ready'))
        args = (keys.run_id, id_of(request_id), answer, (by or '').encode())
        reply = await self._call('answer', (*where, *indexes), *args)
        return None if reply is None else answered(run_id, reply, where=self._now[0].where)

    async def _expire(self, run_id: str) -> None:
        keys = self._keys(run_id)
        await self._call('expire', (keys.requests, keys.open, keys.listed), keys.run_id)

    # --- reading ----------------------------------------------------------------------------------

    async def _header(self, run_id: str) -> Run | None:
        reply = await self._call('one', (self._keys(run_id).run,))
        return None if reply is None else _header(run_id, reply)

    async def _read(self, run_id: str, at: int | None) -> tuple[Run, Sequence[SnapshotData]] | None:
        keys = self._keys(run_id)
        for _ in range(_READS):
            wanted = '' if at is None else max(at, 0)
            reply = await self._call('read', (keys.run, keys.log), wanted, _REPLY_BYTES)
            if reply is None:
                return None
            run = _header(run_id, reply[0])
            last = run.seq if at is None else at
            if not 0 <= last <= run.seq:
                return run, ()
            snapshots = await self._whole(run, reply[1:], last=last, read=read_data)
            if snapshots is not None:
                return run, snapshots
        raise StoreUnavailableError(f'Run {run_id!r} was changed each time it was read. Try again.')

    async def _whole(
        self, run: Run, reply: Sequence[bytes], *, last: int, read: Callable[..., list[SnapshotT]]
    ) -> list[SnapshotT] | None:
        """The snapshots up to `last`, of which `reply` has the first; `None` if they were replaced
        meanwhile.
        """
        found = read(run.run_id, reply)
        if not found and last < run.full_seq:
            return []
        # A log grows at its end, unless older snapshots are dropped, or the run is deleted and
        # created again.
        unchanged = f'{micros(run.created_at)} {run.full_seq}'.encode()
        while reply[4]:
            mark, *reply = await self._log(run.run_id, reply[4], last, _ALL)
            if mark != unchanged:
                return None
            found += read(run.run_id, reply)
        _check_unbroken(run, found, last=last)
        return found

    async def _history(self, run_id: str, after: int, limit: int) -> Sequence[Snapshot]:
        found: list[Snapshot] = []
        first: bytes | int = max(after + 1, 0)
        while first != b'' and len(found) < limit:
            _, *reply = await self._log(run_id, first, '+', limit - len(found))
            found += read_snapshots(run_id, reply)
            first = reply[4]
        return found

    async def _log(
        self, run_id: str, first: bytes | int, last: str | int, count: int
    ) -> list[bytes]:
        keys = self._keys(run_id)
        return await self._call('history', (keys.run, keys.log), first, last, count, _REPLY_BYTES)

    async def _find(self, query: RunQuery) -> Sequence[Run]:
        return await find(*self._now, query)

    async def _candidates(self, graphs: Sequence[str], limit: int) -> Sequence[Run]:
        return await find_candidates(*self._now, graphs, limit)

    async def _requests(self, query: RequestQuery) -> Sequence[Request]:
        return await find_requests(*self._now, query)

    # --- conversations ----------------------------------------------------------------------------

    async def _write_conversation(self, write: ConversationWrite) -> bool:
        return await write_conversation(*self._now, write)

    async def _delete_conversation(self, conversation_id: str, revision: str) -> bool:
        return await delete_conversation(*self._now, conversation_id, revision)

    async def _conversations(self, query: ConversationQuery) -> Sequence[StoredConversation]:
        return await find_conversations(*self._now, query)

    async def _entries(self, query: EntriesQuery) -> StoredEntries | None:
        return await find_entries(*self._now, query)

    async def _watch(self, heard: Callable[[str | None], None]) -> None:
        await watch(*self._now, heard, timeout=self._timeout)


def _header(run_id: str, header: bytes) -> Run:
    try:
        return read_header(run_id, header)
    except HeaderError as e:
        raise DamagedRunError(run_id=run_id, seq=None, reason=f'its header has {e}') from e


def _unavailable(results: Sequence[BaseException | None]) -> dict[int, StoreUnavailableError]:
    return {i: e for i, e in enumerate(results) if isinstance(e, StoreUnavailableError)}


def _check_unbroken(run: Run, found: Sequence[SnapshotT], *, last: int) -> None:
    """Refuse a chain that lacks a snapshot: what comes after it would change the wrong document."""
    first = run.full_seq if last >= run.full_seq else found[0].seq
    if found and (found[0].seq, found[-1].seq, len(found)) == (first, last, last - first + 1):
        return
    there = {snapshot.seq for snapshot in found}
    missing = next(seq for seq in range(first, last + 1) if seq not in there)
    raise DamagedRunError(run_id=run.run_id, seq=missing, reason='it is missing')
