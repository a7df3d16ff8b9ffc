"""The approvals example: its app over HTTP, and `make demo-approvals`, where nobody pays twice."""

from __future__ import annotations

import asyncio
import re
import signal
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from types import ModuleType
from typing import Any

import httpx
import pytest

import graphkeep

from .test_examples import EXAMPLES, Import, importer, output, run_demo

APPROVALS = EXAMPLES / 'approvals'


@pytest.fixture
def approvals(monkeypatch: pytest.MonkeyPatch) -> Iterator[Import]:
    yield from importer(APPROVALS, monkeypatch)


async def until(condition: Callable[[], Any]) -> None:
    async with asyncio.timeout(20):
        while not await condition():
            await asyncio.sleep(0.02)


# --- the app --------------------------------------------------------------------------------------


@dataclass
class Office:
    """The app as a client sees it, and a worker to carry the refunds on."""

    client: httpx.AsyncClient
    store: graphkeep.Store
    desk: Any
    ledger: Path
    modules: Import

    async def start(self, order: str, reason: str = 'It is broken.') -> str:
        """Ask for a refund; gives the id of its run."""
        taken = await self.client.post('/refunds', json={'order': order, 'reason': reason})
        assert taken.status_code == 202, taken.text
        return taken.json()['run_id']

    async def asked(self) -> dict[str, Any]:
        """The one question there is, when it is there."""
        questions: list[dict[str, Any]] = []

        async def there() -> bool:
            questions[:] = (await self.client.get('/requests')).json()
            return bool(questions)

        async with self.worker():
            await until(there)
        (question,) = questions
        return question

    async def answer(self, question: dict[str, Any], answer: Any, by: str = 'ada') -> Any:
        path = f'/requests/{question["run_id"]}/{question["request_id"]}'
        return await self.client.post(path, json=answer, params={'by': by})

    async def refund(self, run_id: str) -> dict[str, Any]:
        found = await self.client.get(f'/refunds/{run_id}')
        assert found.status_code == 200, found.text
        return found.json()

    async def result(self, run_id: str) -> dict[str, Any]:
        """The result, when it is there."""

        async def done() -> bool:
            return (await self.refund(run_id))['status'] == 'done'

        async with self.worker():
            await until(done)
        return (await self.refund(run_id))['result']

    def worker(self) -> graphkeep.Worker:
        graphs = {'refunds': self.modules('graph').refunds}
        return graphkeep.Worker(self.store, graphs, deps=self.desk, poll=0.05)

    def paid(self) -> list[tuple[str, int]]:
        return [(p.order, p.cents) for p in self.modules('payments').read_ledger(self.ledger)]


async def no_wait(place: str, seconds: float) -> None:
    pass


@asynccontextmanager
async def opened(url: str, approvals: Import, folder: Path) -> AsyncIterator[Office]:
    ledger = folder / 'ledger.db'
    desk = approvals('worker').make_desk(ledger, no_wait)
    async with graphkeep.open_store(url) as store:
        transport = httpx.ASGITransport(approvals('app').make_app(store))
        async with httpx.AsyncClient(transport=transport, base_url='http://app') as client:
            yield Office(client, store, desk, ledger, approvals)


@pytest.fixture
async def office(approvals: Import, tmp_path: Path, sqlite_url: str) -> AsyncIterator[Office]:
    async with opened(sqlite_url, approvals, tmp_path) as office:
        yield office


async def test_app_only_stores_what_is_to_be_run(office: Office) -> None:
    run_id = await office.start('A-1001')
    assert run_id == 'refunds-A-1001'
    assert await office.refund(run_id) == {
        'run_id': run_id,
        'status': 'ready',
        'result': None,
        'waits_for': [],
    }
    assert office.paid() == []


async def test_small_refund_asks_nobody(office: Office) -> None:
    run_id = await office.start('A-1001')
    result = await office.result(run_id)
    assert result == {
        'order': 'A-1001',
        'refunded': 790,
        'receipt': 'R-001',
        'answer': 'Dear Ada! We have refunded €7.90 (R-001).',
    }
    assert office.paid() == [('A-1001', 790)]


async def test_large_refund_is_listed_and_approved(office: Office) -> None:
    run_id = await office.start('A-1004')
    question = await office.asked()
    assert question['run_id'] == run_id
    assert question['prompt'] == 'Refund €89.00 of €89.00 to Dorothy?'
    assert question['payload']['tool_name'] == 'refund'
    assert question['payload']['args'] == {'cents': 8900}
    assert question['payload']['metadata'] == {'order': 'A-1004', 'customer': 'Dorothy'}
    assert {'type': 'boolean'} in question['answer_schema']['anyOf']
    waits = await office.refund(run_id)
    assert (waits['status'], waits['waits_for']) == ('paused', [question['request_id']])
    assert office.paid() == []

    assert (await office.answer(question, True)).status_code == 204
    assert (await office.client.get('/requests')).json() == []
    assert (await office.result(run_id))['refunded'] == 8900
    assert office.paid() == [('A-1004', 8900)]
    answered = await office.store.request(run_id, question['request_id'])
    assert answered.answered_by == 'ada'


async def test_denied_refund_pays_nothing_and_tells_the_customer_why(office: Office) -> None:
    run_id = await office.start('A-1004')
    answer = {'approved': False, 'message': 'It was broken when it came back.'}
    assert (await office.answer(await office.asked(), answer)).status_code == 204
    assert await office.result(run_id) == {
        'order': 'A-1004',
        'refunded': 0,
        'receipt': None,
        'answer': 'Dear Dorothy! It was broken when it came back.',
    }
    assert office.paid() == []


async def test_approver_may_change_the_amount(office: Office) -> None:
    run_id = await office.start('A-1004')
    answer = {'approved': True, 'override_args': {'cents': 4500}}
    assert (await office.answer(await office.asked(), answer)).status_code == 204
    assert (await office.result(run_id))['refunded'] == 4500
    assert office.paid() == [('A-1004', 4500)]


@pytest.mark.parametrize('cents', [0, -1, 8901, 'all of it'])
async def test_amount_that_cannot_be_is_refused_by_the_tool(cents: Any, office: Office) -> None:
    run_id = await office.start('A-1004')
    answer = {'approved': True, 'override_args': {'cents': cents}}
    assert (await office.answer(await office.asked(), answer)).status_code == 204
    assert (await office.result(run_id))['refunded'] == 0
    assert office.paid() == []


async def test_delay_is_worth_a_tenth_and_a_whim_nothing(office: Office) -> None:
    late = await office.start('A-1004', 'It came late.')
    assert (await office.result(late))['refunded'] == 890
    whim = await office.start('A-1005', 'I have changed my mind.')
    assert (await office.result(whim))['answer'] == 'Dear Emmy! We do not refund this.'
    assert office.paid() == [('A-1004', 890)]


async def test_unknown_order_ends_without_the_agent(office: Office) -> None:
    run_id = await office.start('Z-0000')
    assert (await office.result(run_id))['answer'] == 'We do not know this order.'


@pytest.mark.parametrize(
    'answer', ['yes', 1, [], {}, {'approved': 'yes'}, {'approved': True, 'amount': 1}]
)
async def test_wrong_answer_is_refused_and_may_be_corrected(answer: Any, office: Office) -> None:
    run_id = await office.start('A-1004')
    question = await office.asked()
    refused = await office.answer(question, answer)
    assert refused.status_code == 422
    assert 'does not fit' in refused.json()['detail']
    assert 'The request stays open' in refused.json()['detail']
    assert (await office.refund(run_id))['status'] == 'paused'
    assert (await office.answer(question, False)).status_code == 204


async def test_answer_needs_somebody_who_gives_it(office: Office) -> None:
    await office.start('A-1004')
    question = await office.asked()
    path = f'/requests/{question["run_id"]}/{question["request_id"]}'
    assert (await office.client.post(path, json=True)).status_code == 422
    for by in ('', 'a\0b'):
        assert (await office.answer(question, True, by)).status_code == 422
    assert (await office.client.get('/requests')).json() == [question]


async def test_unknown_run_and_unknown_request_are_not_found(office: Office) -> None:
    run_id = await office.start('A-1004')
    unknown = await office.client.get('/refunds/refunds-A-1005')
    assert unknown.status_code == 404
    assert unknown.json()['detail'] == "There is no run 'refunds-A-1005' in this store."
    for question, said in (
        ({'run_id': 'refunds-A-1005', 'request_id': '1:agent:0:x'}, 'There is no run'),
        ({'run_id': run_id, 'request_id': '1:agent:0:x/y'}, "has no request '1:agent:0:x/y'"),
    ):
        refused = await office.answer(question, True)
        assert refused.status_code == 404
        assert said in refused.json()['detail']


async def test_second_person_is_told_that_the_first_was_faster(office: Office) -> None:
    await office.start('A-1004')
    question = await office.asked()
    both = await asyncio.gather(
        office.answer(question, True, 'ada'), office.answer(question, False, 'bob')
    )
    assert sorted(each.status_code for each in both) == [204, 409]
    (refused,) = (each.json()['detail'] for each in both if each.status_code == 409)
    assert 'before, with another answer' in refused


async def test_same_answer_again_is_accepted(office: Office) -> None:
    run_id = await office.start('A-1004')
    question = await office.asked()
    assert (await office.answer(question, True)).status_code == 204
    assert (await office.answer(question, True)).status_code == 204
    await office.result(run_id)
    assert office.paid() == [('A-1004', 8900)]


async def test_request_of_a_run_that_was_cancelled_is_closed(office: Office) -> None:
    run_id = await office.start('A-1004')
    question = await office.asked()
    await office.store.cancel(run_id)
    refused = await office.answer(question, True)
    assert refused.status_code == 409
    assert 'is of no more use' in refused.json()['detail']


async def test_order_is_refunded_in_one_run(office: Office) -> None:
    await office.start('A-1004')
    again = {'order': 'A-1004', 'reason': 'It is lost.'}
    refused = await office.client.post('/refunds', json=again)
    assert refused.status_code == 409
    assert "Run 'refunds-A-1004' already exists" in refused.json()['detail']


@pytest.mark.parametrize('order', ['', 'a-1004', 'A-1004/..', 'A-10044', 1004])
async def test_order_that_is_none_is_refused(order: Any, office: Office) -> None:
    new = {'order': order, 'reason': 'It is broken.'}
    assert (await office.client.post('/refunds', json=new)).status_code == 422
    assert await office.store.runs() == []


async def test_app_may_have_a_worker_inside(
    approvals: Import, tmp_path: Path, sqlite_url: str
) -> None:
    desk = approvals('worker').make_desk(tmp_path / 'ledger.db', no_wait)
    app = approvals('app').make_app(graphkeep.open_store(sqlite_url), desk=desk)
    transport = httpx.ASGITransport(app)
    async with (
        app.router.lifespan_context(app),
        httpx.AsyncClient(transport=transport, base_url='http://app') as client,
    ):
        await client.post('/refunds', json={'order': 'A-1001', 'reason': 'It is broken.'})

        async def done() -> bool:
            return (await client.get('/refunds/refunds-A-1001')).json()['status'] == 'done'

        await until(done)


@pytest.mark.parametrize('server', ['postgres', 'redis'])
async def test_app_on_a_server(
    server: str, approvals: Import, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    name = 'fresh_postgres_url' if server == 'postgres' else 'redis_url'
    async with opened(request.getfixturevalue(name), approvals, tmp_path) as office:
        run_id = await office.start('A-1004')
        assert (await office.answer(await office.asked(), True)).status_code == 204
        assert (await office.result(run_id))['refunded'] == 8900
        assert office.paid() == [('A-1004', 8900)]


# --- the whole demo -------------------------------------------------------------------------------


PLACES = ('draft A-1004', 'paid A-1001', 'pay A-1004', 'paid A-1005', 'reply A-1007')


def assert_paid_once(out: str) -> str:
    """The name of the runs, after a look at all that the demo is there to show."""
    code = f'({-signal.SIGKILL})' if sys.platform != 'win32' else '('
    for place in PLACES:
        assert re.search(rf'is killed {re.escape(code)}.* at {place}: ', out), place
    assert 'at rest: four people are asked, and nothing runs.' in out
    assert out.count('is answered while no worker lives') == 4
    rows = re.findall(r'^│ (A-\d+) .*│ +(\d) │ +(\d) │ +(€[\d.]+) │ \S+ +│$', out, re.MULTILINE)
    assert {order: (refunds, cents) for order, _, refunds, cents in rows} == {
        'A-1001': ('1', '€7.90'),
        'A-1002': ('1', '€12.50'),
        'A-1004': ('1', '€89.00'),
        'A-1005': ('1', '€45.00'),
        'A-1006': ('0', '€0.00'),
        'A-1007': ('1', '€649.00'),
        'A-1008': ('1', '€189.00'),
    }
    assert len(re.findall(r'^kept  ', out, re.MULTILINE)) == 7
    found = re.search(r'runs (refunds-\w+)-…', out)
    assert found is not None
    return found.group(1)


@pytest.mark.slow
@pytest.mark.timeout(180)
def test_demo_on_a_file_of_its_own_which_it_removes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv('TMPDIR', str(tmp_path))
    assert_paid_once(output(run_demo(APPROVALS, tmp_path, pace=0.2)))
    assert not list(tmp_path.iterdir())


@pytest.mark.slow
@pytest.mark.timeout(180)
@pytest.mark.parametrize('server', ['postgres', 'redis'])
async def test_demo_on_a_store_that_is_given(
    server: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    url = request.getfixturevalue(f'{server}_url')
    done = await asyncio.to_thread(run_demo, APPROVALS, tmp_path, store=url)
    name = assert_paid_once(output(done))
    async with graphkeep.open_store(url) as store:
        runs = await store.runs(graph=name)
        assert {run.status for run in runs} == {'done'}
        assert len(runs) == 7
        for run in runs:
            await store.delete(run.run_id)


# --- one refund, its worker killed at each place --------------------------------------------------


@pytest.mark.slow
@pytest.mark.timeout(180)
@pytest.mark.parametrize('order', ['A-1001', 'A-1004'])
async def test_refund_is_paid_once_wherever_its_worker_is_killed(
    order: str, approvals: Import, office: Office, sqlite_url: str
) -> None:
    """All places in one run: each worker is killed at the next one."""
    started, worker = approvals('killing.children').started, APPROVALS / 'worker.py'
    run_id = await office.start(order)
    options = [f'--ledger={office.ledger}', '--pace=0']

    async def work(stall: str, *, asked: bool = False) -> list[str]:
        """Let a worker work, and kill it where it stalls, or when the run has paused or ended."""
        reached: list[str] = []

        async def listen(child: Any) -> None:
            async for event, text in child.events():
                if event == 'reaches':
                    reached.append(text)
                if event == 'stalled':
                    child.kill()

        async def stands() -> bool:
            return (await office.store.run(run_id)).status in ('paused', 'done')

        with started(
            worker, 'refunds', *options, f'--stall={stall}', store_url=sqlite_url
        ) as child:
            listening = asyncio.create_task(listen(child))
            if not stall:
                await until(stands)
                child.kill()
            await listening
        assert not stall or reached[-1] == stall
        return reached

    await work(f'draft {order}')
    if order == 'A-1004':
        await work('')
        (request,) = await office.store.requests(run_id=run_id)
        await office.store.answer(run_id, request.request_id, True)
    for place in ('pay', 'paid', 'reply'):
        await work(f'{place} {order}')
    last = await work('')

    assert (await office.refund(run_id))['status'] == 'done'
    (payment,) = approvals('payments').read_ledger(office.ledger)
    assert (payment.order, payment.calls) == (order, 2)
    # An approved refund goes on behind the approval; of a small one the agent runs again.
    assert last == (
        [f'reply {order}'] if order == 'A-1004' else [f'draft {order}', f'reply {order}']
    )


# --- its parts ------------------------------------------------------------------------------------


async def test_provider_pays_once_for_a_key(approvals: Import, tmp_path: Path) -> None:
    payments = approvals('payments')
    provider = payments.Provider(tmp_path / 'ledger.db', no_wait)
    first = await provider.refund(key='k', order='A-1001', cents=790)
    again = await provider.refund(key='k', order='A-1001', cents=700)
    other = await provider.refund(key='l', order='A-1001', cents=790)
    assert first == again == payments.Receipt(number='R-001', order='A-1001', cents=790)
    assert other.number == 'R-002'
    ledger = payments.read_ledger(tmp_path / 'ledger.db')
    assert [(p.key, p.calls) for p in ledger] == [('k', 2), ('l', 1)]


async def test_without_a_key_the_ledger_shows_the_second_refund(
    office: Office, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The demo could not hide it: here the worker dies behind the payment, and the key changes."""
    task, keys = graphkeep.current_task, iter('ab')
    monkeypatch.setattr(graphkeep, 'current_task', lambda: replace(task(), key=next(keys)))
    run_id = await office.start('A-1001')
    deaths = iter([True])

    async def die(place: str, seconds: float) -> None:
        if place == 'paid A-1001' and next(deaths, False):
            raise asyncio.CancelledError

    office.desk = office.modules('worker').make_desk(office.ledger, die)
    refunds = office.modules('graph').refunds
    with pytest.raises(asyncio.CancelledError):
        await refunds.resume(office.store.persistence(run_id), deps=office.desk)
    await office.result(run_id)
    assert office.paid() == [('A-1001', 790), ('A-1001', 790)]


# --- a promise that is broken is noticed ----------------------------------------------------------


NOW = datetime(2026, 11, 30, tzinfo=UTC)


def asked(order: str, **fields: Any) -> graphkeep.Request:
    request = graphkeep.Request(
        run_id=f'r-{order}',
        request_id='1:agent:0:x',
        name='agent:0:x',
        node='settle',
        task='1',
        status='answered',
        created_at=NOW,
        answered_by='demo',
        labels={'order': order},
    )
    return replace(request, **fields)


@pytest.fixture
def evidence(approvals: Import) -> Any:
    """Two refunds, one of them denied, as it should be."""
    promises, graph, payments = approvals('promises'), approvals('graph'), approvals('payments')
    paid = graph.Outcome(order='a', refunded=5, receipt='R-001', answer='')
    denied = graph.Outcome(order='b', refunded=0, receipt=None, answer='')
    waiting = {'b': '1:agent:0:x'}
    return promises.Evidence(
        expected={'a': 5, 'b': 0},
        kills=[promises.Kill(pid=1, code=-9, place='paid a', waiting=waiting)],
        code=0,
        statuses={'a': 'done', 'b': 'done'},
        outcomes={'a': paid, 'b': denied},
        requests=[asked('b')],
        answered={'b': '1:agent:0:x'},
        ledger=[payments.Payment(key='k', receipt='R-001', order='a', cents=5, calls=2)],
    )


def broken(promises: ModuleType, evidence: Any) -> list[str]:
    return [promise.text for promise in promises.check(evidence) if not promise.kept]


ONCE = 'Each order is refunded once, if at all'
AMOUNT = 'What is refunded is what was approved, and what the run says'
REQUESTS = 'No request is lost or doubled'
AGAIN = 'Nobody knew that it was paid: asked again, under the same key'
KEPT = 'It was kept that it was paid: not asked again'


def test_refunds_as_they_should_be(approvals: Import, evidence: Any) -> None:
    assert broken(approvals('promises'), evidence) == []


@pytest.mark.parametrize(
    ('changes', 'said'),
    [
        ([{}, {'key': 'l', 'receipt': 'R-002'}], [ONCE, AGAIN]),
        ([], [ONCE, AMOUNT, AGAIN]),
        ([{}, {'key': 'l', 'order': 'b'}], [ONCE, AMOUNT]),
        ([{'cents': 4}], [AMOUNT]),
        ([{'receipt': 'R-002'}], [AMOUNT]),
        ([{'calls': 1}], [AGAIN]),
    ],
)
def test_other_payments_are_noticed(
    changes: list[dict[str, Any]], said: list[str], approvals: Import, evidence: Any
) -> None:
    (payment,) = evidence.ledger
    ledger = [payment.model_copy(update={'calls': 1, **c} if 'key' in c else c) for c in changes]
    found = broken(approvals('promises'), replace(evidence, ledger=ledger))
    assert [text for text in found if text != AMOUNT or AMOUNT in said] == said


@pytest.mark.parametrize(
    'requests',
    [
        [],
        [asked('b'), asked('b', request_id='1:agent:0:y')],
        [asked('b', request_id='1:agent:0:y')],
        [asked('b', answered_by=None)],
        [asked('a'), asked('b')],
    ],
)
def test_other_requests_are_noticed(
    requests: list[graphkeep.Request], approvals: Import, evidence: Any
) -> None:
    changed = replace(evidence, requests=requests)
    assert broken(approvals('promises'), changed) == [REQUESTS]


def test_second_call_for_what_was_kept_is_noticed(approvals: Import, evidence: Any) -> None:
    kills = [replace(evidence.kills[0], place='reply a')]
    assert broken(approvals('promises'), replace(evidence, kills=kills)) == [KEPT]


def test_refund_without_an_end_is_noticed(approvals: Import, evidence: Any) -> None:
    changed = replace(evidence, statuses={'a': 'failed', 'b': 'done'})
    assert broken(approvals('promises'), changed) == ['Every refund ends']


def test_worker_that_does_not_end_well_is_noticed(approvals: Import, evidence: Any) -> None:
    changed = replace(evidence, code=1)
    assert broken(approvals('promises'), changed) == ['A worker that is stopped ends well']
