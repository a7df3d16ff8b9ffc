"""The chat in a terminal.

    python -m examples.chat --user ada
    STORE=postgresql://… python -m examples.chat --user ada

Kill it in whatever way, and start it again: an answer that was left half-way goes on.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import shlex
import sys
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass

from pydantic_ai import AgentRunEvents
from pydantic_ai.exceptions import UserError
from rich.console import Console
from rich.markup import escape
from rich.table import Table

import graphkeep

from .agent import make_agent
from .chats import Chats, NoChatError, NothingToDoError
from .lines import heard, lines, title
from .model import clerk_model
from .pace import Pace

__all__ = ('Terminal', 'talk')

HELP = """\
/list          your chats
/new           begin one
/open NUMBER   switch to one
/history [N]   what was said, from message N on
/again         have the last answer given again
/fork [N]      a copy of this chat, of its first N messages
/delete        delete this chat
/resume        go on with an answer that was left half-way
/giveup        give it up
/quit          end; so does Ctrl-D. Ctrl-C stops an answer
All else is said to the agent."""
REFUSALS = (graphkeep.GraphkeepError, UserError, NoChatError, NothingToDoError, ValueError)
"""What is said in a line; the chat goes on."""


@dataclass(kw_only=True)
class Terminal:
    """One user at a terminal."""

    chats: Chats
    console: Console
    chat_id: str | None = None
    """The chat that is open, if there is one."""

    async def begin(self) -> None:
        """Open the chat that was used last."""
        self.chat_id = None
        for record in await self.chats.newest(limit=1):
            await self.switch(record.conversation_id)

    async def obey(self, line: str) -> None:
        """Do what was typed."""
        chats = self.chats
        match shlex.split(line) if line.startswith('/') else [line]:
            case ['/list']:
                await self.show_list()
            case ['/new']:
                await self.switch(await chats.new())
            case ['/open', number]:
                newest = await chats.newest()
                if not 1 <= int(number) <= len(newest):
                    raise NoChatError(f'There is no chat {number} in your list.')
                await self.switch(newest[int(number) - 1].conversation_id)
            case ['/history', *start]:
                await self.show_history(*map(int, start))
            case ['/again']:
                await self.hear(chats.again(self.here))
            case ['/fork', *at]:
                await self.switch(await chats.fork(self.here, *map(int, at)))
            case ['/delete']:
                await chats.delete(self.here)
                self.console.print('It is deleted.')
                await self.begin()
            case ['/resume']:
                await self.hear(chats.resume(self.here))
            case ['/giveup']:
                given_up = await chats.give_up(self.here)
                self.console.print('It is given up.' if given_up else 'There was none.')
            case [said] if said and not said.startswith('/'):
                if self.chat_id is None:
                    await self.switch(await chats.new())
                await self.hear(chats.say(self.here, said))
            case _:
                self.console.print(HELP, markup=False)

    @property
    def here(self) -> str:
        """The chat that is open."""
        if self.chat_id is None:
            raise NoChatError('There is no chat yet: say something.')
        return self.chat_id

    async def switch(self, chat_id: str) -> None:
        """Open a chat, and say how it stands."""
        self.chat_id = chat_id
        count = await self.chats.conversations.count(chat_id)
        self.console.print(f'Chat [b]{chat_id}[/]: {count} messages.')
        await self.show_unfinished()

    async def show_unfinished(self) -> None:
        """Say so if an answer was left half-way. One that had only begun leaves nothing."""
        if self.chat_id and await self.chats.is_unfinished(self.chat_id):
            self.console.print('[yellow]An answer was left half-way[/]: /resume or /giveup.')

    async def hear(self, answer: AbstractAsyncContextManager[AgentRunEvents[str]]) -> None:
        """Show an answer while it comes."""
        streamed = False
        async with answer as events:
            async for event in events:
                line = heard(event)
                if line is None:
                    continue
                if line.kind == 'text':
                    streamed = True
                    self.console.out(line.text, end='', highlight=False)
                elif line.kind == 'end':
                    # Of an answer that was there already nothing is streamed.
                    self.console.out('' if streamed else line.text, highlight=False)
                else:
                    self.console.print(f'[dim]{escape(line.text)}', soft_wrap=True)

    async def show_list(self) -> None:
        table = Table('', 'chat', 'messages', 'about', 'last used', box=None)
        conversations = self.chats.conversations
        for number, record in enumerate(await self.chats.newest(), start=1):
            chat_id = record.conversation_id
            first = await self.chats.history(chat_id, 0, 1)
            about = escape(title(first[0].message if first else None))
            if record.forked_from:
                about += f' [dim](fork of {record.forked_from})'
            here = '[b]*[/]' if chat_id == self.chat_id else ' '
            count = await conversations.count(chat_id)
            used = f'{record.updated_at:%d %b %H:%M}'
            table.add_row(f'{here}{number}', chat_id, str(count), about, used)
        self.console.print(table)

    async def show_history(self, start: int = 0) -> None:
        colors = {'user': 'b cyan', 'text': 'default'}
        for at, entry in enumerate(await self.chats.history(self.here, start), start):
            for line in lines(entry.message):
                text = f'[dim]{at:3}[/] [{colors.get(line.kind, "dim")}]{escape(line.text)}[/]'
                self.console.print(text, soft_wrap=True)


def talk(terminal: Terminal, runner: asyncio.Runner) -> None:
    """Do what is typed, line by line, until the input ends."""
    terminal.console.print('[dim]/help says what can be done.')
    runner.run(terminal.begin())
    # The loop runs while something is done. So Ctrl-C at the prompt ends the program as it does
    # elsewhere, and one in an answer only stops the answer.
    while True:
        try:
            line = terminal.console.input(f'[b]{terminal.chats.user}>[/] ').strip()
        except (EOFError, KeyboardInterrupt):
            return terminal.console.print()
        if not sys.stdin.isatty():
            terminal.console.out(line)
        if line == '/quit':
            return None
        try:
            runner.run(terminal.obey(line))
        except KeyboardInterrupt:
            terminal.console.print('\n[yellow]Stopped.')
            runner.run(terminal.show_unfinished())
        except REFUSALS as error:
            terminal.console.print(f'[red]{escape(str(error))}', soft_wrap=True)


def main() -> int:
    parser = argparse.ArgumentParser(prog='python -m examples.chat', description='A chat.')
    parser.add_argument('--user', required=True, help='whose chats')
    Pace.options(parser)
    args = parser.parse_args()
    wait = Pace.of(args).wait
    store = graphkeep.open_store(os.environ.get('STORE') or 'sqlite:///chats.db')
    agent = make_agent(clerk_model(wait), wait)
    chats = Chats(conversations=store.conversations, agent=agent, user=args.user)
    with asyncio.Runner() as runner:
        try:
            talk(Terminal(chats=chats, console=Console(highlight=False)), runner)
        finally:
            runner.run(store.close())
    return 0


if __name__ == '__main__':
    sys.exit(main())
