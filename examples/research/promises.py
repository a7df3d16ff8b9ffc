"""What graphkeep promises, checked against what was seen. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from killing import records
from killing.records import Promise

__all__ = ('Evidence', 'Kept', 'Process', 'Promise', 'check')

REPORT = 'the report'
"""What a process says that it begins, beside texts."""


class Kept(records.Kept):
    """What a store has of a run."""

    @property
    def done(self) -> list[str]:
        """The texts whose entries wait for the report, in the order in which they were done."""
        return [
            entry['text'] for join in self.document['joins'].values() for entry in join['items']
        ]

    @property
    def left(self) -> list[str]:
        """The texts that are still to be read: those that were being read come first."""
        return [task['inputs'] for task in self.document['tasks'].values()]


@dataclass(frozen=True, kw_only=True)
class Process:
    """What was seen of one worker, from outside."""

    pid: int
    begun: Sequence[str]
    """The texts that it began to read, in order, and then the report."""
    unanswered: int = 0
    """Of how many texts the model was still asked when the process was killed."""
    code: int = 0
    """What it ended with; on POSIX -9 for SIGKILL."""


@dataclass(frozen=True, kw_only=True)
class Evidence:
    """All that was seen."""

    texts: Mapping[str, int]
    """The words of each text."""
    killed: Process
    resumed: Process
    at_kill: Kept
    """The run just after the kill."""
    kept: Kept
    """The run at its end."""
    undisturbed: Kept
    """The same work, done by a worker that nobody killed."""
    report: str
    """The file that the second worker wrote."""

    @property
    def in_flight(self) -> list[str]:
        """What was begun when the process was killed, and not done."""
        return [text for text in self.at_kill.left if text in self.killed.begun]


def check(evidence: Evidence) -> Iterator[Promise]:
    """Hold what was seen against each promise."""
    killed, resumed, at_kill = evidence.killed, evidence.resumed, evidence.at_kill
    done, left, in_flight = at_kill.done, at_kill.left, evidence.in_flight

    ended = len(killed.begun) - killed.unanswered
    yield Promise(
        text='A kill loses nothing that was done',
        kept=len(done) == ended and set(done) <= set(killed.begun),
        seen=f'{ended} texts were done, {len(done)} of them are in the store',
    )

    yield Promise(
        text='Done or not done, and nothing in between',
        kept=sorted([*done, *left]) == sorted(evidence.texts),
        seen=f'{len(done)} done, {len(left)} to do, {len(evidence.texts)} in all',
    )

    again = [text for text in resumed.begun if text in done]
    yield Promise(
        text='What was done does not run again',
        kept=not again and sorted(resumed.begun) == sorted([*left, REPORT]),
        seen=f'{", ".join(again) or "nothing"} ran again',
    )

    times = Counter([*killed.begun, *resumed.begun])
    twice = [text for text, number in times.items() if number > 1]
    yield Promise(
        text='What was in flight runs again, and it does first',
        kept=twice == in_flight == list(resumed.begun[: len(in_flight)]),
        seen=', '.join(twice) or 'nothing',
    )

    state = evidence.kept.document['state']
    yield Promise(
        text='Steps in parallel lose no update of the state',
        kept=sorted(state['read']) == sorted(evidence.texts)
        and state['words'] == sum(evidence.texts.values()),
        seen=f'{len(state["read"])} texts, {state["words"]:,} words',
    )

    kept, undisturbed = evidence.kept, evidence.undisturbed
    output = kept.document['output']
    yield Promise(
        text='The report is that of a run nobody killed',
        kept=kept.run.status == undisturbed.run.status == 'done'
        and output == undisturbed.document['output'] == evidence.report,
        seen=f'{len(output.encode()):,} bytes, {_same(output, undisturbed.document["output"])}',
    )


def _same(one: str, other: str) -> str:
    return 'the same' if one == other else 'other ones'
