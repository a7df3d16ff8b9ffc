"""The chat as a web app: a page, and what it asks for, with answers that stream.

    python -m examples.chat.app
    STORE=redis://… python -m examples.chat.app

Then open http://127.0.0.1:8000. Its documentation is at /docs.
"""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import AbstractAsyncContextManager, aclosing, asynccontextmanager
from datetime import datetime
from pathlib import Path
from typing import Annotated, Any

import uvicorn
from fastapi import Body, Depends, FastAPI, Header, Query, Request
from fastapi import Path as FromPath
from fastapi.responses import FileResponse, JSONResponse, StreamingResponse
from pydantic import BaseModel
from pydantic_ai import Agent, AgentRunEvents
from pydantic_ai.conversation_store import ConversationConflict
from pydantic_ai.exceptions import UserError

import graphkeep

from .agent import make_agent
from .chats import Chats, NoChatError, NothingToDoError
from .lines import Line, heard, lines, title
from .model import clerk_model
from .pace import Pace

__all__ = ('make_app',)

REFUSALS: dict[type[Exception], tuple[int, str]] = {
    NoChatError: (404, 'GET /chats lists yours.'),
    NothingToDoError: (409, 'POST …/messages says something.'),
    ConversationConflict: (409, 'Somebody has changed the chat meanwhile: load it again.'),
    graphkeep.ConversationBusyError: (409, 'Wait for the answer, or DELETE …/unfinished stops it.'),
    graphkeep.UnfinishedRunError: (409, 'POST …/resume goes on, DELETE …/unfinished gives it up.'),
    UserError: (422, 'What was asked for cannot be done: ask for something else.'),
    graphkeep.StoreUnavailableError: (503, 'Try again.'),
}
"""What an error is over HTTP, and what to do. Any other is a fault of the server: 500."""

User = Annotated[str, Header(alias='X-User', pattern=r'^[\w.@-]{1,64}$')]
"""Stands for your login: never believe a header."""


def chats_of(request: Request, user: User) -> Chats:
    """The chats of who asks."""
    state = request.app.state
    return Chats(conversations=state.store.conversations, agent=state.agent, user=user)


Mine = Annotated[Chats, Depends(chats_of)]
ChatId = Annotated[str, FromPath(pattern=r'^[\w-]{1,64}$')]
Prompt = Annotated[str, Body(embed=True, min_length=1, max_length=10_000)]
Place = Annotated[int, Query(ge=0)]


class Chat(BaseModel):
    """A chat in the list."""

    id: str
    about: str
    messages: int
    forked_from: str | None
    updated_at: datetime


class Message(BaseModel):
    """A message of a chat, and what is shown of it."""

    at: int
    lines: list[Line]


class History(BaseModel):
    """Part of a chat."""

    count: int
    """Of all messages."""
    unfinished: bool
    """Whether an answer was left half-way, or is being given."""
    messages: list[Message]


class Begun(BaseModel):
    """A new chat."""

    id: str


def make_app(store: graphkeep.Store, agent: Agent[None, str]) -> FastAPI:
    """The app.

    Args:
        store: Where the chats are; it is closed when the app ends.
        agent: Who answers.
    """

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        async with store:
            yield

    app = FastAPI(title='Chat', lifespan=lifespan)
    app.state.store, app.state.agent = store, agent

    async def refuse(request: Request, error: Exception) -> JSONResponse:
        status, body = refusal(error)
        return JSONResponse(body, status)

    for kind in REFUSALS:
        app.add_exception_handler(kind, refuse)

    @app.get('/', include_in_schema=False)
    async def page() -> FileResponse:
        return FileResponse(Path(__file__).with_name('page.html'))

    @app.get('/chats')
    async def newest(mine: Mine) -> list[Chat]:
        """Your chats, last used first."""
        found: list[Chat] = []
        for record in await mine.newest():
            first = await mine.history(record.conversation_id, 0, 1)
            found.append(
                Chat(
                    id=record.conversation_id,
                    about=title(first[0].message if first else None),
                    messages=await mine.conversations.count(record.conversation_id) or 0,
                    forked_from=record.forked_from,
                    updated_at=record.updated_at,
                )
            )
        return found

    @app.post('/chats', status_code=201)
    async def new(mine: Mine) -> Begun:
        """Begin a chat."""
        return Begun(id=await mine.new())

    @app.get('/chats/{chat_id}')
    async def history(
        mine: Mine,
        chat_id: ChatId,
        start: Place = 0,
        stop: Annotated[int | None, Query(ge=0)] = None,
    ) -> History:
        """The messages from `start` on, up to the one before `stop`."""
        entries = await mine.history(chat_id, start, stop)
        return History(
            count=await mine.conversations.count(chat_id) or 0,
            unfinished=await mine.is_unfinished(chat_id),
            messages=[
                Message(at=at, lines=[*lines(entry.message)])
                for at, entry in enumerate(entries, start)
            ],
        )

    @app.post('/chats/{chat_id}/messages')
    async def say(mine: Mine, chat_id: ChatId, prompt: Prompt) -> StreamingResponse:
        """Say something. The answer is a stream of server-sent events, each a `Line`."""
        return await Streamed.begun(mine.say(chat_id, prompt))

    @app.post('/chats/{chat_id}/resume')
    async def resume(mine: Mine, chat_id: ChatId) -> StreamingResponse:
        """Go on with an answer that was left half-way, with a stream as that of `messages`."""
        return await Streamed.begun(mine.resume(chat_id))

    @app.post('/chats/{chat_id}/again')
    async def again(mine: Mine, chat_id: ChatId) -> StreamingResponse:
        """Have the last answer given again, with a stream as that of `messages`."""
        return await Streamed.begun(mine.again(chat_id))

    @app.delete('/chats/{chat_id}/unfinished', status_code=204)
    async def give_up(mine: Mine, chat_id: ChatId) -> None:
        """Give an answer up that was left half-way."""
        await mine.give_up(chat_id)

    @app.post('/chats/{chat_id}/fork', status_code=201)
    async def fork(
        mine: Mine, chat_id: ChatId, at: Annotated[int | None, Query(ge=0)] = None
    ) -> Begun:
        """Begin a chat with the first `at` messages of this one, or all."""
        return Begun(id=await mine.fork(chat_id, at))

    @app.delete('/chats/{chat_id}', status_code=204)
    async def delete(mine: Mine, chat_id: ChatId) -> None:
        """Delete a chat. Its forks stay."""
        await mine.delete(chat_id)

    return app


class Streamed(StreamingResponse):
    """An answer while it comes. A client that leaves stops it, and it can be resumed."""

    @classmethod
    async def begun(cls, answer: AbstractAsyncContextManager[AgentRunEvents[str]]) -> Streamed:
        """It, when there is something of it: what is refused is refused before."""
        events = as_events(answer)
        first = await anext(events)
        return cls(first, events)

    def __init__(self, first: str, rest: AsyncGenerator[str, None]) -> None:
        self._rest = rest

        async def body() -> AsyncIterator[str]:
            yield first
            async for event in rest:
                yield event

        super().__init__(
            body(), media_type='text/event-stream', headers={'Cache-Control': 'no-store'}
        )

    async def __call__(self, *args: Any) -> None:
        async with aclosing(self._rest):
            await super().__call__(*args)


async def as_events(
    answer: AbstractAsyncContextManager[AgentRunEvents[str]],
) -> AsyncGenerator[str, None]:
    """Server-sent events. What is refused before the first one is raised, later it is an event."""
    begun = False
    try:
        async with answer as events:
            async for event in events:
                if line := heard(event):
                    yield as_event(line.kind, {'text': line.text})
                    begun = True
    except tuple(REFUSALS) as error:
        if not begun:
            raise
        yield as_event('error', refusal(error)[1])


def as_event(kind: str, data: dict[str, str]) -> str:
    """One server-sent event."""
    return f'event: {kind}\ndata: {json.dumps(data)}\n\n'


def refusal(error: Exception) -> tuple[int, dict[str, str]]:
    """What an error is over HTTP."""
    kind = next(kind for kind in type(error).__mro__ if kind in REFUSALS)
    status, advice = REFUSALS[kind]
    return status, {'detail': str(error), 'what_to_do': advice}


def main() -> None:
    parser = argparse.ArgumentParser(prog='python -m examples.chat.app', description='A chat.')
    parser.add_argument('--port', type=int, default=8000)
    Pace.options(parser)
    args = parser.parse_args()
    wait = Pace.of(args).wait
    store = graphkeep.open_store(os.environ.get('STORE') or 'sqlite:///chats.db')
    uvicorn.run(make_app(store, make_agent(clerk_model(wait), wait)), port=args.port)


if __name__ == '__main__':
    main()
