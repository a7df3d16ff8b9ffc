"""The chat example: its terminal, its web app, and `make demo-chat`, where an answer goes on."""

from __future__ import annotations

import asyncio
import io
import json
import os
import re
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import httpx
import pytest

pytest.importorskip('pydantic_ai.conversation_store')

from rich.console import Console

import graphkeep
from examples.chat.__main__ import Terminal, talk
from examples.chat.agent import make_agent
from examples.chat.app import make_app
from examples.chat.chats import Chats
from examples.chat.demo import Life, check
from examples.chat.model import clerk_model

from .test_examples import EXAMPLES, output

ASKED = 'Where is A-1004?'
SAID = (
    'Order A-1004, a kettle, should arrive on 2026-11-30. The carrier says that it is in the van.'
)
CALLS = ['model 1', 'look_up', 'model 2', 'estimate_delivery', 'ask_carrier', 'model 3']


@dataclass
class World:
    """What is called, and where the world does not answer yet."""

    calls: list[str] = field(default_factory=list[str])
    holds: dict[str, asyncio.Event] = field(default_factory=dict[str, asyncio.Event])
    reached: dict[str, asyncio.Event] = field(default_factory=dict[str, asyncio.Event])

    async def wait(self, place: str, seconds: float) -> None:
        self.calls += [place] if place in CALLS else []
        if place in self.holds:
            self.reached[place].set()
            await self.holds[place].wait()

    def hold(self, place: str) -> asyncio.Event:
        """Do not answer at a place, until the event that this gives is set."""
        self.reached[place] = asyncio.Event()
        self.holds[place] = asyncio.Event()
        return self.holds[place]


# --- the terminal ---------------------------------------------------------------------------------


def type_in(url: str, monkeypatch: pytest.MonkeyPatch, *typed: str, user: str = 'ada') -> list[str]:
    """The screen, by line, after this was typed."""
    monkeypatch.setattr(sys, 'stdin', io.StringIO(''.join(f'{line}\n' for line in typed)))
    screen = io.StringIO()
    world = World()
    store = graphkeep.open_store(url)
    agent = make_agent(clerk_model(world.wait), world.wait)
    chats = Chats(conversations=store.conversations, agent=agent, user=user)
    with asyncio.Runner() as runner:
        talk(Terminal(chats=chats, console=Console(file=screen, width=120)), runner)
        runner.run(store.close())
    return [line.rstrip() for line in screen.getvalue().splitlines()]


def test_terminal_shows_the_tools_and_the_answer(
    sqlite_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    screen = type_in(sqlite_url, monkeypatch, ASKED)
    assert screen[screen.index(f'ada> {ASKED}') + 1 :] == [
        screen[2],
        "look_up(order_id='A-1004')",
        'look_up → {"order_id":"A-1004","item":"a kettle","sent":"2026-11-28","carrier":"van"}',
        "estimate_delivery(order_id='A-1004')",
        "ask_carrier(order_id='A-1004')",
        'estimate_delivery → 2026-11-30',
        'ask_carrier → it is in the van',
        SAID,
        'ada>',
    ]


def test_terminal_opens_what_was_used_last_and_shows_its_history(
    sqlite_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    type_in(sqlite_url, monkeypatch, 'Hello!')
    type_in(sqlite_url, monkeypatch, '/new', ASKED)
    screen = type_in(sqlite_url, monkeypatch, '/history 4', '/open 2', '/history', '/open 1')
    assert screen[1].endswith(': 6 messages.')
    at = screen.index('ada> /history 4')
    assert screen[at + 1 : at + 4] == [
        '  4 estimate_delivery → 2026-11-30',
        '  4 ask_carrier → it is in the van',
        f'  5 {SAID}',
    ]
    at = screen.index('ada> /history')
    assert screen[at - 1].endswith(': 2 messages.')
    assert screen[at + 1 : at + 3] == [
        '  0 Hello!',
        '  1 Which order is it? Its number is like A-1004.',
    ]


def test_terminal_lists_only_the_chats_of_its_user(
    sqlite_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    type_in(sqlite_url, monkeypatch, ASKED)
    screen = type_in(sqlite_url, monkeypatch, '/list', '/open 1', '/history', user='bob')
    assert not any('A-1004' in line for line in screen)
    assert 'There is no chat 1 in your list.' in screen


def test_terminal_gives_an_answer_again_in_the_place_of_the_first(
    sqlite_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    screen = type_in(sqlite_url, monkeypatch, ASKED, '/again', '/history')
    shown = screen[screen.index('ada> /history') :]
    assert f'  5 To say it otherwise: {SAID}' in shown
    assert not any(line.startswith('  6') for line in shown)


def test_terminal_forks_and_deletes(sqlite_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    screen = type_in(
        sqlite_url, monkeypatch, ASKED, 'Hello!', '/fork 6', '/list', '/delete', '/delete', '/list'
    )
    first, last = (n for n, line in enumerate(screen) if line == 'ada> /list')
    assert [line.split()[2] for line in screen[first + 2 : first + 4]] == ['6', '8']
    assert '(fork of ' in screen[first + 2]
    assert screen[last + 2 :] == ['ada>']


def test_terminal_says_what_cannot_be_done_and_goes_on(
    sqlite_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    typed = ('/again', '/resume', '/history', 'Hello!', '/fork 1', '/open x', '/resume', '/giveup')
    screen = type_in(sqlite_url, monkeypatch, *typed, '/', '/open "', '')
    for said in (
        'No answer ends with the first 1 messages.',
        "invalid literal for int() with base 10: 'x'",
        'No answer was left half-way in this chat.',
        'There was none.',
        'No closing quotation',
    ):
        assert said in screen
    assert screen.count('There is no chat yet: say something.') == 3
    assert sum('/giveup' in line for line in screen) == 3
    assert screen[-1] == 'ada>'


# --- the web app ----------------------------------------------------------------------------------


@dataclass
class Web:
    """The app as its clients see it."""

    app: Any
    store: graphkeep.Store
    world: World
    client: httpx.AsyncClient

    async def ask(self, method: str, path: str, user: str = 'ada', **options: Any) -> Any:
        """What a request gives; it has to go well."""
        answer = await self.client.request(method, path, headers={'X-User': user}, **options)
        assert answer.is_success, answer.text
        return answer.json() if answer.content else None

    async def refused(self, method: str, path: str, user: str = 'ada', **options: Any) -> Any:
        """The status of a request that is refused, and what is said."""
        answer = await self.client.request(method, path, headers={'X-User': user}, **options)
        assert not answer.is_success
        return answer.status_code, answer.json()

    async def new(self, user: str = 'ada') -> str:
        return (await self.ask('POST', '/chats', user))['id']

    async def hear(self, chat: str, what: str = 'messages', prompt: str = ASKED) -> list[Any]:
        """The events of an answer."""
        answer = await self.client.post(
            f'/chats/{chat}/{what}',
            headers={'X-User': 'ada'},
            json={'prompt': prompt} if what == 'messages' else None,
        )
        assert answer.status_code == 200, answer.text
        assert answer.headers['content-type'].startswith('text/event-stream')
        return parsed(answer.text)

    async def said(self, chat: str) -> list[str]:
        """What the chat has, as its user sees it."""
        history = await self.ask('GET', f'/chats/{chat}')
        return [
            line['text']
            for message in history['messages']
            for line in message['lines']
            if line['kind'] in ('user', 'text')
        ]

    @asynccontextmanager
    async def listening(
        self, chat: str, what: str = 'messages'
    ) -> AsyncIterator[asyncio.Queue[Any]]:
        """An answer that is listened to, as long as this is open; gives what comes."""
        heard = asyncio.Queue[Any]()
        gone = asyncio.Event()
        given = [{'type': 'http.request', 'body': json.dumps({'prompt': ASKED}).encode()}]

        async def receive() -> Any:
            if given:
                return given.pop()
            await gone.wait()
            return {'type': 'http.disconnect'}

        async def send(message: Any) -> None:
            for event in parsed(message.get('body', b'').decode()):
                heard.put_nowait(event)

        scope = {
            'type': 'http',
            'asgi': {'version': '3.0', 'spec_version': '2.3'},
            'http_version': '1.1',
            'method': 'POST',
            'scheme': 'http',
            'path': f'/chats/{chat}/{what}',
            'query_string': b'',
            'headers': [(b'x-user', b'ada'), (b'content-type', b'application/json')],
        }
        answering = asyncio.create_task(self.app(scope, receive, send))
        try:
            yield heard
        finally:
            gone.set()
            await answering

    @asynccontextmanager
    async def left(
        self, chat: str, place: str = 'ask_carrier', what: str = 'messages'
    ) -> AsyncIterator[None]:
        """A client has left in the middle of an answer."""
        release = self.world.hold(place)
        async with self.listening(chat, what):
            await self.world.reached[place].wait()
        release.set()
        self.world.calls.clear()
        yield


def parsed(text: str) -> list[Any]:
    """Server-sent events: kind and data."""
    found = re.findall(r'event: (\w+)\ndata: (.*)\n\n', text)
    return [(kind, json.loads(data)) for kind, data in found]


@asynccontextmanager
async def opened(url: str) -> AsyncIterator[Web]:
    world = World()
    async with graphkeep.open_store(url) as store:
        app = make_app(store, make_agent(clerk_model(world.wait), world.wait))
        transport = httpx.ASGITransport(app)
        async with httpx.AsyncClient(transport=transport, base_url='http://app') as client:
            yield Web(app, store, world, client)


@pytest.fixture
async def web(sqlite_url: str) -> AsyncIterator[Web]:
    async with opened(sqlite_url) as web:
        yield web


async def test_answer_is_a_stream_of_what_happens(web: Web) -> None:
    chat = await web.new()
    events = await web.hear(chat)
    kinds = [kind for kind, _ in events]
    assert kinds[:6] == ['call', 'return', 'call', 'call', 'return', 'return']
    assert kinds[6:-1] == ['text'] * len(SAID.split())
    assert ''.join(data['text'] for kind, data in events if kind == 'text') == SAID
    assert events[-1] == ('end', {'text': SAID})
    assert await web.said(chat) == [ASKED, SAID]


async def test_answer_comes_while_it_is_made(web: Web) -> None:
    chat = await web.new()
    release = web.world.hold('model 3')
    async with web.listening(chat) as heard:
        kinds = [(await heard.get())[0] for _ in range(6)]
        assert kinds == ['call', 'return', 'call', 'call', 'return', 'return']
        assert heard.empty()
        release.set()
        while (await heard.get())[0] != 'end':
            pass


async def test_users_have_chats_of_their_own(web: Web) -> None:
    chat = await web.new()
    await web.hear(chat)
    (mine,) = await web.ask('GET', '/chats')
    assert (mine['id'], mine['about'], mine['messages']) == (chat, ASKED, 6)
    assert await web.ask('GET', '/chats', 'bob') == []
    theirs = await web.new('bob')
    assert [each['id'] for each in await web.ask('GET', '/chats', 'bob')] == [theirs]
    assert [each['id'] for each in await web.ask('GET', '/chats')] == [chat]


ON_A_CHAT = [
    ('GET', ''),
    ('DELETE', ''),
    ('POST', '/messages'),
    ('POST', '/resume'),
    ('POST', '/again'),
    ('POST', '/fork'),
    ('DELETE', '/unfinished'),
]


@pytest.mark.parametrize(('method', 'what'), ON_A_CHAT)
async def test_chat_of_somebody_else_is_not_there(method: str, what: str, web: Web) -> None:
    chat = await web.new()
    await web.hear(chat)
    web.world.calls.clear()
    body = {'prompt': 'Hello!'} if what == '/messages' else None
    for user, path in (('bob', f'/chats/{chat}{what}'), ('ada', f'/chats/unknown{what}')):
        status, said = await web.refused(method, path, user, json=body)
        assert status == 404
        assert 'You have no chat' in said['detail']
        assert said['what_to_do'] == 'GET /chats lists yours.'
    assert await web.said(chat) == [ASKED, SAID]
    assert web.world.calls == []


@pytest.mark.parametrize(('method', 'what'), ON_A_CHAT)
@pytest.mark.parametrize('chat', ['a b', 'a%00b', 'x' * 65, '%ED%A0%80', 'ä!'])
async def test_id_that_can_be_none_is_refused(method: str, what: str, chat: str, web: Web) -> None:
    body = {'prompt': 'Hello!'} if what == '/messages' else None
    assert (await web.refused(method, f'/chats/{chat}{what}', json=body))[0] == 422


@pytest.mark.parametrize(
    ('method', 'what', 'options'),
    [
        ('POST', '/messages', {'json': {'prompt': ''}}),
        ('POST', '/messages', {'json': {'prompt': 1}}),
        ('POST', '/messages', {}),
        ('GET', '', {'params': {'start': -1}}),
        ('GET', '', {'params': {'stop': 'x'}}),
        ('POST', '/fork', {'params': {'at': -1}}),
        ('POST', '/fork', {'params': {'at': 7}}),
        ('POST', '/fork', {'params': {'at': 2}}),
        ('GET', '', {'user': 'a b'}),
        ('GET', '', {'user': ''}),
    ],
)
async def test_request_that_makes_no_sense_is_refused(
    method: str, what: str, options: dict[str, Any], web: Web
) -> None:
    chat = await web.new()
    await web.hear(chat)
    assert (await web.refused(method, f'/chats/{chat}{what}', **options))[0] == 422
    assert len(await web.ask('GET', '/chats')) == 1


async def test_part_of_a_history(web: Web) -> None:
    chat = await web.new()
    await web.hear(chat)
    found = await web.ask('GET', f'/chats/{chat}', params={'start': 1, 'stop': 3})
    assert (found['count'], found['unfinished']) == (6, False)
    assert [message['at'] for message in found['messages']] == [1, 2]
    assert found['messages'][0]['lines'] == [{'kind': 'call', 'text': "look_up(order_id='A-1004')"}]


async def test_answer_again_leaves_the_first_as_a_branch(web: Web) -> None:
    chat = await web.new()
    await web.hear(chat, prompt='Hello!')
    await web.hear(chat)
    web.world.calls.clear()
    assert (await web.hear(chat, 'again'))[-1] == ('end', {'text': f'Once more: {SAID}'})
    assert web.world.calls == CALLS
    *_, asked, said = await web.said(chat)
    assert (asked, said) == (ASKED, f'Once more: {SAID}')
    record = await web.store.conversations.read_record(chat)
    assert record is not None
    (branch,) = record.branches
    left = await web.store.conversations.read_history(branch)
    assert len(left) == 8


async def test_question_stays_when_its_other_answer_does_not_come(web: Web) -> None:
    chat = await web.new()
    await web.hear(chat)
    async with web.left(chat, what='again'):
        assert await web.said(chat) == [ASKED]
        await web.hear(chat, 'resume')
        assert web.world.calls == ['ask_carrier', 'model 3']
        assert await web.said(chat) == [ASKED, f'To say it otherwise: {SAID}']


async def test_fork_goes_its_own_way(web: Web) -> None:
    chat = await web.new()
    await web.hear(chat, prompt='Hello!')
    await web.hear(chat)
    whole = (await web.ask('POST', f'/chats/{chat}/fork'))['id']
    part = (await web.ask('POST', f'/chats/{chat}/fork', params={'at': 2}))['id']
    await web.hear(part, prompt='And A-1003?')
    assert [len(await web.said(each)) for each in (chat, whole, part)] == [4, 4, 4]
    assert (await web.said(part))[-1].endswith('a cup, is still being packed.')
    listed = await web.ask('GET', '/chats')
    assert [each['forked_from'] for each in listed] == [chat, chat, None]

    assert await web.ask('DELETE', f'/chats/{chat}') is None
    assert (await web.refused('GET', f'/chats/{chat}'))[0] == 404
    assert [each['id'] for each in await web.ask('GET', '/chats')] == [part, whole]
    assert (await web.said(whole))[2] == ASKED


async def test_client_that_has_left_resumes_without_repeating_what_was_kept(web: Web) -> None:
    chat = await web.new()
    async with web.left(chat):
        assert (await web.ask('GET', f'/chats/{chat}'))['unfinished']
        assert await web.said(chat) == []
        events = await web.hear(chat, 'resume')
        assert events[-1] == ('end', {'text': SAID})
        assert web.world.calls == ['ask_carrier', 'model 3']
        assert await web.said(chat) == [ASKED, SAID]
        assert not (await web.ask('GET', f'/chats/{chat}'))['unfinished']


async def test_same_question_goes_on_as_well_and_is_there_once(web: Web) -> None:
    chat = await web.new()
    async with web.left(chat, 'model 2'):
        await web.hear(chat)
        assert web.world.calls == CALLS[2:]
        assert await web.said(chat) == [ASKED, SAID]


async def test_answer_that_was_left_half_way_is_in_the_way_of_another(web: Web) -> None:
    chat = await web.new()
    async with web.left(chat):
        for what, body in (('messages', {'prompt': 'Hello!'}), ('again', None)):
            status, said = await web.refused('POST', f'/chats/{chat}/{what}', json=body)
            assert status == 409
            assert said['what_to_do'] == 'POST …/resume goes on, DELETE …/unfinished gives it up.'
        await web.ask('DELETE', f'/chats/{chat}/unfinished')
        await web.hear(chat, prompt='Hello!')
        assert (await web.said(chat))[0] == 'Hello!'
        assert web.world.calls == ['model 1']
        record = await web.store.conversations.read_record(chat)
        assert record is not None
        assert len(record.branches) == 1


async def test_second_question_is_refused_while_an_answer_is_given(web: Web) -> None:
    chat = await web.new()
    release = web.world.hold('ask_carrier')
    async with web.listening(chat) as heard:
        await web.world.reached['ask_carrier'].wait()
        for what, body in (('messages', {'prompt': 'Hello!'}), ('resume', None)):
            status, said = await web.refused('POST', f'/chats/{chat}/{what}', json=body)
            assert status == 409
            assert 'An agent runs in conversation' in said['detail']
            assert said['what_to_do'].startswith('Wait for the answer')
        release.set()
        while (await heard.get())[0] != 'end':
            pass
    assert await web.said(chat) == [ASKED, SAID]


@pytest.mark.parametrize('what', ['', '/unfinished'])
async def test_answer_in_a_chat_that_is_changed_meanwhile_ends_with_an_error(
    what: str, web: Web
) -> None:
    chat = await web.new()
    release = web.world.hold('ask_carrier')
    async with web.listening(chat) as heard:
        await web.world.reached['ask_carrier'].wait()
        await web.ask('DELETE', f'/chats/{chat}{what}')
        release.set()
        event: Any = ('', {})
        while event[0] != 'error':
            event = await heard.get()
            assert event[0] != 'end'
    assert event[1]['what_to_do'] == 'Somebody has changed the chat meanwhile: load it again.'
    assert len(await web.ask('GET', '/chats')) == (what != '')


async def test_nothing_to_go_on_with_and_nothing_to_give_again(web: Web) -> None:
    chat = await web.new()
    for what in ('resume', 'again'):
        assert (await web.refused('POST', f'/chats/{chat}/{what}'))[0] == 409
    assert await web.said(chat) == []


async def test_chat_that_was_changed_since_it_was_read_is_not_branched(
    web: Web, monkeypatch: pytest.MonkeyPatch
) -> None:
    chat = await web.new()
    await web.hear(chat)
    find = Chats.find

    async def find_old(chats: Chats, chat_id: str) -> Any:
        return replace(await find(chats, chat_id), revision='old')

    monkeypatch.setattr(Chats, 'find', find_old)
    status, said = await web.refused('POST', f'/chats/{chat}/again')
    assert (status, 'was saved or deleted' in said['detail']) == (409, True)
    assert await web.said(chat) == [ASKED, SAID]


async def test_page_needs_nothing_from_elsewhere(web: Web) -> None:
    page = await web.client.get('/')
    assert page.headers['content-type'].startswith('text/html')
    assert not re.findall(r'(?:https?:)?//[a-z]|src=|@import|innerHTML', page.text)
    paths = {route.path for route in web.app.routes if hasattr(route, 'path')}
    for called in re.findall(r"hear\('(\w+)'|chats/\$\{\w+\}/(\w+)`", page.text):
        assert f'/chats/{{chat_id}}/{"".join(called)}' in paths


@pytest.mark.parametrize('store', ['memory', 'sqlite', 'postgres', 'redis'])
async def test_chat_on_every_store(store: str, request: pytest.FixtureRequest) -> None:
    names = {'sqlite': 'sqlite_url', 'postgres': 'fresh_postgres_url', 'redis': 'redis_url'}
    url = request.getfixturevalue(names[store]) if store in names else 'memory://'
    async with opened(url) as web:
        chat = await web.new()
        async with web.left(chat):
            await web.hear(chat, 'resume')
            assert web.world.calls == ['ask_carrier', 'model 3']
        await web.hear(chat, 'again')
        forked = (await web.ask('POST', f'/chats/{chat}/fork'))['id']
        await web.ask('DELETE', f'/chats/{chat}')
        await web.hear(forked, prompt='Hello!')
        assert len(await web.said(forked)) == 4
        (listed,) = await web.ask('GET', '/chats')
        assert (listed['id'], listed['about']) == (forked, ASKED)


# --- processes that are killed --------------------------------------------------------------------


def live(url: str, cwd: Path, typed: str, stalls: Sequence[str] = ()) -> list[str]:
    """What a process of the chat has reached. It is killed at the first of its stalls."""
    reached: list[str] = []
    options = [f'--stall={stall}' for stall in stalls]
    with subprocess.Popen(
        [sys.executable, '-m', 'examples.chat', '--user=ada', '--pace=0', '--trace', *options],
        cwd=cwd,
        env={**os.environ, 'STORE': url, 'PYTHONPATH': str(EXAMPLES.parent)},
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        encoding='utf-8',
    ) as process:
        try:
            assert process.stdin is not None
            assert process.stderr is not None
            process.stdin.write(typed)
            process.stdin.close()
            for line in process.stderr:
                reached.append(line.strip())
                if reached[-1:] == [*stalls[:1]]:
                    process.kill()
        finally:
            process.kill()
    assert process.returncode == (-signal.SIGKILL if stalls else 0), reached
    return reached


LIVES: Sequence[tuple[Sequence[str], Sequence[str]]] = (
    (['model 1'], ['model 1']),
    (['model 1 done'], ['model 1', 'model 1 done']),
    (['look_up'], ['model 1', 'model 1 done', 'look_up']),
    (['look_up done'], ['look_up', 'look_up done']),
    (['model 2'], ['look_up', 'look_up done', 'model 2']),
    (['model 2 done'], ['model 2', 'model 2 done']),
    (['estimate_delivery', 'ask_carrier'], ['model 2', 'model 2 done']),
    (['estimate_delivery done', 'ask_carrier'], []),
    (['ask_carrier'], []),
    (['ask_carrier done'], []),
    (['model 3'], ['model 3']),
    (['model 3 done'], ['model 3', 'model 3 done']),
    ([], ['model 3', 'model 3 done']),
)
"""Where each process hangs and is killed, and what it has called of what is called alone."""
BATCH = {'estimate_delivery', 'estimate_delivery done', 'ask_carrier', 'ask_carrier done'}


@pytest.mark.slow
@pytest.mark.timeout(180)
@pytest.mark.skipif(sys.platform == 'win32', reason='there is no SIGKILL')
def test_chat_goes_on_wherever_it_is_killed(
    sqlite_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    batches: list[set[str]] = []
    for number, (stalls, expected) in enumerate(LIVES):
        typed = f'{ASKED}\n' if number in (0, 2) else '/resume\n'
        reached = live(sqlite_url, tmp_path, typed, stalls)
        assert [place for place in reached if place not in BATCH] == expected, stalls
        batches.append(BATCH.intersection(reached))
    # What was on its way runs again, until it has returned; then nothing of the batch does.
    assert all('ask_carrier' in reached for reached in batches[8:11])
    assert not any([*batches[:6], *batches[11:]])
    screen = type_in(sqlite_url, monkeypatch, '/history')
    assert [line for line in screen if line.startswith('  0')] == [f'  0 {ASKED}']
    assert [line for line in screen if line.startswith('  5')] == [f'  5 {SAID}']
    assert not any(line.startswith('  6') for line in screen)


@pytest.mark.skipif(sys.platform == 'win32', reason='there is no SIGINT to send')
def test_ctrl_c_stops_the_answer_and_not_the_chat(sqlite_url: str, tmp_path: Path) -> None:
    hearing = 'import signal; signal.signal(signal.SIGINT, signal.default_int_handler); '
    code = f'{hearing}import runpy; runpy.run_module("examples.chat", run_name="__main__")'
    with subprocess.Popen(
        [
            sys.executable,
            '-u',
            '-c',
            code,
            '--user=ada',
            '--pace=0',
            '--stall=ask_carrier',
            '--trace',
        ],
        cwd=tmp_path,
        env={**os.environ, 'STORE': sqlite_url, 'PYTHONPATH': str(EXAMPLES.parent)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        encoding='utf-8',
    ) as process:
        try:
            assert process.stdin is not None
            assert process.stderr is not None
            process.stdin.write(f'{ASKED}\n/giveup\n{ASKED}\n')
            process.stdin.flush()
            for _ in range(2):
                while (line := process.stderr.readline()) != 'ask_carrier\n':
                    assert line
                process.send_signal(signal.SIGINT)
            out, err = process.communicate(timeout=30)
        finally:
            process.kill()
    assert process.returncode == 0, err
    assert 'Traceback' not in err
    assert out.count('Stopped.\nAn answer was left half-way: /resume or /giveup.') == 2
    assert 'It is given up.' in out


def run_demo(cwd: Path, store: str = '') -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, '-m', 'examples.chat.demo', '--pace=0'],
        cwd=cwd,
        env={**os.environ, 'STORE': store, 'PYTHONPATH': str(EXAMPLES.parent)},
        capture_output=True,
        encoding='utf-8',
        timeout=170,
        check=False,
    )


@pytest.mark.slow
@pytest.mark.timeout(180)
def test_demo_on_a_file_of_its_own_which_it_removes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv('TMPDIR', str(tmp_path))
    out = output(run_demo(tmp_path))
    assert len(re.findall(r'^kept  ', out, re.MULTILINE)) == 5
    code = f'({-signal.SIGKILL})' if sys.platform != 'win32' else '('
    assert f'is killed {code}' in out
    assert not list(tmp_path.iterdir())


@pytest.mark.slow
@pytest.mark.timeout(180)
@pytest.mark.parametrize('server', ['postgres', 'redis'])
async def test_demo_on_a_store_that_is_given(
    server: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    url = request.getfixturevalue(f'{server}_url')
    out = output(await asyncio.to_thread(run_demo, tmp_path, url))
    assert len(re.findall(r'^kept  ', out, re.MULTILINE)) == 5
    async with graphkeep.open_store(url) as store:
        assert await store.conversations.list_conversations() == []


# --- a promise that is broken is noticed ----------------------------------------------------------

FIRST = Life(pid=1, code=-9, shown=[], calls=Counter(CALLS[:5]))
SECOND = Life(
    pid=2,
    code=0,
    shown=[
        SAID,
        f'  0 {ASKED}',
        f'  5 {SAID}',
        f'To say it otherwise: {SAID}',
        f'*1 b 12 {ASKED} (fork of a)',
        f' 2 a 6 {ASKED}',
        f'  0 {ASKED}',
        f'  5 To say it otherwise: {SAID}',
    ],
    calls=Counter(CALLS[4:]),
)


def broken(first: Life, second: Life) -> list[bool]:
    return [not promise.kept for promise in check(first, second)]


def test_answer_as_it_should_be() -> None:
    assert not any(broken(FIRST, SECOND))


@pytest.mark.parametrize('call', CALLS)
def test_call_too_many_is_noticed(call: str) -> None:
    again = replace(SECOND, calls=SECOND.calls + Counter([call]))
    assert broken(FIRST, again)[call in CALLS[4:]]


@pytest.mark.parametrize(('line', 'promise'), [(1, 2), (2, 3), (3, 3), (4, 4), (5, 4), (6, 2)])
def test_line_that_is_missing_is_noticed(line: int, promise: int) -> None:
    shown = [*SECOND.shown[:line], *SECOND.shown[line + 1 :]]
    assert broken(FIRST, replace(SECOND, shown=shown))[promise]
