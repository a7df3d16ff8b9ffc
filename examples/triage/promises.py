"""What graphkeep promises, checked against what was seen. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from killing import records
from killing.records import Promise

__all__ = ('Evidence', 'Kept', 'Kill', 'Process', 'Promise', 'check', 'committed', 'ran_again')


class Kept(records.Kept):
    """What a store has of a run."""

    @property
    def pending(self) -> str | None:
        """The node that is next, or was running: 'Research T-1007'."""
        for task in self.document['tasks'].values():
            return f'{task["node"]} {task["inputs"]["case"]["ticket"]}'
        return None


@dataclass(frozen=True, kw_only=True)
class Process:
    """What was seen of one worker, from outside."""

    pid: int
    begun: Sequence[str]
    """The nodes that it began to run, in order: 'Research T-1007'."""
    killed_in: str | None = None
    code: int = 0
    """What it ended with; on POSIX -9 for SIGKILL."""


@dataclass(frozen=True, kw_only=True)
class Kill:
    """The store, just after a worker was killed."""

    killed_in: str
    kept: Kept


@dataclass(frozen=True, kw_only=True)
class Evidence:
    """All that was seen."""

    processes: Sequence[Process]
    kills: Sequence[Kill]
    kept: Kept
    """The run at its end."""
    undisturbed: Kept
    """The same work, done by a worker that nobody killed."""
    deliveries: Counter[str]
    """How often a reply to each ticket was delivered."""
    stored_bytes: int
    document_bytes: int


def check(evidence: Evidence) -> Iterator[Promise]:
    """Hold what was seen against each promise."""
    kept, undisturbed = evidence.kept, evidence.undisturbed
    steps = committed(kept)

    ended = [len(p.begun) - (p.killed_in is not None) for p in evidence.processes]
    expected = [sum(ended[: n + 1]) for n in range(len(evidence.kills))]
    found = [kill.kept.run.seq for kill in evidence.kills]
    yield Promise(
        text='A kill loses nothing that was committed',
        kept=found == expected,
        seen=f'{found} steps in the store, {expected} had ended',
    )

    in_flight = [kill.killed_in for kill in evidence.kills]
    pending = [kill.kept.pending for kill in evidence.kills]
    yield Promise(
        text='The store knows what was running',
        kept=pending == in_flight,
        seen=', '.join(map(str, pending)),
    )

    first_again = [process.begun[0] for process in evidence.processes[1:]]
    without = [
        place
        for process in evidence.processes
        for place in process.begun[: -1 if process.killed_in else None]
    ]
    again = ran_again(evidence.processes, steps)
    yield Promise(
        text='Only the node in flight runs again, and it does first',
        kept=without == steps and first_again == in_flight == again,
        seen=', '.join(again) or 'nothing',
    )

    seqs = [snapshot.seq for snapshot in kept.snapshots]
    yield Promise(
        text='One commit a step, and one for the start',
        kept=seqs == list(range(len(steps) + 1)) and len(steps) == len(committed(undisturbed)),
        seen=f'{len(seqs)} commits, {len(steps)} steps',
    )

    twice = [ticket for ticket, times in evidence.deliveries.items() if times != 1]
    replied = [case['ticket'] for case in kept.document['state']['filed'] if case['reply']]
    yield Promise(
        text='With a key, even a side effect happens once',
        kept=not twice and sorted(evidence.deliveries) == sorted(replied),
        seen=f'{evidence.deliveries.total()} replies delivered, {len(twice)} twice',
    )

    state, control = _lasting(kept.document), _lasting(undisturbed.document)
    differs = [name for name in state['state'] if state['state'][name] != control['state'][name]]
    yield Promise(
        text='The result is that of a run nobody killed',
        kept=kept.run.status == undisturbed.run.status == 'done' and state == control,
        seen=f'other {" and ".join(differs)}'
        if differs
        else f'the same {len(replied)} replies and {len(state["state"]["messages"])} messages',
    )

    yield Promise(
        text='What is stored grows with what changes',
        kept=evidence.stored_bytes <= 3 * evidence.document_bytes,
        seen=f'{evidence.stored_bytes / evidence.document_bytes:.1f} × the final document',
    )


def committed(kept: Kept) -> list[str]:
    """The steps that were committed, in order: 'Research T-1007'."""
    tickets = [ticket['id'] for ticket in kept.document['state']['tickets']]
    steps: list[str] = []
    at = 0
    for snapshot in kept.snapshots:
        if snapshot.event in ('step', 'end'):
            steps.append(f'{snapshot.node} {tickets[at]}')
            at += snapshot.node == 'File'
    return steps


def ran_again(processes: Sequence[Process], steps: Sequence[str]) -> list[str]:
    """What was begun more often than it was committed, in order."""
    begun = Counter(place for process in processes for place in process.begun)
    return list((begun - Counter(steps)).elements())


def _lasting(value: Any) -> Any:
    """A document without what differs from one run to the next: times and ids of messages."""
    if isinstance(value, dict):
        passing = {'timestamp', 'run_id', 'conversation_id'}
        return {key: _lasting(each) for key, each in value.items() if key not in passing}
    if isinstance(value, list):
        return [_lasting(each) for each in value]
    return value
