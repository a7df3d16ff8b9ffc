"""The tables of conversations in Postgres as another program sees them."""

from __future__ import annotations

from typing import Any

from graphkeep.stores.statements import load
from tests.stores.postgres_tool import rows

__all__ = ('STATEMENTS', 'WRONG', 'counts', 'stored')

STATEMENTS = load('postgres_conversations.sql', prefix='graphkeep')
_TABLES = ('conversations', 'entries', 'blobs')

WRONG = """
    SELECT 'refs' AS what, entry_id FROM graphkeep_entries AS entry
    WHERE refs <> (SELECT count(*) FROM graphkeep_entries WHERE parent_id = entry.entry_id)
        + (SELECT count(*) FROM graphkeep_conversations WHERE entry.entry_id = ANY (tips))
    UNION ALL
    SELECT 'parent', entry_id FROM graphkeep_entries AS entry
    WHERE parent_id IS NOT NULL AND NOT EXISTS (
      SELECT FROM graphkeep_entries
      WHERE entry_id = entry.parent_id AND position = entry.position - 1
    )
    UNION ALL
    SELECT 'uses', hash FROM graphkeep_blobs WHERE uses <> (
      SELECT count(*) FROM graphkeep_entries WHERE strpos(places::text, encode(hash, 'hex')) > 0
    )
"""
"""What is not as it has to be: nothing of it may be found."""


async def stored(url: str) -> dict[str, list[dict[str, Any]]]:
    """All rows."""
    return {
        table: sorted(await rows(url, f'SELECT * FROM graphkeep_{table}'), key=repr)
        for table in _TABLES
    }


async def counts(url: str) -> list[int]:
    return [len(found) for found in (await stored(url)).values()]
