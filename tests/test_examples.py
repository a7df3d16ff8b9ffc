"""The example: what `make demo` runs, on every database that outlives a process."""

from __future__ import annotations

import asyncio
import importlib
import json
import os
import re
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from types import ModuleType
from typing import Any

import psutil
import pytest

import graphkeep

pytest.importorskip('pydantic_graph.persistence')

TRIAGE = Path(__file__).parents[1] / 'examples' / 'triage'
DEMO = TRIAGE / 'demo.py'

Import = Callable[[str], ModuleType]


@pytest.fixture
def triage(monkeypatch: pytest.MonkeyPatch) -> Iterator[Import]:
    """Imports a module of the example, as one beside the script that is run."""
    monkeypatch.syspath_prepend(TRIAGE)
    before = set(sys.modules)
    yield importlib.import_module
    for name in set(sys.modules) - before:
        if Path(getattr(sys.modules[name], '__file__', None) or '/').parent == TRIAGE:
            del sys.modules[name]


def run_demo(cwd: Path, *, store: str = '', pace: float = 0.0) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, str(DEMO), f'--pace={pace}'],
        cwd=cwd,
        env={**os.environ, 'STORE': store},
        capture_output=True,
        encoding='utf-8',
        timeout=170,
        check=False,
    )


# --- the whole demo -------------------------------------------------------------------------------


def assert_as_promised(done: subprocess.CompletedProcess[str]) -> str:
    """The run id, after a look at all that the demo is there to show."""
    # The test server keeps nothing on its disk, and graphkeep says so; once, not in each process.
    said = re.sub(r'^Redis at .* can lose runs: .*\n', '', done.stderr, count=1)
    assert (done.returncode, said) == (0, ''), done.stdout + done.stderr
    out = done.stdout
    assert 'killed in the middle of Research T-1007' in out
    assert 'goes on with Research T-1007, and is killed in the middle of File T-1018' in out
    assert 'goes on with File T-1018, and works through all the rest' in out
    assert 'Research T-1007 and File T-1018 ran twice, everything else once.' in out
    assert 'The mail provider was given T-1018 twice, and delivered it once.' in out
    if sys.platform != 'win32':
        assert out.count(f'killed in it ({-signal.SIGKILL})') == 2
    assert len(re.findall(r'^kept  ', out, re.MULTILINE)) == 7
    assert 'BROKEN' not in out
    assert len(re.findall(r'^│ T-10\d\d │', out, re.MULTILINE)) == 30
    numbers = {
        name: int(found.group(1).replace(',', ''))
        for name in ('steps', 'nodes begun', 'commits', 'bytes stored', 'final document')
        if (found := re.search(rf'^{name} +([\d,]+)', out, re.MULTILINE))
    }
    assert (numbers['steps'], numbers['nodes begun'], numbers['commits']) == (153, 155, 154)
    assert numbers['bytes stored'] <= 3 * numbers['final document']
    found = re.search(r'run (triage-\w+) in', out)
    assert found is not None
    return found.group(1)


@pytest.mark.slow
def test_demo_on_a_file_of_its_own_which_it_removes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The name of a folder may be anything, and ends up in a URL.
    folder = tmp_path / 'a b?c%20é'
    folder.mkdir()
    monkeypatch.setenv('TMPDIR', str(folder))
    done = run_demo(tmp_path, pace=1.0)
    assert_as_promised(done)
    assert 'interrupted  yes' in done.stdout or sys.platform != 'linux'
    assert [path.name for path in tmp_path.rglob('*')] == [folder.name]


@pytest.mark.slow
@pytest.mark.parametrize('server', ['postgres', 'redis'])
async def test_demo_on_a_store_that_is_given(
    server: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    url = request.getfixturevalue(f'{server}_url')
    done = await asyncio.to_thread(run_demo, tmp_path, store=url)
    run_id = assert_as_promised(done)
    async with graphkeep.open_store(url) as store:
        run = await store.run(run_id)
        assert (run.graph, run.status, run.seq) == ('triage', 'done', 153)
        document = json.loads((await store.document(run_id)).to_json())
        assert document['output']['tickets'] == 30
        await store.delete(run_id)


@pytest.mark.skipif(sys.platform == 'win32', reason='there is no Ctrl-C to send')
def test_ctrl_c_ends_the_demo_and_its_workers(tmp_path: Path) -> None:
    demo = subprocess.Popen(
        [sys.executable, '-u', str(DEMO)],
        cwd=tmp_path,
        env={**os.environ, 'STORE': '', 'TMPDIR': str(tmp_path)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        assert demo.stdout is not None
        while 'killed in the middle' not in (line := demo.stdout.readline()):
            assert line or demo.poll() is None
        assert _processes(tmp_path)
        demo.send_signal(signal.SIGINT)
        out, err = demo.communicate(timeout=60)
    finally:
        demo.kill()
        demo.wait()
    assert (demo.returncode, err) == (130, '')
    assert 'Stopped. All workers have ended.' in out
    assert not _processes(tmp_path)
    assert not list(tmp_path.iterdir())


def _processes(folder: Path) -> list[str]:
    """What runs with a file in `folder`, as every worker of a demo there does."""
    commands = [process.info['cmdline'] or [] for process in psutil.process_iter(['cmdline'])]
    return [' '.join(command) for command in commands if str(folder) in ' '.join(command)]


@pytest.mark.parametrize(
    ('store', 'said'),
    [
        ('memory://', 'DemoError: A memory:// store ends with its process'),
        ('mysql://u:secret@host/db', "ValueError: no store for 'mysql://"),
        ('sqlite:////proc/nowhere/runs.db', 'StoreWriteError: '),
    ],
)
def test_a_store_that_will_not_do_is_said_in_a_line(store: str, said: str, tmp_path: Path) -> None:
    done = run_demo(tmp_path, store=store)
    assert done.returncode == 1
    assert said in done.stdout
    assert done.stderr == ''
    assert 'secret' not in done.stdout


# --- its parts ------------------------------------------------------------------------------------


def test_every_ticket_has_answers_that_name_what_can_be_looked_up(triage: Import) -> None:
    tickets = triage('tickets').load_tickets()
    company = triage('company').load_company()
    answers = [
        json.loads(line)
        for line in (TRIAGE / 'answers.jsonl').read_text(encoding='utf-8').splitlines()
    ]
    assert [answer['ticket'] for answer in answers] == [ticket.id for ticket in tickets]
    assert len({ticket.id for ticket in tickets}) == 30
    senders = {ticket.sender for ticket in tickets}
    assert company.accounts.keys() <= senders
    for answer in answers:
        assert len(answer['drafts']) == len(answer['reviews'])
        for call in answer['calls']:
            known = company.handbook if call['tool'] == 'handbook' else senders
            (argument,) = call['args'].values()
            assert argument in known


def test_tickets_with_the_line_ends_of_windows_are_the_same(triage: Import, tmp_path: Path) -> None:
    tickets = triage('tickets')
    copy = tmp_path / 'tickets.jsonl'
    copy.write_bytes((TRIAGE / 'tickets.jsonl').read_bytes().replace(b'\n', b'\r\n'))
    assert tickets.load_tickets(copy) == tickets.load_tickets()


async def test_outbox_delivers_a_key_once(triage: Import, tmp_path: Path) -> None:
    module = triage('outbox')

    async def wait(place: str, seconds: float) -> None:
        pass

    outbox = module.Outbox(tmp_path / 'outbox.jsonl', wait)
    for key in ('T-1', 'T-2', 'T-1'):
        await outbox.send(key=key, to='someone@mail.example', text='Hello\n')
    mails = module.read_mails(tmp_path / 'outbox.jsonl')
    assert [(mail.key, mail.delivered) for mail in mails] == [
        ('T-1', True),
        ('T-2', True),
        ('T-1', False),
    ]


@pytest.mark.parametrize('kept', [True, False])
def test_a_broken_promise_ends_the_demo_with_1(
    kept: bool, triage: Import, monkeypatch: pytest.MonkeyPatch
) -> None:
    module, show, promise = triage('demo'), triage('show'), triage('promises').Promise
    found = [promise(text='one', kept=True, seen='a'), promise(text='two', kept=kept, seen='b')]

    async def demo(console: Any, *_: object, **__: object) -> bool:
        return show.promises(console, found)

    monkeypatch.setattr(module, 'demo', demo)
    assert module.main(show.make_console(), []) == (0 if kept else 1)


# --- a promise that is broken is noticed ----------------------------------------------------------


def kept(promises: ModuleType, steps: list[str], *, pending: str | None = None) -> Any:
    """A run of one ticket that was committed up to the last of `steps`."""
    at = datetime(2026, 11, 30, tzinfo=UTC)
    done = pending is None
    run = graphkeep.Run(
        run_id='r',
        status='done' if done else 'running',
        seq=len(steps),
        full_seq=0,
        epoch=1,
        created_at=at,
        updated_at=at,
    )
    snapshots = [
        graphkeep.Snapshot(
            seq=seq,
            kind='delta' if seq else 'full',
            event='start' if seq == 0 else 'end' if step == 'File' else 'step',
            data=b'{}',
            node=step or None,
            created_at=at,
        )
        for seq, step in enumerate(['', *steps])
    ]
    task = {'node': pending, 'inputs': {'case': {'ticket': 'T-1'}}}
    state = {
        'tickets': [{'id': 'T-1'}],
        'filed': [{'ticket': 'T-1', 'reply': 'Hello'}] if done else [],
        'messages': [{'kind': 'request', 'timestamp': str(id(steps)), 'parts': ['Hello']}],
    }
    document = {'state': state, 'tasks': {} if done else {'0': task}}
    return promises.Kept(run=run, snapshots=snapshots, document=document)


@pytest.fixture
def evidence(triage: Import) -> Any:
    """A run of two nodes, the second of which was killed once, as it should be."""
    promises = triage('promises')
    return promises.Evidence(
        processes=[
            promises.Process(pid=1, begun=['Draft T-1', 'File T-1'], killed_in='File T-1'),
            promises.Process(pid=2, begun=['File T-1']),
        ],
        kills=[promises.Kill(killed_in='File T-1', kept=kept(promises, ['Draft'], pending='File'))],
        kept=kept(promises, ['Draft', 'File']),
        undisturbed=kept(promises, ['Draft', 'File']),
        deliveries=Counter({'T-1': 1}),
        stored_bytes=300,
        document_bytes=100,
    )


def broken(promises: ModuleType, evidence: Any) -> list[str]:
    return [promise.text for promise in promises.check(evidence) if not promise.kept]


def test_promises_that_are_kept(triage: Import, evidence: Any) -> None:
    assert broken(triage('promises'), evidence) == []


def test_a_lost_step_is_noticed(triage: Import, evidence: Any) -> None:
    promises = triage('promises')
    lost = promises.Kill(killed_in='File T-1', kept=kept(promises, [], pending='File'))
    assert broken(promises, replace(evidence, kills=[lost])) == [
        'A kill loses nothing that was committed'
    ]


def test_another_pending_node_is_noticed(triage: Import, evidence: Any) -> None:
    promises = triage('promises')
    other = promises.Kill(killed_in='File T-1', kept=kept(promises, ['Draft'], pending='Draft'))
    assert broken(promises, replace(evidence, kills=[other])) == [
        'The store knows what was running'
    ]


@pytest.mark.parametrize(
    'begun', [['Draft T-1', 'File T-1'], ['File T-1', 'File T-1'], ['File T-1', 'Draft T-1']]
)
def test_a_second_node_that_runs_again_is_noticed(
    begun: list[str], triage: Import, evidence: Any
) -> None:
    promises = triage('promises')
    processes = [evidence.processes[0], promises.Process(pid=2, begun=begun)]
    assert broken(promises, replace(evidence, processes=processes)) == [
        'Only the node in flight runs again, and it does first'
    ]


def test_a_commit_too_many_is_noticed(triage: Import, evidence: Any) -> None:
    promises = triage('promises')
    more = kept(promises, ['Draft', 'File'])
    edit = replace(more.snapshots[-1], seq=3, event='edit')
    more = replace(more, snapshots=[*more.snapshots, edit])
    assert broken(promises, replace(evidence, kept=more)) == [
        'One commit a step, and one for the start'
    ]


@pytest.mark.parametrize('deliveries', [{'T-1': 2}, {}, {'T-1': 1, 'T-2': 1}])
def test_another_number_of_deliveries_is_noticed(
    deliveries: dict[str, int], triage: Import, evidence: Any
) -> None:
    changed = replace(evidence, deliveries=Counter(deliveries))
    assert broken(triage('promises'), changed) == ['With a key, even a side effect happens once']


def test_another_result_is_noticed(triage: Import, evidence: Any) -> None:
    promises = triage('promises')
    other = kept(promises, ['Draft', 'File'])
    other.document['state']['messages'][0]['parts'] = ['Goodbye']
    assert broken(promises, replace(evidence, undisturbed=other)) == [
        'The result is that of a run nobody killed'
    ]


def test_too_many_bytes_are_noticed(triage: Import, evidence: Any) -> None:
    changed = replace(evidence, stored_bytes=301)
    assert broken(triage('promises'), changed) == ['What is stored grows with what changes']
