"""The statements that find runs and requests, put together from the conditions that a query has."""

from __future__ import annotations

import json
from collections.abc import Mapping

from ..requests import RequestQuery
from ..runs import RunQuery

__all__ = ('finding', 'finding_requests')


def finding(sql: Mapping[str, str], query: RunQuery) -> tuple[str, list[object]]:
    """The statement for a query, and its values.

    Args:
        sql: The statements of `postgres_runs.sql`. Nothing of the query itself goes into the text.
        query: What is wanted.
    """
    wanted = _Conditions(sql, limit=query.limit)
    if query.graph is not None:
        wanted.add('if_graph', query.graph)
    if len(query.status) == 1:
        wanted.add('if_status', *query.status)
    elif query.status:
        wanted.add('if_statuses', query.status)
    if query.interrupted is not None:
        wanted.add('if_interrupted' if query.interrupted else 'if_not_interrupted')
    if query.labels:
        wanted.add('if_labels', json.dumps(dict(query.labels)))
    if query.parent_run_id is not None:
        wanted.add('if_parent', query.parent_run_id)
    if query.updated_before is not None:
        wanted.add('if_updated_before', query.updated_before)
    if query.after is not None:
        wanted.add('if_after', *query.after)
    return wanted.into('find_runs')


def finding_requests(sql: Mapping[str, str], query: RequestQuery) -> tuple[str, list[object]]:
    """As `finding`, of requests."""
    wanted = _Conditions(sql, limit=query.limit)
    if query.run_id is not None:
        wanted.add('if_request_run', query.run_id)
    if query.request_id is not None:
        wanted.add('if_request', query.request_id)
    if query.name is not None:
        wanted.add('if_name', query.name)
    if query.graph is not None:
        wanted.add('if_graph', query.graph)
    if query.labels:
        wanted.add('if_labels', json.dumps(dict(query.labels)))
    if query.status == ('open',):
        wanted.add('if_open')
    elif query.status:
        wanted.add('if_request_statuses', query.status)
    if query.unused:
        wanted.add('if_unused')
    if query.created_before is not None:
        wanted.add('if_created_before', query.created_before)
    if query.after is not None:
        wanted.add('if_request_after', *query.after)
    of_runs = query.graph is not None or bool(query.labels)
    return wanted.into('find_requests' if of_runs else 'find_requests_alone')


class _Conditions:
    """The conditions of one query, and the values of all its parameters: the first is the limit."""

    def __init__(self, sql: Mapping[str, str], *, limit: int | None) -> None:
        self._sql = sql
        self._values: list[object] = [limit]
        self._conditions: list[str] = []

    def add(self, name: str, *given: object) -> None:
        condition = self._sql[name]
        for place, value in zip(('{n}', '{m}', '{k}'), given, strict=False):
            self._values.append(value)
            condition = condition.replace(place, f'${len(self._values)}')
        self._conditions.append(condition)

    def into(self, name: str) -> tuple[str, list[object]]:
        conditions = ' AND '.join(self._conditions) or 'true'
        return self._sql[name].replace('{conditions}', conditions), self._values
