"""The records that every store speaks, and what may name things."""

from __future__ import annotations

import dataclasses
from datetime import UTC, datetime

import pytest

from graphkeep import runs
from graphkeep.runs import Claim, Run, check_labels, check_name, check_run_id

CLASSES = [each for name in runs.__all__ if isinstance(each := getattr(runs, name), type)]
RECORDS = [each for each in CLASSES if dataclasses.is_dataclass(each)]
TUPLES = [each for each in CLASSES if issubclass(each, tuple)]
"""Those that are made at every step."""


@pytest.mark.parametrize('record', RECORDS)
def test_records_are_frozen_slotted_and_keyword_only(record: type) -> None:
    assert hasattr(record, '__slots__')
    assert record.__dataclass_params__.frozen
    assert all(field.kw_only for field in dataclasses.fields(record))


@pytest.mark.parametrize('record', TUPLES)
def test_records_that_are_tuples_are_frozen(record: type) -> None:
    assert record.__slots__ == ()
    made = record(*range(len(record._fields)))
    with pytest.raises(AttributeError):
        setattr(made, record._fields[0], 1)


def test_there_are_records() -> None:
    assert len([*RECORDS, *TUPLES]) >= 8
    assert len(RECORDS) >= 7
    assert {each.__name__ for each in TUPLES} == {'Commit', 'Draft', 'SnapshotData'}


def header(**changes: object) -> Run:
    now = datetime(2026, 11, 30, tzinfo=UTC)
    run = Run(
        run_id='run-1', status='ready', seq=0, full_seq=0, epoch=7, created_at=now, updated_at=now
    )
    return dataclasses.replace(run, **changes)


def test_the_claim_of_a_run_is_its_owners() -> None:
    assert header(owner='me').claim() == Claim(run_id='run-1', owner='me', epoch=7)
    with pytest.raises(ValueError, match='not claimed'):
        header().claim()


@pytest.mark.parametrize(
    'run_id', ['a', ' ', '\n', '\x7f', "'; --", '{}', 'x' * 512, 'é' * 256, '🎉' * 128, '\u202e']
)
def test_1_to_512_bytes_name_a_run(run_id: str) -> None:
    check_run_id(run_id)


@pytest.mark.parametrize(
    ('run_id', 'error', 'says'),
    [
        ('', ValueError, '1 to 512 bytes'),
        ('x' * 513, ValueError, 'got 513'),
        ('é' * 257, ValueError, 'got 514'),
        ('🎉' * 129, ValueError, 'got 516'),
        ('a\0b', ValueError, 'NUL'),
        ('\ud800', ValueError, 'surrogate'),
        ('a\udfff', ValueError, 'surrogate'),
        (None, TypeError, 'NoneType'),
        (7, TypeError, 'int'),
        (b'run-1', TypeError, 'bytes'),
    ],
)
def test_what_cannot_name_a_run_is_refused(run_id: str, error: type[Exception], says: str) -> None:
    with pytest.raises(error, match=says) as caught:
        check_run_id(run_id)
    assert 'run_id' in str(caught.value)
    # The error itself can be shown, wherever it goes.
    str(caught.value).encode('utf-8')


def test_a_graph_may_have_no_name_but_not_an_empty_one() -> None:
    check_name(None, 'graph')
    check_name('orders', 'graph')
    for name in ('', 'a\0', '\ud800', 'x' * 513):
        with pytest.raises(ValueError, match='graph'):
            check_name(name, 'graph')


def test_labels_are_copied() -> None:
    labels = {'shop': 'Zürich', 'empty': '', 'x' * 512: 'y' * 512}
    checked = check_labels(labels)
    assert checked == labels
    assert checked is not labels
    assert check_labels(None) == {}


@pytest.mark.parametrize(
    ('labels', 'error'),
    [
        ({'': 'v'}, ValueError),
        ({'a\0': 'v'}, ValueError),
        ({'a': '\0'}, ValueError),
        ({'\udc00': 'v'}, ValueError),
        ({'a': '\udc00'}, ValueError),
        ({'a': 'x' * 513}, ValueError),
        ({'x' * 513: 'a'}, ValueError),
        ({'a': 1}, TypeError),
        ({1: 'a'}, TypeError),
        ({'a': None}, TypeError),
        ({'a': b'v'}, TypeError),
    ],
)
def test_what_cannot_be_a_label_is_refused(labels: dict[str, str], error: type[Exception]) -> None:
    with pytest.raises(error, match='label') as caught:
        check_labels(labels)
    str(caught.value).encode('utf-8')
