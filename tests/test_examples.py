"""The examples: what `make demo` and `make demo-research` run, on all that outlives a process."""

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
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from types import ModuleType
from typing import Any

import psutil
import pytest

import graphkeep

EXAMPLES = Path(__file__).parents[1] / 'examples'
TRIAGE = EXAMPLES / 'triage'
RESEARCH = EXAMPLES / 'research'

Import = Callable[[str], ModuleType]


def importer(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Import]:
    """Imports a module of an example, as one beside the script that is run."""
    monkeypatch.syspath_prepend(EXAMPLES)
    monkeypatch.syspath_prepend(folder)
    before = set(sys.modules)
    yield importlib.import_module
    for name in set(sys.modules) - before:
        if Path(getattr(sys.modules[name], '__file__', None) or '/').parent == folder:
            del sys.modules[name]


@pytest.fixture
def triage(classic: None, monkeypatch: pytest.MonkeyPatch) -> Iterator[Import]:
    yield from importer(TRIAGE, monkeypatch)


@pytest.fixture
def research(monkeypatch: pytest.MonkeyPatch) -> Iterator[Import]:
    yield from importer(RESEARCH, monkeypatch)


@pytest.fixture
def classic() -> None:
    """For the example that is a graph of pydantic-graph 1.x."""
    pytest.importorskip('pydantic_graph.persistence')


def run_demo(
    example: Path, cwd: Path, *, store: str = '', pace: float = 0.0
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, str(example / 'demo.py'), f'--pace={pace}'],
        cwd=cwd,
        env={**os.environ, 'STORE': store},
        capture_output=True,
        encoding='utf-8',
        timeout=170,
        check=False,
    )


def output(done: subprocess.CompletedProcess[str]) -> str:
    """What a demo has shown, if it ended well."""
    # The test server keeps nothing on its disk, and graphkeep says so; once, not in each process.
    said = re.sub(r'^Redis at .* can lose runs: .*\n', '', done.stderr, count=1)
    assert (done.returncode, said) == (0, ''), done.stdout + done.stderr
    assert 'BROKEN' not in done.stdout
    return done.stdout


# --- triage: the whole demo -----------------------------------------------------------------------


def assert_as_promised(done: subprocess.CompletedProcess[str]) -> str:
    """The run id, after a look at all that the demo is there to show."""
    out = output(done)
    assert 'killed in the middle of Research T-1007' in out
    assert 'goes on with Research T-1007, and is killed in the middle of File T-1018' in out
    assert 'goes on with File T-1018, and works through all the rest' in out
    assert 'Research T-1007 and File T-1018 ran twice, everything else once.' in out
    assert 'The mail provider was given T-1018 twice, and delivered it once.' in out
    if sys.platform != 'win32':
        assert out.count(f'killed in it ({-signal.SIGKILL})') == 2
    assert len(re.findall(r'^kept  ', out, re.MULTILINE)) == 7
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
@pytest.mark.usefixtures('classic')
def test_demo_on_a_file_of_its_own_which_it_removes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The name of a folder may be anything, and ends up in a URL.
    folder = tmp_path / 'a b?c%20é'
    folder.mkdir()
    monkeypatch.setenv('TMPDIR', str(folder))
    done = run_demo(TRIAGE, tmp_path, pace=1.0)
    assert_as_promised(done)
    assert 'interrupted  yes' in done.stdout or sys.platform != 'linux'
    assert [path.name for path in tmp_path.rglob('*')] == [folder.name]


@pytest.mark.slow
@pytest.mark.usefixtures('classic')
@pytest.mark.parametrize('server', ['postgres', 'redis'])
async def test_demo_on_a_store_that_is_given(
    server: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    url = request.getfixturevalue(f'{server}_url')
    done = await asyncio.to_thread(run_demo, TRIAGE, tmp_path, store=url)
    run_id = assert_as_promised(done)
    async with graphkeep.open_store(url) as store:
        run = await store.run(run_id)
        assert (run.graph, run.status, run.seq) == ('triage', 'done', 153)
        document = json.loads((await store.document(run_id)).to_json())
        assert document['output']['tickets'] == 30
        await store.delete(run_id)


HEARING = """
import runpy, signal, sys
signal.signal(signal.SIGINT, signal.default_int_handler)
sys.argv.pop(0)
sys.path.insert(0, sys.argv[0].rpartition('/')[0])
runpy.run_path(sys.argv[0], run_name='__main__')
"""
"""Runs a script that hears SIGINT: what a shell has started in the background is deaf to it."""


@pytest.mark.usefixtures('classic')
@pytest.mark.skipif(sys.platform == 'win32', reason='there is no Ctrl-C to send')
def test_ctrl_c_ends_the_demo_and_its_workers(tmp_path: Path) -> None:
    demo = subprocess.Popen(
        [sys.executable, '-u', '-c', HEARING, str(TRIAGE / 'demo.py')],
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
        while not _processes(tmp_path):  # between two workers there is none
            assert demo.poll() is None
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


@pytest.mark.usefixtures('classic')
@pytest.mark.parametrize(
    ('store', 'said'),
    [
        ('memory://', 'DemoError: A memory:// store ends with its process'),
        ('mysql://u:secret@host/db', "ValueError: no store for 'mysql://"),
        ('sqlite:////proc/nowhere/runs.db', 'StoreWriteError: '),
    ],
)
def test_a_store_that_will_not_do_is_said_in_a_line(store: str, said: str, tmp_path: Path) -> None:
    done = run_demo(TRIAGE, tmp_path, store=store)
    assert done.returncode == 1
    assert said in done.stdout
    assert done.stderr == ''
    assert 'secret' not in done.stdout


# --- triage: its parts ----------------------------------------------------------------------------


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
    module, shared = triage('demo'), triage('killing.demo')
    tables, promise = triage('killing.tables'), triage('promises').Promise
    found = [promise(text='one', kept=True, seen='a'), promise(text='two', kept=kept, seen='b')]

    async def demo(console: Any, *_: object, **__: object) -> bool:
        return tables.promises(console, found)

    monkeypatch.setattr(module, 'demo', demo)
    assert module.main(shared.make_console(), []) == (0 if kept else 1)


# --- triage: a promise that is broken is noticed --------------------------------------------------


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


# --- research: the whole demo ---------------------------------------------------------------------


def assert_map_went_on(done: subprocess.CompletedProcess[str]) -> str:
    """The run id, after a look at all that the demo is there to show."""
    out = output(done)
    if sys.platform != 'win32':
        assert f'is killed ({-signal.SIGKILL}) while 4 texts are being read' in out
    assert re.search(r'│ tasks +12. In flight were moby-dick, .*, second-inaugural ', out)
    assert 'the same command, goes on with moby-dick.' in out
    rows = re.findall(r'│ +\d{4} │ +\d+ │ ([^│]+) │ ([^│]+) │ +(\d) │\n', out)
    ran = Counter((before.strip(), after.strip(), int(runs)) for before, after, runs in rows)
    assert ran == {
        ('done', '-', 1): 8,
        ('killed in it', 'done', 2): 4,
        ('not begun', 'done', 1): 8,
    }
    assert '20 texts by 13 authors, 3,003 words.' in out
    assert len(re.findall(r'^kept  ', out, re.MULTILINE)) == 6
    found = re.search(r'run (research-\w+) in', out)
    assert found is not None
    return found.group(1)


@pytest.mark.slow
def test_research_on_a_file_of_its_own_which_it_removes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv('TMPDIR', str(tmp_path))
    assert_map_went_on(run_demo(RESEARCH, tmp_path, pace=1.0))
    assert not list(tmp_path.iterdir())


@pytest.mark.slow
@pytest.mark.parametrize('server', ['postgres', 'redis'])
async def test_research_on_a_store_that_is_given(
    server: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    url = request.getfixturevalue(f'{server}_url')
    done = await asyncio.to_thread(run_demo, RESEARCH, tmp_path, store=url)
    run_id = assert_map_went_on(done)
    async with graphkeep.open_store(url) as store:
        run = await store.run(run_id)
        assert (run.graph, run.status) == ('research', 'done')
        await store.delete(run_id)


# --- research: its parts --------------------------------------------------------------------------


def test_texts_are_twenty_and_short(research: Import) -> None:
    texts = research('texts').load_texts()
    assert len(texts) == 20
    for text in texts.values():
        assert 100 <= text.words <= 300, text.name
        assert text.title
        assert text.author
        assert 1600 < text.year < 1900


def test_texts_with_the_line_ends_of_windows_are_the_same(research: Import, tmp_path: Path) -> None:
    texts = research('texts')
    for path in (RESEARCH / 'texts').iterdir():
        (tmp_path / path.name).write_bytes(path.read_bytes().replace(b'\n', b'\r\n'))
    assert texts.load_texts(tmp_path) == texts.load_texts()


def test_summary_is_in_the_words_of_the_text(research: Import) -> None:
    model = research('model')
    for text in research('texts').load_texts().values():
        summary = model.summarise(text.body)
        found = [' '.join(text.body.split()).find(passage) for passage in summary.passages]
        assert found == sorted(found), text.name
        assert found[0] >= 0, text.name
        assert len(set(summary.keywords)) == 3


async def test_number_without_a_rule_fails_the_run(research: Import) -> None:
    """As the README of the example says."""
    graph, model = research('graph'), research('model')

    async def wait(title: str, seconds: float) -> None:
        pass

    @dataclass
    class Unruled(graph.Progress):
        words: int = 0

    texts = research('texts').load_texts()
    desk = graph.Desk(model=model.reading_model(wait), texts=texts, begins=lambda step: None)
    unruled = graphkeep.persist(replace(graph.research.graph, state_type=Unruled))
    with pytest.raises(graphkeep.StateConflictError, match=r'`state\.words`.*merge\.add'):
        await unruled.run(state=Unruled(), deps=desk, inputs=list(texts)[:4])


# --- research: a promise that is broken is noticed ------------------------------------------------


def at(promises: ModuleType, document: dict[str, Any], status: Any = 'done') -> Any:
    now = datetime(2026, 11, 30, tzinfo=UTC)
    run = graphkeep.Run(
        run_id='r',
        status=status,
        seq=1,
        full_seq=0,
        epoch=1,
        created_at=now,
        updated_at=now,
    )
    return promises.Kept(run=run, snapshots=[], document=document)


@pytest.fixture
def reading(research: Import) -> Any:
    """A run of three texts, killed when one was done and one was being read, as it should be."""
    promises = research('promises')
    joins = {'collect/1': {'items': [{'text': 'a'}]}}
    tasks = {'2': {'inputs': 'b'}, '3': {'inputs': 'c'}}
    ended = {'state': {'read': ['a', 'b', 'c'], 'words': 6}, 'output': '# Report\n'}
    return promises.Evidence(
        texts={'a': 1, 'b': 2, 'c': 3},
        killed=promises.Process(pid=1, begun=['a', 'b'], unanswered=1, code=-9),
        resumed=promises.Process(pid=2, begun=['b', 'c', 'the report']),
        at_kill=at(promises, {'joins': joins, 'tasks': tasks}, 'running'),
        kept=at(promises, ended),
        undisturbed=at(promises, ended),
        report='# Report\n',
    )


LOST = 'A kill loses nothing that was done'
BETWEEN = 'Done or not done, and nothing in between'
AGAIN = 'What was done does not run again'
FLIGHT = 'What was in flight runs again, and it does first'
UPDATE = 'Steps in parallel lose no update of the state'
REPORT = 'The report is that of a run nobody killed'


def test_map_that_went_on_as_it_should(research: Import, reading: Any) -> None:
    assert broken(research('promises'), reading) == []


@pytest.mark.parametrize(
    ('items', 'tasks', 'said'),
    [
        ([], ['a', 'b', 'c'], {LOST, AGAIN, FLIGHT}),
        ([], ['b', 'c'], {LOST, BETWEEN}),
        (['a'], ['a', 'b', 'c'], {BETWEEN, AGAIN, FLIGHT}),
        (['a'], ['c', 'b'], set()),
        (['c'], ['a', 'b'], {LOST, AGAIN, FLIGHT}),
    ],
)
def test_map_that_is_stored_otherwise_is_noticed(
    items: list[str], tasks: list[str], said: set[str], research: Import, reading: Any
) -> None:
    promises = research('promises')
    joins = {'collect/1': {'items': [{'text': text} for text in items]}}
    pending = {str(number): {'inputs': text} for number, text in enumerate(tasks)}
    stored = at(promises, {'joins': joins, 'tasks': pending}, 'running')
    assert set(broken(promises, replace(reading, at_kill=stored))) == said


@pytest.mark.parametrize(
    ('begun', 'said'),
    [
        (['a', 'b', 'c', 'the report'], {AGAIN, FLIGHT}),
        (['b', 'the report'], {AGAIN}),
        (['c', 'b', 'the report'], {FLIGHT}),
        (['b', 'c', 'c', 'the report'], {AGAIN, FLIGHT}),
        (['b', 'c', 'the report', 'the report'], {AGAIN, FLIGHT}),
    ],
)
def test_another_second_process_is_noticed(
    begun: list[str], said: set[str], research: Import, reading: Any
) -> None:
    promises = research('promises')
    resumed = promises.Process(pid=2, begun=begun)
    assert set(broken(promises, replace(reading, resumed=resumed))) == said


@pytest.mark.parametrize(('read', 'words'), [(['a', 'b', 'c'], 4), (['a', 'b'], 6)])
def test_lost_update_is_noticed(
    read: list[str], words: int, research: Import, reading: Any
) -> None:
    promises = research('promises')
    document = {**reading.kept.document, 'state': {'read': read, 'words': words}}
    assert broken(promises, replace(reading, kept=at(promises, document))) == [UPDATE]


def test_another_report_is_noticed(research: Import, reading: Any) -> None:
    promises = research('promises')
    assert broken(promises, replace(reading, report='# Other\n')) == [REPORT]
    other = at(promises, {**reading.kept.document, 'output': '# Other\n'})
    assert broken(promises, replace(reading, undisturbed=other)) == [REPORT]
