"""What a SQLite store does to its table of requests. Synchronous, as `sqlite_runs`."""

from __future__ import annotations

import json
import logging
import sqlite3
from typing import Any

from ..errors import DamagedRunError
from ..requests import Request, RequestQuery
from ..runs import Commit
from .sqlite_connections import Reader, Writer
from .sqlite_file import SQLiteFile
from .sqlite_rows import clock, micros, request_of, stamp, to_json

__all__ = ('SQLiteRequests',)

logger = logging.getLogger('graphkeep')


class SQLiteRequests:
    """The requests of one store. The methods are hooks of `Store`, which says what each does."""

    def __init__(self, file: SQLiteFile) -> None:
        self._sql = file.statements
        find = self._sql['find_requests']
        self._find_any = find.replace('{which}', 'true')
        self._find_of_run = find.replace('{which}', self._sql['if_of_run'])
        self._find_open = find.replace('{which}', self._sql['if_open'])

    def write(self, connection: sqlite3.Connection, commit: Commit, now: int) -> None:
        """Store what a commit asks and closes, and pause its run: in the commit's transaction."""
        run_id = commit.claim.run_id
        wakes = [] if commit.wake_at is None else [stamp(commit.wake_at)]
        for new in commit.asks:
            deadline = None if new.timeout is None else now + micros(new.timeout)
            values = {
                'run_id': run_id,
                'request_id': new.request_id,
                'name': new.name,
                'node': new.node,
                'task': new.task,
                'prompt': None if new.prompt is None else to_json(new.prompt),
                'payload': new.payload,
                'schema': new.schema,
                'deadline': deadline,
                'error': None if new.error is None else to_json(new.error),
                'now': now,
            }
            # Of a request that is there already, and stays as it is, nothing is returned.
            wakes += [
                at for (at,) in connection.execute(self._sql['ask'], values) if at is not None
            ]
        for request_id in commit.closes:
            closed = {'run_id': run_id, 'request_id': request_id, 'now': now}
            connection.execute(self._sql['close_request'], closed)
        if commit.status == 'paused':
            wake_at = min(wakes, default=None)
            paused = {'run_id': run_id, 'answered': commit.answered, 'wake_at': wake_at}
            connection.execute(self._sql['pause'], paused)

    def answer(
        self, writer: Writer, run_id: str, request_id: str, answer: bytes, by: str | None
    ) -> Request | None:
        """As `Store._answer`."""
        with writer.transaction(size=len(answer)) as connection:
            now = clock()
            values = {
                'run_id': run_id,
                'request_id': request_id,
                'answer': answer,
                'by': by,
                'now': now,
            }
            if connection.execute(self._sql['answer'], values).rowcount == 1:
                connection.execute(self._sql['count_answer'], {'run_id': run_id, 'now': now})
            else:
                connection.execute(self._sql['expire'], {'run_id': run_id, 'now': now})
            query = RequestQuery(run_id=run_id, request_id=request_id, limit=1)
            return next(iter(self._find(connection, query)), None)

    def expire(self, writer: Writer, run_id: str) -> None:
        """As `Store._expire`."""
        with writer.transaction() as connection:
            connection.execute(self._sql['expire'], {'run_id': run_id, 'now': clock()})

    def find(self, reader: Reader, query: RequestQuery) -> list[Request]:
        """As `Store._requests`."""
        return self._find(reader.connection, query)

    def _find(self, connection: sqlite3.Connection, query: RequestQuery) -> list[Request]:
        created_at, after_run, after_request = query.after or (None, '', '')
        before = query.created_before
        values: dict[str, Any] = {
            'run_id': query.run_id,
            'request_id': query.request_id,
            'name': query.name,
            'graph': query.graph,
            'labels': to_json(dict(query.labels)) if query.labels else None,
            'status': json.dumps(query.status) if query.status else None,
            'unused': query.unused,
            'created_before': None if before is None else stamp(before),
            'after': None if created_at is None else stamp(created_at),
            'after_run': after_run,
            'after_request': after_request,
            'limit': -1 if query.limit is None else query.limit,
        }
        statement = self._find_any
        if query.run_id is not None:
            statement = self._find_of_run
        elif query.status == ('open',):
            statement = self._find_open
            values['status'] = None  # said already: asked again of each row, it takes time
        found: list[Request] = []
        for row in _rows(connection, statement, values):
            try:
                found.append(request_of(row))
            except DamagedRunError as e:
                if query.run_id is not None:
                    raise
                # One that is damaged does not hide the others.
                logger.warning('left out of a list of requests: %s', e)
        return found


def _rows(
    connection: sqlite3.Connection, statement: str, values: dict[str, Any]
) -> list[tuple[Any, ...]]:
    """All rows of a statement. Ours hold plain UTF-8, which the driver reads in a third of the time
    that it takes to ask us of every text; only what a foreign hand has written does not.
    """
    careful = connection.text_factory
    connection.text_factory = str
    try:
        return connection.execute(statement, values).fetchall()
    except sqlite3.OperationalError:
        pass  # a text that is none; or whatever the second try will say
    finally:
        connection.text_factory = careful
    return connection.execute(statement, values).fetchall()
