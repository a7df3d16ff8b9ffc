from __future__ import annotations

import re
from importlib.resources import files

import pytest

from graphkeep.stores import statements
from graphkeep.stores.statements import check_prefix, load, migrations

FILES = sorted(
    file.name
    for file in files('graphkeep.stores').joinpath('sql').iterdir()
    if file.name.endswith('.sql')
)


@pytest.mark.parametrize('filename', FILES)
def test_every_statement_that_writes_says_what_it_keeps(filename: str) -> None:
    text = files('graphkeep.stores').joinpath('sql', filename).read_text()
    sections = re.split(r'^-- name: ', text, flags=re.MULTILINE)[1:]
    assert len(sections) == len(load(filename, prefix='graphkeep'))
    writes = re.compile(r'^\s*(INSERT|UPDATE|DELETE|CREATE|ALTER)\b', re.MULTILINE)
    silent = [
        section.split()[0]
        for section in sections
        if writes.search(section) and not section.splitlines()[1].startswith('-- ')
    ]
    assert not silent


@pytest.mark.parametrize('filename', FILES)
def test_every_table_has_the_prefix(filename: str) -> None:
    for sql in load(filename, prefix='xyz').values():
        assert '{prefix}' not in sql
        assert 'graphkeep_' not in sql


def test_comments_are_not_sent_to_the_database() -> None:
    for sql in load('sqlite_runs.sql', prefix='graphkeep').values():
        assert '--' not in sql
        assert sql == sql.strip()


def test_statements_keep_the_order_of_the_file() -> None:
    assert next(iter(load('sqlite_v1.sql', prefix='graphkeep'))) == 'create_meta'


def test_migrations_are_in_order_and_without_gaps() -> None:
    for database in ('sqlite', 'postgres'):
        found = list(migrations(database, prefix='graphkeep'))
        assert found == list(range(1, len(found) + 1))


@pytest.mark.parametrize('prefix', ['graphkeep', '_', 'a1_b', 'x' * 32])
def test_a_plain_identifier_is_a_prefix(prefix: str) -> None:
    assert check_prefix(prefix) == prefix


@pytest.mark.parametrize(
    'prefix', ['', '1a', 'a-b', 'a b', 'A', 'ä', 'a;drop', 'a"', "a'", 'a\n', 'x' * 33, '{prefix}']
)
def test_anything_else_is_refused(prefix: str) -> None:
    with pytest.raises(ValueError, match='table_prefix'):
        load('sqlite_runs.sql', prefix=prefix)
    with pytest.raises(ValueError, match='table_prefix'):
        migrations('sqlite', prefix=prefix)


def test_a_prefix_that_is_no_string_is_refused() -> None:
    with pytest.raises(TypeError, match='int'):
        check_prefix(7)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ('text', 'reason'),
    [
        ('SELECT 1\n', 'before the first name'),
        ('-- name: a\n-- Why.\nSELECT 1\n-- name: a\nSELECT 2\n', "named 'a'"),
        ('-- name: a\n-- Why.\n\n-- name: b\nSELECT 2\n', 'nothing stands under a'),
    ],
)
def test_a_file_that_is_not_as_it_should_be_is_refused(text: str, reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        statements._split(text, 'x.sql')
