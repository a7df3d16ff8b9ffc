"""The record of a conversation as it is stored: upstream's, and the run that is under way in it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, cast

from pydantic_ai.conversation_store import ConversationRecord
from pydantic_ai.tools import DeferredToolRequests
from pydantic_ai.usage import RunUsage

from ..conversations import StoredConversation
from ..errors import DamagedConversationError, FormatVersionError, LossyStateError
from .plain import REQUESTS, USAGE, requests_as_json

__all__ = ('FORMAT', 'Unfinished', 'new_revision', 'record_of', 'row_of')

FORMAT = 1
"""Version of the JSON beside the columns."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Unfinished:
    """An agent's run that is under way in a conversation, or was when its process died."""

    run_id: str
    owner: str | None
    """The process that runs it; `None` if it has left it."""
    asked: str | None = None
    """SHA-256 of its prompt, 64 hex digits; `None` if it was given none."""
    prompt: Any = None
    """The request with the prompt alone, as JSON: until a message has it. Not a large one."""
    has_results: bool = False
    """Whether it was given the results of deferred tools."""
    decided: Mapping[str, str] = field(default_factory=dict[str, str])
    """What these were, by the id of the call: `approved`, `denied` or `result`."""
    tip: str | None = None
    """The last entry of its history."""
    count: int = 0
    """How many entries behind the head of the conversation lead to it."""
    pending: Any = None
    """The next request, as JSON: not in its final form, and so no entry yet."""
    returns: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """What the tools of the last response have returned so far, as JSON, by the id of the call."""
    usage: RunUsage = field(default_factory=RunUsage)
    """What this run has used."""
    step: int = 0
    """Requests to the model so far."""
    retries: int = 0
    """How often the output was refused so far."""


def new_revision() -> str:
    """A revision that no record has: as upstream makes one."""
    return ConversationRecord(conversation_id='', head_id=None).revision


def row_of(record: ConversationRecord, unfinished: Unfinished | None = None) -> StoredConversation:
    """A record as it is stored.

    Raises:
        LossyStateError: The metadata of a deferred call would not come back as it is.
    """
    tips = [record.head_id, *record.branches]
    rest: dict[str, Any] = {'format': FORMAT, 'head': record.head_id}
    if record.branches:
        rest['branches'] = record.branches
    rest['usage'] = _small(USAGE.dump_python(record.usage, mode='json'))
    if record.deferred_tool_requests is not None:
        rest['deferred'] = _requests(record)
    if record.forked_from is not None:
        rest['forked_from'], rest['forked_at'] = record.forked_from, record.forked_at
    if unfinished is not None:
        tips.append(unfinished.tip)
        rest['run'] = _run(unfinished)
    return StoredConversation(
        conversation_id=record.conversation_id,
        revision=record.revision,
        scope=record.scope,
        updated_at=record.updated_at,
        tips=tuple(dict.fromkeys(tip for tip in tips if tip is not None)),
        data=json.dumps(rest, separators=(',', ':')).encode(),
    )


def record_of(row: StoredConversation) -> tuple[ConversationRecord, Unfinished | None]:
    """What `row_of` made a row of.

    Raises:
        DamagedConversationError: It has made nothing like this.
        FormatVersionError: A newer graphkeep has.
    """
    try:
        rest: dict[str, Any] = json.loads(row.data)
        found = rest['format']
        if found != FORMAT and isinstance(found, int):
            raise FormatVersionError(run_id=row.conversation_id, found=found, known=FORMAT)
        head = rest['head']
        branches = rest.get('branches', [])
        run = rest.get('run')
        named = [head, *branches, None if run is None else run['tip']]
        if not {tip for tip in named if tip is not None} == set(row.tips):
            raise ValueError('it names other entries than it holds')
        deferred = rest.get('deferred')
        record = ConversationRecord(
            conversation_id=row.conversation_id,
            head_id=head,
            usage=USAGE.validate_python(rest['usage']),
            deferred_tool_requests=None if deferred is None else REQUESTS.validate_python(deferred),
            scope=row.scope,
            forked_from=rest.get('forked_from'),
            forked_at=rest.get('forked_at'),
            branches=branches,
            revision=row.revision,
            updated_at=row.updated_at,
        )
        return record, None if run is None else _unfinished(run)
    except (ValueError, TypeError, LookupError, AttributeError) as e:
        if isinstance(e, FormatVersionError):
            raise
        reason = f'its row cannot be read ({type(e).__name__}: {e})'.replace('\n', ' ')[:300]
        raise DamagedConversationError(conversation_id=row.conversation_id, reason=reason) from e


def _requests(record: ConversationRecord) -> Any:
    given = cast('DeferredToolRequests', record.deferred_tool_requests)
    dumped = requests_as_json(given)
    try:
        kept = REQUESTS.validate_python(json.loads(json.dumps(dumped, allow_nan=False)))
    except (TypeError, ValueError) as e:
        kept, why = None, f': {e}'
    else:
        why = ''
    if kept != given:
        raise LossyStateError(
            f'The deferred calls of conversation {record.conversation_id!r} would not come back as '
            f'they are{why}. Nothing was written. Let the metadata of a call be plain JSON.',
            path='deferred_tool_requests',
        )
    return dumped


def _run(run: Unfinished) -> dict[str, Any]:
    return {
        'id': run.run_id,
        'owner': run.owner,
        'asked': run.asked,
        'prompt': run.prompt,
        'has_results': run.has_results,
        'decided': dict(run.decided),
        'tip': run.tip,
        'count': run.count,
        'pending': run.pending,
        'returns': dict(run.returns),
        'usage': _small(USAGE.dump_python(run.usage, mode='json')),
        'step': run.step,
        'retries': run.retries,
    }


def _unfinished(run: dict[str, Any]) -> Unfinished:
    values = {name: value for name, value in run.items() if name not in ('id', 'usage')}
    made = Unfinished(run_id=run['id'], **values)
    return replace(made, usage=USAGE.validate_python(run['usage']))


def _small(usage: dict[str, Any]) -> dict[str, Any]:
    """Without what is nothing: it is written at every save."""
    return {name: value for name, value in usage.items() if value}
