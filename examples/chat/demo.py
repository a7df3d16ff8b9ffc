"""Kills a chat in the middle of a tool call, and lets it go on: `make demo-chat`.

    python -m examples.chat.demo
    STORE=postgresql://… python -m examples.chat.demo

Without `STORE` the chats are kept in a SQLite file, in a temporary folder. Ends with 1 if a promise
was not kept.
"""

from __future__ import annotations

import os
import secrets
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from subprocess import PIPE, Popen

sys.path.append(str(Path(__file__).parents[1]))  # where `killing` is, which all examples use

from killing.children import Child
from killing.demo import DemoError, perform, run_on_terminal
from killing.records import Promise
from killing.tables import promises
from rich.console import Console
from rich.markup import escape
from rich.table import Table

__all__ = ('Life', 'check')

ROOT = Path(__file__).parents[2]
ASKED = 'Where is A-1004?'
KILLED_IN, WHEN = 'ask_carrier', 'estimate_delivery →'
"""It is killed in this call, as soon as the one beside it has returned."""
TYPED = (
    *('/resume', '/history', '/again', '/fork', 'And A-1005?', '/list'),
    *('/delete', '/history', '/delete', '/list'),
)
COMMITTED = ('model 1', 'look_up', 'model 2', 'estimate_delivery')


@dataclass(frozen=True, kw_only=True)
class Life:
    """One process of the chat."""

    pid: int
    code: int
    """What it ended with; on POSIX -9 for SIGKILL."""
    shown: Sequence[str]
    """Its screen, by line."""
    calls: Counter[str]
    """What it has called, from its beginnings to its first answer's end."""


async def demo(console: Console, url: str, folder: Path, *, pace: float) -> bool:
    """Ask, kill and go on; then branch, fork and delete. Whether all is well."""
    user = f'ada-{secrets.token_hex(2)}'
    options = (f'--user={user}', f'--pace={pace}')

    trace = folder / 'calls'

    stall = f'--stall={KILLED_IN}'
    first = await live(console, url, trace, [ASKED], *options, stall, dies=True)
    console.print(
        f'\nProcess {first.pid} is [b red]killed[/] ({first.code}) while the carrier is asked.\n'
    )
    second = await live(console, url, trace, TYPED, *options)
    console.rule('What was called for the first answer')
    table = Table.grid('', '', '', padding=(0, 3))
    table.add_row('', '[dim]before the kill', '[dim]after it')
    for name in (*COMMITTED, KILLED_IN, 'model 3'):
        after = str(second.calls[name]) if second.calls[name] else '[green]kept'
        table.add_row(name, str(first.calls[name]), after)
    console.print(table)
    console.rule('The promises')
    return promises(console, check(first, second))


async def live(
    console: Console, url: str, trace: Path, typed: Sequence[str], *options: str, dies: bool = False
) -> Life:
    """Type lines into a chat, and show its screen. If it is to die, it is killed in its stall."""
    shown: list[str] = []
    with (
        trace.open('wb') as stderr,
        Popen(
            [sys.executable, '-u', '-m', 'examples.chat', *options, '--trace', '--quiet'],
            cwd=ROOT,
            env={**os.environ, 'STORE': url, 'PYTHONIOENCODING': 'utf-8'},
            stdin=PIPE,
            stdout=PIPE,
            stderr=stderr,
            # Ctrl-C is for the demo, which then ends its chats itself.
            start_new_session=True,
        ) as process,
    ):
        try:
            assert process.stdin is not None
            process.stdin.write(''.join(f'{line}\n' for line in typed).encode())
            process.stdin.close()
            child = Child(process=process)
            async for event, text in child.events():
                shown.append(f'{event} {text}'.rstrip())
                console.print(f'[dim]│[/] {escape(shown[-1])}', soft_wrap=True)
                if dies and shown[-1].startswith(WHEN):
                    child.kill()
        finally:
            process.kill()
    called = trace.read_text(encoding='utf-8').splitlines()
    if (child.code != 0) != dies:
        raise DemoError(f'Process {child.pid} ended with {child.code}: {called[-1:]}')
    if 'model 3 done' in called:
        called = called[: called.index('model 3 done')]
    return Life(pid=child.pid, code=child.code, shown=shown, calls=Counter(called))


def check(first: Life, second: Life) -> Iterator[Promise]:
    """Hold what was seen against each promise."""
    yield Promise(
        text='What was kept is not called again',
        kept=all((first.calls[name], second.calls[name]) == (1, 0) for name in COMMITTED),
        seen=f'two calls of the model and two of tools, before process {first.pid} died',
    )
    yield Promise(
        text='The tool that was running runs again, and the answer comes',
        kept=(first.calls[KILLED_IN], second.calls[KILLED_IN], second.calls['model 3'])
        == (1, 1, 1),
        seen='asked the carrier twice, and answered once',
    )
    screen = [' '.join(line.split()) for line in second.shown]
    answers = [line for line in screen if 'Order A-1004, a kettle, should arrive' in line]
    yield Promise(
        text='What was said is there once',
        kept=[line for line in screen if line.startswith('0 ')] == [f'0 {ASKED}'] * 2,
        seen='one question, one answer, six messages',
    )
    yield Promise(
        text='An answer that is given again takes the place of the other',
        kept=['otherwise' in line for line in answers] == [False, False, True, True],
        seen='two answers, one of them a branch',
    )
    chats = [line.split()[2] for line in screen if ASKED in line and line[:1] in '*12']
    yield Promise(
        text='A fork goes its own way, and what it shares outlives it',
        kept=chats == ['12', '6'],
        seen=f'chats of {" and ".join(chats)} messages; then one, then none',
    )


def main(console: Console, argv: Sequence[str] | None = None) -> int:
    return perform(demo, console, 'Kills a chat in a tool call, and lets it go on.', argv)


if __name__ == '__main__':
    sys.exit(run_on_terminal(main))
