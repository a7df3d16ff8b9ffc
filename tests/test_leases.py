"""Claims are renewed while a step runs under them, and given up when idle."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence

import pytest

from graphkeep import leases
from graphkeep.errors import RunBusyError, StoreUnavailableError
from graphkeep.leases import Lease, claiming, idle_holder
from graphkeep.runs import Claim
from graphkeep.stores.memory import MemoryStore
from graphkeep.testing import Worker, eventually


class Recording(MemoryStore):
    """Remembers renewals and releases, and fails when told to."""

    def __init__(self, name: str | None = None, *, heartbeat: float = 0.02) -> None:
        super().__init__(name, lease=60.0, heartbeat=heartbeat, retry=0.0)
        self.renewals: list[list[str]] = []
        self.releases: list[str] = []
        self.fails = 0
        self.gate = asyncio.Event()
        self.gate.set()

    async def _renew(self, claims: Sequence[Claim], ttl: float) -> Sequence[BaseException | None]:
        self.renewals.append(sorted(claim.run_id for claim in claims))
        await self.gate.wait()
        if self.fails:
            self.fails -= 1
            raise StoreUnavailableError('down')
        return await super()._renew(claims, ttl)

    async def _release(self, claim: Claim) -> None:
        self.releases.append(claim.run_id)
        await self.gate.wait()
        if self.fails:
            self.fails -= 1
            raise StoreUnavailableError('down')
        await super()._release(claim)

    async def held(self, run_id: str = 'run-1', *, busy: bool = True) -> Lease:
        """A lease of this process on a new run."""
        await Worker(self, run_id).create(claimed=False)
        lease = self.leases.hold((await self.claim(run_id)).claim)
        lease.busy = busy
        return lease

    async def until(self, condition: str) -> None:
        async def check() -> bool:
            return bool(eval(condition, {}, {'store': self}))

        await eventually(check, what=condition)

    async def status(self, run_id: str = 'run-1') -> str:
        return (await self.run(run_id)).status


@pytest.fixture
def name(request: pytest.FixtureRequest) -> str:
    """A name by which two stores of the test share their runs."""
    return request.node.nodeid


def keeper_tasks() -> list[asyncio.Task[object]]:
    return [task for task in asyncio.all_tasks() if task.get_name() == 'graphkeep-leases']


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(leases, 'IDLE_AFTER', 0.05)
    monkeypatch.setattr(leases, 'TICK', 0.01)


# --- renewing -------------------------------------------------------------------------------------


async def test_the_claim_of_a_running_step_is_renewed_again_and_again() -> None:
    async with Recording() as store:
        lease = await store.held()
        before = (await store.run('run-1')).lease_until
        await store.until('len(store.renewals) >= 3')
        after = (await store.run('run-1')).lease_until
        assert before is not None
        assert after is not None
        assert after > before
        assert lease.valid
        assert await store.status() == 'running'


async def test_claims_that_are_due_are_renewed_in_one_call() -> None:
    async with Recording(heartbeat=0.1) as store:
        for name in 'abc':
            await store.held(name)
        await store.until('store.renewals')
        assert sorted(store.renewals[0]) == ['a', 'b', 'c']
        assert len(keeper_tasks()) == 1


async def test_a_claim_is_not_renewed_before_it_is_due() -> None:
    async with Recording(heartbeat=30.0) as store:
        await store.held()
        await asyncio.sleep(0.1)
        assert store.renewals == []
        assert await store.status() == 'running'


async def test_a_claim_whose_commit_is_in_flight_is_left_alone() -> None:
    async with Recording() as store:
        lease = await store.held()
        lease.writing = True
        other = await store.held('other')
        await store.until('len(store.renewals) >= 3')
        assert all(renewal == ['other'] for renewal in store.renewals)
        assert store.releases == []
        assert other.valid
        lease.writing = False
        await store.until("['other', 'run-1'] in store.renewals or ['run-1'] in store.renewals")


async def test_a_renewal_that_fails_is_tried_again(caplog: pytest.LogCaptureFixture) -> None:
    async with Recording() as store:
        lease = await store.held()
        store.fails = 2
        await store.until('len(store.renewals) >= 4')
        assert lease.valid
        complaints = [record.getMessage() for record in caplog.records]
        assert complaints == ['could not renew 1 claims: down'] * 2


async def test_a_lost_claim_is_told_and_forgotten(caplog: pytest.LogCaptureFixture) -> None:
    async with Recording() as store:
        lost = await store.held('lost')
        kept = await store.held('kept')
        await store.cancel('lost')

        async def noticed() -> bool:
            return not lost.valid

        await eventually(noticed, what='the lost claim is noticed')
        assert kept.valid
        assert [record.levelno for record in caplog.records] == [logging.WARNING]
        assert "run 'lost'" in caplog.records[0].getMessage()
        store.renewals.clear()
        await store.until('len(store.renewals) >= 2')
        assert all(renewal == ['kept'] for renewal in store.renewals)


async def test_a_claim_that_a_commit_ended_meanwhile_is_not_lost(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with Recording() as store:
        ended, writing = await store.held('ended'), await store.held('writing')
        store.gate.clear()
        await store.until('store.renewals')
        # While the renewal is on its way, one run ends, and a commit of the other sets out.
        await store.cancel('ended')
        store.leases.drop(ended)
        await store.cancel('writing')
        writing.writing = True
        store.gate.set()
        await asyncio.sleep(0.05)
        assert caplog.records == []
        assert writing.valid, 'its commit will tell'


# --- giving up ------------------------------------------------------------------------------------


async def test_an_idle_claim_is_given_up() -> None:
    async with Recording() as store:
        lease = await store.held(busy=False)
        assert await store.status() == 'running'
        await store.until('store.releases')
        assert await store.status() == 'ready'
        assert not lease.valid
        assert store.renewals == []


async def test_a_claim_is_idle_from_the_end_of_its_step() -> None:
    async with Recording() as store:
        lease = await store.held()
        await asyncio.sleep(0.1)
        assert store.releases == []
        lease.busy = False
        await store.until('store.releases')
        assert await store.status() == 'ready'


async def test_a_step_that_begins_in_time_keeps_its_claim() -> None:
    async with Recording() as store:
        store.gate.clear()
        held = {name: await store.held(name, busy=False) for name in 'ab'}
        await store.until('store.releases')
        # One is being given up; a step begins under the other, which was found idle as well.
        [first] = store.releases
        [other] = set(held) - {first}
        held[other].busy = True
        store.gate.set()
        await store.until('store.renewals')
        assert store.releases == [first]
        assert store.renewals[0] == [other]
        assert held[other].valid


async def test_a_claim_that_cannot_be_given_up_is_complained_of(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with Recording() as store:
        await store.held(busy=False)
        store.fails = 1
        await store.until('store.releases')
        await asyncio.sleep(0.02)
        assert [record.getMessage() for record in caplog.records] == [
            "could not give up the claim on run 'run-1': down"
        ]


async def test_the_task_lives_while_there_are_claims() -> None:
    async with Recording() as store:
        assert keeper_tasks() == []
        lease = await store.held()
        assert len(keeper_tasks()) == 1
        store.leases.drop(lease)

        async def ended() -> bool:
            return keeper_tasks() == []

        await eventually(ended, what='the task ends with the last claim')
        await store.held('another')
        assert len(keeper_tasks()) == 1


async def test_giving_up_ends_the_claim_at_once() -> None:
    async with Recording() as store:
        lease = await store.held()
        ending = await store.leases.give_up(lease)
        assert (ending.error, ending.cancelled) == (None, None)
        assert await store.status() == 'ready'
        assert not lease.valid
        # Twice is fine, and asks the database nothing.
        assert (await store.leases.give_up(lease)).error is None
        assert store.releases == ['run-1']


async def test_giving_up_goes_on_when_its_caller_is_cancelled() -> None:
    async with Recording() as store:
        lease = await store.held()
        store.gate.clear()
        caller = asyncio.create_task(store.leases.give_up(lease))
        await asyncio.sleep(0)
        for _ in range(3):
            caller.cancel()
            await asyncio.sleep(0)
        assert not caller.done()
        store.gate.set()
        assert (await caller).cancelled is not None
        assert await store.status() == 'ready'


async def test_a_claim_that_was_taken_over_is_not_released() -> None:
    async with Recording() as store:
        lease = await store.held()
        lease.valid = False
        await store.leases.give_up(lease)
        assert store.releases == []


async def test_closing_gives_every_claim_up_even_if_one_cannot_be(name: str) -> None:
    async with Recording(name) as other:
        async with Recording(name) as store:
            held = [await store.held(run_id, busy=run_id != 'b') for run_id in 'abcd']
            store.fails = 1
        assert sorted(store.releases) == ['a', 'b', 'c', 'd']
        statuses = sorted([await other.status(run_id) for run_id in 'abcd'])
        assert statuses == ['ready', 'ready', 'ready', 'running']
        assert not any(lease.valid for lease in held)
        assert keeper_tasks() == []


# --- taking over in the same process --------------------------------------------------------------


def test_a_claim_of_this_process_that_nobody_holds_is_idle() -> None:
    assert idle_holder('nobody', 1)


def test_while_another_call_is_claiming_its_owner_is_not_idle() -> None:
    with claiming('run-1'):
        # This one call is the caller itself.
        assert idle_holder('run-1', 1)
        with claiming('run-1'):
            assert not idle_holder('run-1', 1)
            assert idle_holder('run-2', 1)
        assert idle_holder('run-1', 1)


def test_a_claim_that_failed_is_no_longer_claiming() -> None:
    with pytest.raises(KeyError), claiming('run-1'):
        raise KeyError
    with claiming('run-1'):
        assert idle_holder('run-1', 1)


async def test_an_idle_handle_of_this_process_gives_way_at_once(name: str) -> None:
    async with Recording(name) as one, Recording(name) as two:
        lease = await one.held(busy=False)
        claimed = await two.claim('run-1')
        assert claimed.claim.epoch == lease.claim.epoch + 1
        assert not lease.valid
        taken = two.leases.hold(claimed.claim)
        taken.busy = True
        # The first handle, when it closes, ends nothing of the second.
        await one.leases.give_up(lease)
        assert await two.status() == 'running'


@pytest.mark.parametrize('what', ['busy', 'writing'])
async def test_a_handle_that_works_does_not_give_way(what: str, name: str) -> None:
    async with Recording(name) as one, Recording(name) as two:
        lease = await one.held(busy=False)
        setattr(lease, what, True)
        with pytest.raises(RunBusyError) as caught:
            await two.claim('run-1')
        assert caught.value.epoch == lease.claim.epoch
        assert lease.valid


async def test_a_handle_that_was_forgotten_gives_way(name: str) -> None:
    async with Recording(name) as one, Recording(name) as two:
        await Worker(one).create(claimed=False)
        first = await one.claim('run-1')
        second = await two.claim('run-1')
        assert second.claim.epoch == first.claim.epoch + 1
