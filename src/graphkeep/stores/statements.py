"""SQL statements by name, from the files in `sql/`.

A statement begins with `-- name: append_commit`. The comment lines after it say which invariant it
keeps; they are not sent to the database. `{prefix}` is where the prefix of the tables goes.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cache
from importlib.resources import files
from types import MappingProxyType

__all__ = ('check_prefix', 'load', 'migrations')

_SQL = files('graphkeep.stores').joinpath('sql')
_PREFIX = re.compile(r'[a-z_][a-z0-9_]{0,31}')
_NAME = re.compile(r'--\s*name:\s*([a-z][a-z0-9_]*)\s*')


@cache
def load(filename: str, *, prefix: str) -> Mapping[str, str]:
    """The statements of one file, in its order.

    Args:
        filename: A file in `sql/`, e.g. `sqlite_runs.sql`.
        prefix: What the names of our tables and indexes begin with.

    Raises:
        ValueError: `prefix` is not a plain identifier.
    """
    check_prefix(prefix)
    text = _SQL.joinpath(filename).read_text(encoding='utf-8')
    return MappingProxyType(
        {name: sql.replace('{prefix}', prefix) for name, sql in _split(text, filename).items()}
    )


@cache
def migrations(database: str, *, prefix: str) -> Mapping[int, tuple[str, ...]]:
    """What leads from each schema version to the next, in order. Version 1 starts from nothing.

    These are the statements of the files `sql/<database>_v<version>.sql`. Errors as in `load`.
    """
    check_prefix(prefix)
    pattern = re.compile(rf'{re.escape(database)}_v(\d+)\.sql')
    found: dict[int, tuple[str, ...]] = {}
    for file in _SQL.iterdir():
        if match := pattern.fullmatch(file.name):
            found[int(match[1])] = tuple(load(file.name, prefix=prefix).values())
    return MappingProxyType(dict(sorted(found.items())))


def check_prefix(prefix: str) -> str:
    """Refuse what may not stand in a table's name without quotes, the same in every database.

    Raises:
        TypeError: It is not a string.
        ValueError: It is not 1 to 32 lower-case ASCII letters, digits and underscores, or begins
            with a digit.
    """
    if not isinstance(prefix, str):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise TypeError(f'table_prefix must be a string, got {type(prefix).__name__}')
    if not _PREFIX.fullmatch(prefix):
        raise ValueError(
            f'table_prefix {prefix!r} cannot begin the name of a table: use 1 to 32 lower-case '
            'letters a-z, digits and underscores, not a digit first'
        )
    return prefix


def _split(text: str, filename: str) -> dict[str, str]:
    lines: dict[str, list[str]] = {}
    current: list[str] | None = None
    for line in text.splitlines():
        if match := _NAME.fullmatch(line):
            if match[1] in lines:
                raise ValueError(f'{filename}: two statements are named {match[1]!r}')
            current = lines[match[1]] = []
        elif line.strip() and not line.lstrip().startswith('--'):
            if current is None:
                raise ValueError(f'{filename}: {line!r} stands before the first name')
            current.append(line)
    statements = {name: '\n'.join(body).strip().removesuffix(';') for name, body in lines.items()}
    if empty := [name for name, sql in statements.items() if not sql]:
        raise ValueError(f'{filename}: nothing stands under {", ".join(empty)}')
    return statements
