"""Server processes: started by one thread that stays, ended by signals, gone with this process."""

from __future__ import annotations

import contextlib
import functools
import os
import pwd
import random
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TypeVar

__all__ = (
    'HOST',
    'STOP_TIMEOUT',
    'THREAD_NAME',
    'account',
    'alive',
    'descendants',
    'end',
    'free_port',
    'has_ended',
    'server_pids',
    'spawn',
    'until',
    'wait',
)

T = TypeVar('T')

HOST = '127.0.0.1'
THREAD_NAME = 'graphkeep-servers'
"""Prefix of the one thread that starts servers. It lives as long as the process."""
STOP_TIMEOUT = 30.0
"""Seconds that a server has to end after each signal."""

_READY_TIMEOUT = 60.0

# Runs before the server in the new process: drop root, ask to die with the parent, exec. The order
# matters: a change of user clears the death signal, an exec of an ordinary binary keeps it.
_EXEC = """
import ctypes, os, sys
parent, death, uid, gid = map(int, sys.argv[1:5])
prctl = getattr(ctypes.CDLL(None), 'prctl', None)
if uid >= 0:
    os.setgroups([])
    os.setgid(gid)
    os.setuid(uid)
if prctl is not None:
    prctl(1, death, 0, 0, 0)
    if os.getppid() != parent:
        os._exit(1)
os.execve(sys.argv[5], sys.argv[5:], os.environ)
"""

_pids: set[int] = set()


def server_pids() -> frozenset[int]:
    """The process ids of the servers that this process has running."""
    return frozenset(_pids)


@functools.cache
def _spawner() -> ThreadPoolExecutor:
    # The death signal fires when the *thread* that started the server ends, so all servers are
    # started by one thread that stays.
    return ThreadPoolExecutor(max_workers=1, thread_name_prefix=THREAD_NAME)


def account() -> tuple[int, int]:
    """The user and group to run servers as; -1 for "as we are". Postgres refuses to run as root."""
    if os.geteuid() != 0:
        return -1, -1
    entry = pwd.getpwnam('nobody')
    return entry.pw_uid, entry.pw_gid


def spawn(command: Sequence[str | Path], *, log: Path, death: int) -> subprocess.Popen[bytes]:
    uid, gid = account()

    def start() -> subprocess.Popen[bytes]:
        with log.open('ab') as out:
            return subprocess.Popen(
                [
                    *(sys.executable, '-I', '-S', '-c', _EXEC),
                    *(str(os.getpid()), str(int(death)), str(uid), str(gid)),
                    *map(str, command),
                ],
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=subprocess.STDOUT,
                cwd='/',
                env={'PATH': os.defpath, 'LC_ALL': 'C', 'TZ': 'UTC'},
                start_new_session=True,
            )

    process = _spawner().submit(start).result()
    _pids.add(process.pid)
    return process


def has_ended(process: subprocess.Popen[bytes]) -> bool:
    """Whether it has, by itself."""
    if process.poll() is None:
        return False
    _pids.discard(process.pid)
    return True


def wait(process: subprocess.Popen[bytes], timeout: float) -> bool:
    try:
        process.wait(timeout)
    except subprocess.TimeoutExpired:
        return False
    _pids.discard(process.pid)
    return True


def end(process: subprocess.Popen[bytes], *signals: int) -> None:
    """Sends each signal in turn until the process has gone."""
    for number in (*signals, signal.SIGKILL):
        if process.poll() is None:
            process.send_signal(number)
        if wait(process, STOP_TIMEOUT):
            return
    raise RuntimeError(f'Server process {process.pid} does not end.')


def descendants(pid: int) -> list[int]:
    """The processes below `pid`, from /proc; empty where there is no /proc."""
    found: list[int] = []
    for name in Path('/proc').glob('[0-9]*/stat'):
        with contextlib.suppress(OSError, IndexError, ValueError):
            if int(name.read_text().rpartition(')')[2].split()[1]) == pid:
                found.append(int(name.parent.name))
    return found


def alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    with contextlib.suppress(OSError):
        return Path(f'/proc/{pid}/stat').read_text().rpartition(')')[2].split()[0] != 'Z'
    return True


def until(what: str, probe: Callable[[], T | None], *, timeout: float = _READY_TIMEOUT) -> T:
    """Polls until the probe gives something true."""
    deadline = time.monotonic() + timeout
    pause = 0.005
    while True:
        result = probe()
        if result:
            return result
        if time.monotonic() > deadline:
            raise RuntimeError(f'{what}: not within {timeout:.0f} s.')
        time.sleep(pause)
        pause = min(pause * 1.5, 0.05)


def free_port(*, bus: bool = False) -> int:
    """A free port below those for outgoing connections. With `bus`, port + 10000 is free too."""
    for _ in range(200):
        port = random.randrange(15_000, 32_000)
        with contextlib.ExitStack() as stack:
            try:
                for number in (port, port + 10_000) if bus else (port,):
                    probe = stack.enter_context(socket.socket())
                    probe.bind((HOST, number))
            except OSError:
                continue
            return port
    raise RuntimeError('No free port found.')
