"""An agent of three model calls and four tools at once, whose run is kept somewhere, and dies."""

from __future__ import annotations

import asyncio
import json
import uuid
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from pydantic_ai import Agent, RunContext
from pydantic_ai.messages import ModelMessage, ModelResponse

from graphkeep import RunNotFoundError, Store
from graphkeep.agents import KeepRun
from tests.builder.dying import Death, mortal, through
from tests.classic.conftest import MakeStore

from .staging import Script, Stage, call, plain, script, text

BATCH = ('w', 'x', 'y', 'z')


def plot() -> Script:
    """One tool, then four at once, then the end."""
    return script(
        [call('look', 'l', at='first')],
        [call('look', each, at=each) for each in BATCH],
        [text('done')],
    )


@dataclass
class Life:
    """One run of an agent through several processes."""

    where: str
    """`conversation`, or the front end of the step it runs in."""
    keeper: Store
    make_store: MakeStore
    script: Script = field(default_factory=plot)
    looked: Counter[str] = field(default_factory=Counter)
    deaths: int = 0
    result: Any = None

    def __post_init__(self) -> None:
        self.run_id = f'run-{uuid.uuid4().hex}'
        self.agent: Agent[None, str] = Agent(self.script.model, instructions='Be brief.')

        @self.agent.tool
        async def look(ctx: RunContext[None], at: str) -> str:
            assert ctx.tool_call_id is not None
            self.looked[ctx.tool_call_id] += 1
            await asyncio.sleep(0)
            return f'saw {at}'

    async def run(self, keep: KeepRun) -> None:
        # 1.x takes no run id, and has no conversations.
        named: dict[str, Any] = {'run_id': self.run_id} if self.where == 'conversation' else {}
        self.result = await self.agent.run('look!', capabilities=[keep], **named)

    async def play(self, store: Store, *, begun: bool) -> None:
        """In one process, to the end."""
        if self.where == 'conversation':
            await self.run(KeepRun(store.conversations, self.run_id, scope='ada'))
        else:
            stage = Stage(store, self.run_id, self.where, begun=begun)
            await stage.play(lambda: self.run(KeepRun()))

    async def live(self, death: Death | None) -> None:
        """Go on until the run has ended, or the process dies."""
        asked, looked = len(self.script.asked), Counter(self.looked)
        responses, returns, begun = await self.kept()
        try:
            async with mortal(self.make_store, death) as store:
                await self.play(store, begun=begun)
        finally:
            again = self.script.asked[asked:]
            assert all(number >= responses for number in again), 'a response was kept'
            assert len(set(again)) == len(again)
            calls = self.looked - looked
            assert not returns & calls.keys(), 'a return was kept'
            assert all(times == 1 for times in calls.values())

    async def live_and_die(self, *deaths: Death) -> None:
        self.deaths += await through(self.live, deaths)

    async def kept(self) -> tuple[int, set[str], bool]:
        """How many responses and which returns are stored, and whether the run was begun."""
        if self.where == 'conversation':
            found = await self.keeper.conversations.read(self.run_id)
            if found is None:
                return 0, set(), False
            record, run = found
            tip = record.head_id if run is None else run.tip
            history = await self.keeper.conversations.read_history(tip)
            messages = [entry.message for entry in history]
            returns = set() if run is None else set(run.returns)
            pending = [] if run is None or run.pending is None else run.pending['parts']
        else:
            try:
                document = json.loads((await self.keeper.document(self.run_id)).to_json())
            except RunNotFoundError:
                return 0, set(), False
            memo = [m for task in document['tasks'].values() for m in task.get('memo', {}).items()]
            if not document['tasks']:
                return 3, {'l', *BATCH}, True
            steps = [value for key, value in memo if 'return' not in key]
            last = max((key for key, _ in memo if 'return' not in key), default='')
            kept = [m for step in steps for m in step['messages']]
            pending = next((v['pending'] for k, v in memo if k == last and v['pending']), None)
            pending = [] if pending is None else pending['parts']
            returns = {value[0] for key, value in memo if 'return' in key}
            returned = [p for m in kept for p in m['parts'] if p['part_kind'] == 'tool-return']
            returns |= {part['tool_call_id'] for part in [*returned, *pending]}
            return sum(m['kind'] == 'response' for m in kept), returns, True
        parts = [part for message in messages for part in message.parts]
        returns |= {part.tool_call_id for part in parts if part.part_kind == 'tool-return'}
        returns |= {part['tool_call_id'] for part in pending}
        return sum(isinstance(m, ModelResponse) for m in messages), returns, True

    def check_usage(self, usage: Any) -> None:
        assert (usage.requests, usage.tool_calls) == (3, 5)

    async def check(self) -> None:
        """The end is that of an undisturbed run."""
        by_hand = await undisturbed()
        result = self.result
        assert result.output == 'done'
        messages = result.all_messages()
        same(messages, by_hand)
        assert result.new_messages() == messages
        self.check_usage(result.usage)
        assert all(times <= 1 + self.deaths for times in self.looked.values())
        assert self.looked.keys() == {'l', *BATCH}
        if self.where == 'conversation':
            conversations = self.keeper.conversations
            loaded = await conversations.load(self.run_id, scope='ada')
            assert loaded is not None
            assert loaded.messages == messages
            self.check_usage(loaded.usage)
            found = await conversations.read(self.run_id)
            assert found is not None
            assert found[1] is None
            assert found[0].branches == []
        else:
            assert (await self.keeper.run(self.run_id)).status == 'done'
            assert b'keep-run' not in (await self.keeper.document(self.run_id)).to_json()


def same(messages: Sequence[ModelMessage], by_hand: Sequence[ModelMessage]) -> None:
    """The same was said, in one run and one conversation, with nothing left open."""
    assert plain(messages) == plain(by_hand)
    assert [each.kind for each in messages] == [each.kind for each in by_hand]
    assert [getattr(each, 'instructions', None) for each in messages] == [
        getattr(each, 'instructions', None) for each in by_hand
    ]
    assert len({each.run_id for each in messages}) == 1
    assert len({each.conversation_id for each in messages}) == 1
    assert None not in {each.timestamp for each in messages}


async def undisturbed() -> list[ModelMessage]:
    """The messages of the same run without graphkeep."""
    agent = Agent(plot().model, instructions='Be brief.')

    @agent.tool_plain
    async def look(at: str) -> str:
        return f'saw {at}'

    return (await agent.run('look!')).all_messages()
