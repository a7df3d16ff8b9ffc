"""The benchmarks run, and their counts and bytes are as promised. Their times are no test."""

from __future__ import annotations

import asyncio
import json
import os
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from benchmarks.bench import CLASSIC, Bench
from benchmarks.counting import transactions_of
from benchmarks.report import Line, at_least, at_most, exactly, ratio

ROOT = Path(__file__).resolve().parent.parent
SCRIPT = ROOT / 'benchmarks/run.py'


def figures(where: Path, *arguments: str) -> dict[str, Any]:
    """Run the benchmarks, and give what they left."""
    path = where / 'bench.json'
    command = [sys.executable, SCRIPT, '--quick', '--json', path, *arguments]
    ended = subprocess.run(
        command, check=False, capture_output=True, text=True, cwd=where, timeout=170
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr
    found: dict[str, Any] = json.loads(path.read_text())
    if os.environ.get('CI'):
        assert not [note for note in found['left_out'] if 'server' in note]
    return found


@pytest.mark.postgres
@pytest.mark.redis
def test_counts_and_bytes_are_as_promised(tmp_path: Path) -> None:
    found = figures(tmp_path, '--only', 'transactions,bytes')
    counted = found['topics']['transactions']
    assert len(counted) >= (2 if CLASSIC else 1)
    for line in counted:
        assert line['raw']['measured'] == line['raw']['baseline'], line
        assert line['met'] is True
    if not CLASSIC:
        assert 'bytes: needs pydantic-graph 1.x' in found['left_out']
        return
    lines = found['topics']['bytes']
    ours = [line for line in lines if line['what'].startswith('graphkeep') and line['target']]
    assert len(ours) >= 2
    assert [line['what'] for line in ours if not line['met']] == []
    [upstream] = [line for line in lines if 'FileState' in line['what'] and 'all' in line['what']]
    assert upstream['figure'] > 10 * max(line['figure'] for line in ours)


@pytest.mark.postgres
@pytest.mark.redis
def test_what_waits_holds_nothing_and_is_found_by_an_index(tmp_path: Path) -> None:
    found = figures(tmp_path, '--only', 'pauses')
    lines = found['topics']['pauses']
    held = [line for line in lines if 'held for' in line['what']]
    assert len(held) >= 2
    assert [line['figure'] for line in held] == [0] * len(held), held
    counted = [line for line in lines if line['measured'].endswith('transactions')]
    assert len(counted) >= (2 if CLASSIC else 1)
    for line in counted:
        raw = line['raw']
        made = raw['until_paused'], raw['answer'], raw['rest']
        # Created, and all nodes but the one that asks; the pause. Claimed, and that node.
        assert made == (raw['n'] + 1, 1, 2), line
        assert line['met'] is True
    listed = [line['raw'] for line in lines if 'in the database' in line['baseline']]
    assert len(listed) >= 2
    for raw in listed:
        assert raw['queries'] <= (2 if raw['limit'] == 100 else 22)
    sqlite = [line['raw'] for line in lines if line['what'].startswith('SQLite: listing')]
    assert [(raw['queries'], raw['by_index']) for raw in sqlite] == [(1, 1), (1, 1)]


@pytest.mark.skipif(CLASSIC, reason='pydantic-ai 1.x has no conversation store')
@pytest.mark.postgres
@pytest.mark.redis
def test_a_save_of_a_conversation_writes_what_was_added(tmp_path: Path) -> None:
    found = figures(tmp_path, '--only', 'conversations')
    lines = {line['what']: line for line in found['topics']['conversations']}
    counted = [line for line in lines.values() if line['target'] in ('= 1', '= 2')]
    assert len(counted) >= 2
    assert [line['what'] for line in counted if not line['met']] == []
    for name in ('SQLite', 'Postgres', 'Redis'):
        of = [line for what, line in lines.items() if what.startswith(name)]
        if not of:
            assert name != 'SQLite'
            continue
        [ours, whole] = [line for line in of if 'bytes written' in line['what']]
        assert ours['met'] is True, ours
        assert whole['figure'] > 2 * ours['figure']
        runs = [line for line in of if 'KeepRun' in line['what']]
        assert [line['raw']['writes'] for line in runs] == [10, 10]


def test_an_unknown_topic_is_refused() -> None:
    command = [sys.executable, SCRIPT, '--only', 'append,speed']
    ended = subprocess.run(command, check=False, capture_output=True, text=True, timeout=60)
    assert ended.returncode == 2
    assert "['speed']" in ended.stderr
    assert 'appendonly' in ended.stderr


def test_transactions_of_a_sqlite_file_are_counted() -> None:
    with Bench(quick=True) as bench:
        path = bench.file()
        count = transactions_of(bench, 'sqlite', f'sqlite:///{path}')
        with closing(sqlite3.connect(path, isolation_level=None)) as connection:
            connection.execute('PRAGMA journal_mode = WAL').close()
            connection.execute('CREATE TABLE t (data TEXT)')
            before = count()
            for number in range(3):
                connection.execute('BEGIN')
                for _ in range(number + 1):
                    # More than a page: a transaction of several frames is still one.
                    connection.execute('INSERT INTO t VALUES (?)', ('x' * 20_000,))
                connection.execute('COMMIT')
            connection.execute('SELECT count(*) FROM t').fetchall()
            assert count() - before == 3
            connection.execute('PRAGMA wal_checkpoint(FULL)').fetchall()
            # The log begins again, over the frames that were there.
            connection.execute("INSERT INTO t VALUES ('y')")
            assert count() == 1


@pytest.mark.parametrize(
    ('target', 'met', 'missed'),
    [(at_most(1.2), 1.2, 1.21), (at_least(5), 5.0, 4.9), (exactly(21), 21, 22)],
)
def test_a_target_is_met_or_missed(target: Any, met: float, missed: float) -> None:
    assert Line(what='', measured='', figure=met, target=target).met is True
    assert Line(what='', measured='', figure=missed, target=target).met is False
    assert Line(what='', measured='', figure=met).met is None


def test_a_ratio_is_of_what_is_shown() -> None:
    line = ratio('a commit', 300e-6, 200e-6, of='INSERT', target=at_most(1.3))
    assert (line.measured, line.baseline) == ('300 µs', '200 µs  INSERT')
    assert line.figure == pytest.approx(1.5)
    assert line.met is False
    assert json.loads(json.dumps(line.as_json()))['target'] == '≤ 1.3 ×'


def test_topics_run_without_a_loop_around_them() -> None:
    """Each has a loop of its own: a store belongs to one."""
    from benchmarks.topics import transactions

    with Bench(quick=True) as bench:
        bench.postgres = bench.redis = None
        [*lines] = asyncio.run(transactions.measure(bench))
        assert {line.what.partition(',')[0] for line in lines} == {'SQLite'}
