"""Answers as JSON: what fits the stored schema, and what pydantic reads of it."""

from __future__ import annotations

from typing import Any

import pytest
from jsonschema import Draft202012Validator
from pydantic import TypeAdapter, ValidationError
from pydantic_core import to_jsonable_python

from graphkeep.agents import Approval, ExternalResult


@pytest.mark.parametrize(
    ('type_', 'answer'),
    [
        (Approval, True),
        (Approval, {'approved': True, 'override_args': {'n': 1}}),
        (Approval, Approval(approved=False, message='no')),
        (Approval, {'approved': False, 'message': None}),
        (ExternalResult, {'result': None}),
        (ExternalResult, ExternalResult(result=[1])),
        (ExternalResult, ExternalResult(retry='again')),
        (ExternalResult, {'failed': 'gone'}),
    ],
    ids=repr,
)
def test_what_fits(type_: Any, answer: Any) -> None:
    adapter = TypeAdapter(type_)
    plain = to_jsonable_python(answer)
    Draft202012Validator(adapter.json_schema()).validate(plain)
    assert isinstance(adapter.validate_python(plain), type_)


@pytest.mark.parametrize(
    ('type_', 'answer'),
    [
        (Approval, 1),
        (Approval, 'true'),
        (Approval, {}),
        (Approval, {'approved': 'yes'}),
        (Approval, {'approved': True, 'overide_args': {}}),
        (Approval, {'approved': True, 'override_args': []}),
        (Approval, {'approved': True, 'message': 'but why'}),
        (Approval, {'approved': False, 'override_args': {'amount': 1}}),
        (ExternalResult, {}),
        (ExternalResult, 5),
        (ExternalResult, {'result': 1, 'retry': 'x'}),
        (ExternalResult, {'retry': None}),
        (ExternalResult, {'other': 1}),
    ],
    ids=repr,
)
def test_what_does_not_fit(type_: Any, answer: Any) -> None:
    adapter = TypeAdapter(type_)
    assert not Draft202012Validator(adapter.json_schema()).is_valid(answer)
    if answer != {'retry': None}:
        with pytest.raises(ValidationError):
            adapter.validate_python(answer)
