"""What a run stores and reads: bytes, beside those of its document."""

from __future__ import annotations

import json
import random
from typing import Any

import pytest

from graphkeep.document import Change, Document, Tail, replay, wants_full


def message(number: int) -> str:
    return json.dumps(
        {'role': 'user', 'n': number, 'text': f'{number:06} ' * 53}, separators=(',', ':')
    )


def task(number: int, node: str = 'Reply') -> bytes:
    return (
        f'{{"node":"{node}","inputs":{{"n":{number}}},"forks":[["__start__","0",0]],'
        f'"born":1764489600000001}}'
    ).encode()


class Run:
    """A run that writes what the policy says, and remembers what it wrote."""

    def __init__(self, document: Document) -> None:
        self.document = document
        self.rows: list[tuple[str, bytes]] = [('full', document.to_json())]

    def commit(self, change: Change) -> None:
        delta = self.document.delta(change)
        last = max(i for i, row in enumerate(self.rows) if row[0] == 'full')
        since = [len(data) for _, data in self.rows[last + 1 :]]
        if wants_full(
            self.document.size_after(change),
            len(delta),
            full=len(self.rows[last][1]),
            deltas=len(since),
            since=sum(since),
        ):
            self.rows.append(('full', self.document.to_json(change)))
        else:
            self.rows.append(('delta', delta))
        self.document.advance(change)

    @property
    def written(self) -> int:
        return sum(len(data) for _, data in self.rows)

    @property
    def to_read(self) -> list[bytes]:
        last = max(i for i, row in enumerate(self.rows) if row[0] == 'full')
        return [data for _, data in self.rows[last:]]


@pytest.mark.parametrize('tails', [False, True])
def test_400_steps_that_append_a_message_store_at_most_3_times_the_document(tails: bool) -> None:
    run = Run(Document(state={'topic': b'"x"', 'messages': b'[]'}, tasks={'0': task(0)}))
    messages: list[str] = []
    for number in range(400):
        messages.append(message(number))
        state: dict[str, bytes | Tail] = {'topic': b'"x"'}
        state['messages'] = (
            Tail(start=number, data=messages[-1].encode(), count=1)
            if tails
            else f'[{",".join(messages)}]'.encode()
        )
        run.commit(
            Change(
                state=state,
                tasks={str(number): None, str(number + 1): task(number + 1)},
                next=b'{"task":%d,"fork":0}' % (number + 2),
            )
        )
    final = run.document.to_json()
    assert run.written <= 3 * len(final)
    assert sum(map(len, run.to_read)) <= 4 * len(final)
    assert replay(run.to_read[0], run.to_read[1:]).to_json() == final


def test_a_large_document_with_a_counter_is_rewritten_rarely() -> None:
    blob = b'"%b"' % (b'x' * 20_000)
    run = Run(Document(state={'blob': blob, 'count': b'0'}))
    for number in range(2_000):
        run.commit(Change(state={'blob': blob, 'count': b'%d' % number}))
    fulls = sum(kind == 'full' for kind, _ in run.rows)
    assert fulls <= 2_000 * 300 / (3 * 20_000)
    assert len(run.to_read) <= 4 * 20_000 / 200


def test_a_small_document_is_read_from_one_row() -> None:
    run = Run(Document(state={'n': b'0'}, tasks={'0': task(0)}))
    for number in range(100):
        run.commit(
            Change(
                state={'n': b'%d' % number},
                tasks={str(number): None, str(number + 1): task(number + 1)},
                next=b'{"task":%d,"fork":0}' % (number + 2),
            )
        )
    assert len(run.to_read) <= 2
    assert run.written <= 101 * (run.document.size + 20)


def test_a_document_that_shrinks_is_written_in_full() -> None:
    run = Run(Document(state={'blob': b'"%b"' % (b'x' * 20_000), 'more': b'"%b"' % (b'y' * 1_000)}))
    run.commit(Change(state={'more': b'"%b"' % (b'y' * 1_000)}))
    assert run.rows[-1][0] == 'full'


def test_one_of_1000_tasks_changes_with_a_small_delta() -> None:
    tasks = {str(n): task(n, 'Branch') for n in range(1_000)}
    document = Document(state={'n': b'0'}, tasks=dict(tasks))
    ends = document.delta(Change(tasks={'500': None}))
    assert ends == b'{"format":1,"tasks":{"500":null}}'
    waits = tasks['500'][:-1] + b',"waits":{"id":"r1"}}'
    assert len(document.delta(Change(tasks={'500': waits}))) < 80
    grows = document.delta(Change(tasks={'500': None, '1000': task(1000)}))
    assert len(grows) < len(task(1000)) + 70


def _results(numbers: range) -> dict[str, Any]:
    return {f'task-{n:04}': {'status': 'pending', 'result': None, 'tries': 0} for n in numbers}


def _delta_of(old: object, new: object) -> bytes:
    was, will_be = (
        json.dumps(value, separators=(',', ':'), ensure_ascii=False).encode()
        for value in (old, new)
    )
    document = Document(state={'a': was})
    delta = document.delta(Change(state={'a': will_be}))
    document.apply(delta)
    assert document.state == {'a': will_be}
    return delta


def test_distant_changes_in_one_part_are_stored_apart() -> None:
    old, new = _results(range(1_000)), _results(range(1_000))
    for n in (3, 400, 990):
        new[f'task-{n:04}'].update(status='done', result={'text': f'é {n}'}, tries=1)
    assert len(_delta_of(old, new)) < 250
    del new['task-0100'], new['task-0700']
    new['task-1000'] = {'status': 'new'}
    assert len(_delta_of(old, new)) < 400
    listed = list(new.values())
    listed.insert(500, {'status': 'between'})
    assert len(_delta_of(list(old.values()), listed)) < 700


def test_every_entry_changed_is_no_larger_than_setting_the_part() -> None:
    old, new = _results(range(1_000)), _results(range(1_000))
    for entry in new.values():
        entry['tries'] = 1
    size = len(json.dumps(new, separators=(',', ':')))
    assert len(_delta_of(old, new)) <= size + 100
    other = [random.Random(1).random() for _ in range(5_000)]
    assert len(_delta_of(old, other)) <= len(json.dumps(other, separators=(',', ':'))) + 100


@pytest.mark.parametrize('seed', range(20))
def test_random_edits_of_a_large_object_cost_what_they_change(seed: int) -> None:
    chance = random.Random(seed)
    old, new = _results(range(1_000)), _results(range(1_000))
    changed = 0
    for _ in range(chance.randrange(1, 12)):
        key = f'task-{chance.randrange(1_000):04}'
        what = chance.randrange(3)
        if what == 0:
            new.pop(key, None)
        elif what == 1:
            new[key] = {'status': 'x' * chance.randrange(100), 'n': chance.random()}
        else:
            new[key + 'b'] = chance.random()
        changed += len(json.dumps(new.get(key))) + 40
    assert len(_delta_of(old, new)) <= 200 + 3 * changed


def test_the_last_element_of_a_list_grows_by_what_is_new() -> None:
    old = [message(n) for n in range(100)]
    assert len(_delta_of(old, [*old[:-1], old[-1] + 'more'])) < 60
