"""Errors carry their fields, are what one would catch, and go from process to process."""

from __future__ import annotations

import copy
import inspect
import pickle
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from datetime import UTC, datetime
from multiprocessing import get_context
from typing import Any

import pytest

from graphkeep import errors
from graphkeep.errors import GraphkeepError, RunBusyError
from graphkeep.requests import Request

KINDS = [getattr(errors, name) for name in errors.__all__]

ASKED = Request(
    run_id="run '1'",
    request_id='0:manager',
    name='manager',
    node='Node',
    task='0',
    status='answered',
    answer_json=b'{"ok":true}',
    created_at=datetime(2026, 11, 30, tzinfo=UTC),
)

FIELDS: dict[str, Any] = {
    'run_id': "run '1'",
    'owner': 'host/1/2/3/4/5',
    'lease_until': datetime(2026, 11, 30, tzinfo=UTC),
    'epoch': 7,
    'exists': False,
    'status': 'done',
    'expected_seq': 3,
    'seq': 4,
    'reason': 'it is missing',
    'found': 2,
    'known': 1,
    'node': 'Node',
    'path': 'state.a[0]',
    'driver': 'asyncpg',
    'extra': 'postgres',
    'steps': ('one', 'two'),
    'values': ('1', '2'),
    'message': 'what happened',
    'request_id': '0:manager',
    'request': ASKED,
    'requests': (ASKED,),
    'deadline': datetime(2026, 12, 1, tzinfo=UTC),
    'conversation_id': 'chat-1',
    'entry_id': '019',
    'position': 3,
    'library': '2.68.0',
    'here': '3.0.0',
    'updated_at': datetime(2026, 11, 30, tzinfo=UTC),
}


def parameters(kind: type[GraphkeepError]) -> dict[str, inspect.Parameter]:
    """What it takes; empty for a kind that takes a message only."""
    if not inspect.isfunction(kind.__init__):
        return {}
    return dict(inspect.signature(kind).parameters)


def an(kind: type[GraphkeepError]) -> GraphkeepError:
    """An error of this kind, with every field it takes."""
    make: Callable[..., GraphkeepError] = kind
    args: list[Any] = []
    fields: dict[str, Any] = {}
    for name, parameter in parameters(kind).items():
        if parameter.kind is parameter.KEYWORD_ONLY:
            fields[name] = FIELDS[name]
        elif parameter.kind is parameter.POSITIONAL_OR_KEYWORD:
            args.append(FIELDS[name])
    return make(*(args or ([] if fields else ['what happened'])), **fields)


@pytest.mark.parametrize('kind', KINDS)
def test_an_error_has_its_fields(kind: type[GraphkeepError]) -> None:
    error = an(kind)
    assert str(error)
    for name in parameters(kind):
        if name in FIELDS and name != 'message':
            assert getattr(error, name) == FIELDS[name]


@pytest.mark.parametrize('kind', [kind for kind in KINDS if 'run_id' in parameters(kind)])
def test_an_error_of_a_run_names_it(kind: type[GraphkeepError]) -> None:
    error = an(kind)
    assert getattr(error, 'run_id', None) == "run '1'"
    if 'message' not in parameters(kind):
        assert repr("run '1'") in str(error)


@pytest.mark.parametrize('kind', KINDS)
def test_an_error_is_the_same_in_another_process(kind: type[GraphkeepError]) -> None:
    error = an(kind)
    for again in (pickle.loads(pickle.dumps(error)), copy.copy(error), copy.deepcopy(error)):
        assert type(again) is kind
        assert str(again) == str(error)
        assert again.args == error.args
        assert again.__dict__ == error.__dict__


@pytest.mark.parametrize('kind', [kind for kind in KINDS if kind.__subclasses__() == []])
def test_an_error_is_a_builtin_that_one_would_catch(kind: type[GraphkeepError]) -> None:
    builtin = (
        ConnectionError,
        ImportError,
        LookupError,
        OSError,
        RuntimeError,
        TimeoutError,
        TypeError,
        ValueError,
    )
    assert issubclass(kind, builtin)


def _busy() -> None:
    raise an(RunBusyError)


@pytest.mark.leaks('files')  # of multiprocessing's own resource tracker
def test_a_process_pool_hands_an_error_over() -> None:
    context = get_context('spawn')
    with (
        ProcessPoolExecutor(1, mp_context=context) as pool,
        pytest.raises(RunBusyError) as caught,
    ):
        pool.submit(_busy).result()
    assert caught.value.owner == FIELDS['owner']
    assert caught.value.lease_until == FIELDS['lease_until']
