"""Processes that have a SQLite store open."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from typing import Any

import pytest

__all__ = ('child', 'output')

PRELUDE = """
import asyncio, os, sys
from graphkeep.errors import *
from graphkeep.runs import Commit, Draft, NewRun
from graphkeep.store import new_nonce
from graphkeep.stores.sqlite import SQLiteStore

path = sys.argv[1]
FULL = b'{"format":1,"state":{"text":"%s"},"tasks":{},"joins":{},"next":{"task":1,"fork":1}}'

async def start(store, run_id='run-1'):
    new = NewRun(run_id=run_id, owner='me', ttl=30, nonce=new_nonce())
    draft = Draft(seq=0, kind='full', event='start', data=FULL % b'')
    return (await store.create(new, draft)).claim()

def commit(claim, seq, text=b''):
    draft = Draft(seq=seq, kind='full', event='step', data=FULL % text)
    return Commit(claim=claim, draft=draft, status='running', ttl=30, nonce=new_nonce())

async def step(store, claim, seq):
    (await store.append(commit(claim, seq))).unwrap()
"""


def child(code: str, *arguments: object, **options: Any) -> subprocess.Popen[str]:
    """A Python process that runs `code`, indented as it may be."""
    return subprocess.Popen(
        [sys.executable, '-c', PRELUDE + textwrap.dedent(code), *map(str, arguments)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        **options,
    )


def output(process: subprocess.Popen[str], *, code: int = 0) -> list[str]:
    """What it printed. It must end by itself, without complaint."""
    try:
        printed, complaint = process.communicate(timeout=60)
    except subprocess.TimeoutExpired:
        process.kill()
        printed, complaint = process.communicate()
        pytest.fail(f'the child hung: {printed!r} {complaint!r}', pytrace=False)
    assert (process.returncode, complaint) == (code, '')
    return printed.splitlines()
