"""What is promised of the refunds, checked against what was seen. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from graph import Outcome
from killing.records import Promise
from payments import Payment

from graphkeep import Request

__all__ = ('Evidence', 'Kill', 'check')


@dataclass(frozen=True, kw_only=True)
class Kill:
    """What was seen of one worker that was killed, from outside."""

    pid: int
    code: int
    """What it ended with; on POSIX -9 for SIGKILL."""
    place: str | None
    """Where it was killed, 'paid A-1001'; `None` if nothing ran."""
    waiting: Mapping[str, str]
    """The open requests just after that, by the order."""


@dataclass(frozen=True, kw_only=True)
class Evidence:
    """All that was seen."""

    expected: Mapping[str, int]
    """What has to be refunded for each order, in cents."""
    kills: Sequence[Kill]
    code: int
    """What the last worker ended with."""
    statuses: Mapping[str, str]
    """Of the run of each order."""
    outcomes: Mapping[str, Outcome]
    requests: Sequence[Request]
    """Every request of the runs, whatever became of it."""
    answered: Mapping[str, str]
    """The request of each order that was answered."""
    ledger: Sequence[Payment]
    """What the payment provider has paid."""


def check(evidence: Evidence) -> Iterator[Promise]:
    """Hold what was seen against each promise."""
    expected, ledger = evidence.expected, evidence.ledger

    unended = [order for order in expected if evidence.statuses.get(order) != 'done']
    yield Promise(
        text='Every refund ends',
        kept=not unended,
        seen=f'{len(expected) - len(unended)} have, {len(evidence.kills)} workers were killed',
    )

    times = Counter(payment.order for payment in ledger)
    due = Counter(order for order, cents in expected.items() if cents)
    yield Promise(
        text='Each order is refunded once, if at all',
        kept=times == due,
        seen=f'{times.total()} refunds in the ledger, {len(expected) - len(due)} denied',
    )

    moved = {payment.order: (payment.cents, payment.receipt) for payment in ledger}
    told = {o: (each.refunded, each.receipt) for o, each in evidence.outcomes.items()}
    yield Promise(
        text='What is refunded is what was approved, and what the run says',
        kept=all(
            moved.get(o, (0, None)) == told[o] and told[o][0] == expected[o] for o in expected
        ),
        seen=f'{sum(payment.cents for payment in ledger) / 100:.2f} euros',
    )

    asked = {request.labels['order']: request.request_id for request in evidence.requests}
    lasting = all(asked.get(o) == r for kill in evidence.kills for o, r in kill.waiting.items())
    answered = all(request.answered_by == 'demo' for request in evidence.requests)
    yield Promise(
        text='No request is lost or doubled',
        kept=len(asked) == len(evidence.requests)
        and asked == evidence.answered
        and lasting
        and answered,
        seen=f'{len(evidence.requests)} requests, each answered once',
    )

    calls = {payment.order: payment.calls for payment in ledger}
    places = [kill.place.split() for kill in evidence.kills if kill.place]
    paid = [order for verb, order in places if verb == 'paid']
    yield Promise(
        text='Nobody knew that it was paid: asked again, under the same key',
        kept=all(calls.get(order, 0) > 1 for order in paid),
        seen=', '.join(f'{order}: {calls.get(order, 0)} calls' for order in paid),
    )

    kept = [order for verb, order in places if verb == 'reply']
    yield Promise(
        text='It was kept that it was paid: not asked again',
        kept=all(calls.get(order) == 1 for order in kept),
        seen=', '.join(f'{order}: {calls.get(order, 0)} call' for order in kept),
    )

    yield Promise(
        text='A worker that is stopped ends well',
        kept=evidence.code == 0,
        seen=f'code {evidence.code}',
    )
