"""The statement that finds runs, put together from the conditions that a query has."""

from __future__ import annotations

import json
from collections.abc import Mapping

from ..runs import RunQuery

__all__ = ('finding',)


def finding(sql: Mapping[str, str], query: RunQuery) -> tuple[str, list[object]]:
    """The statement for a query, and its values.

    Args:
        sql: The statements of `postgres_runs.sql`. Nothing of the query itself goes into the text.
        query: What is wanted.
    """
    values: list[object] = [query.limit]
    conditions: list[str] = []

    def add(name: str, *given: object) -> None:
        condition = sql[name]
        for place, value in zip(('{n}', '{m}'), given, strict=False):
            values.append(value)
            condition = condition.replace(place, f'${len(values)}')
        conditions.append(condition)

    if query.graph is not None:
        add('if_graph', query.graph)
    if len(query.status) == 1:
        add('if_status', *query.status)
    elif query.status:
        add('if_statuses', query.status)
    if query.interrupted is not None:
        add('if_interrupted' if query.interrupted else 'if_not_interrupted')
    if query.labels:
        add('if_labels', json.dumps(dict(query.labels)))
    if query.parent_run_id is not None:
        add('if_parent', query.parent_run_id)
    if query.updated_before is not None:
        add('if_updated_before', query.updated_before)
    if query.after is not None:
        add('if_after', *query.after)
    return sql['find_runs'].replace('{conditions}', ' AND '.join(conditions) or 'true'), values
