"""Who a worker is, and whether a worker of this machine is proven dead.

An owner is written into the header of the run it claims, as `host/pid/start/boot/namespace/token`.
Proof of death is Linux only, and only where boot id and pid namespace are ours: the pid is gone, is
a zombie, or belongs to a process with another start time. Whatever cannot be read is no proof; then
the lease decides.
"""

from __future__ import annotations

import os
import secrets
import socket
from functools import cache
from pathlib import Path

__all__ = ('current', 'is_proven_dead', 'is_this_process')

_UNKNOWN = '-'


def _read(path: str) -> str:
    try:
        return Path(path).read_text(encoding='ascii', errors='replace').strip() or _UNKNOWN
    except OSError:
        return _UNKNOWN


def _namespace() -> str:
    try:
        return str(Path('/proc/self/ns/pid').readlink()).removeprefix('pid:[').removesuffix(']')
    except OSError:
        return _UNKNOWN


def _stat(pid: int) -> tuple[str, str] | None:
    """State letter and start time (clock ticks since boot) of a process; `None` if unreadable."""
    text = _read(f'/proc/{pid}/stat')
    # The command name is in parentheses and may hold spaces and parentheses of its own.
    fields = text.rpartition(')')[2].split()
    if len(fields) < 20:
        return None
    return fields[0], fields[19]


def _host() -> str:
    return socket.gethostname().replace('/', '_') or _UNKNOWN


def current() -> str:
    """This process as an owner. Another one after `fork()`."""
    return _owner(os.getpid())


@cache
def _owner(pid: int) -> str:
    stat = _stat(pid)
    started = stat[1] if stat else _UNKNOWN
    boot = _read('/proc/sys/kernel/random/boot_id')
    return f'{_host()}/{pid}/{started}/{boot}/{_namespace()}/{secrets.token_hex(4)}'


def is_this_process(owner: str | None) -> bool:
    """Whether `owner` is this very process."""
    return owner == current()


def is_proven_dead(owner: str | None) -> bool:
    """Whether the process that wrote `owner` is known to have ended. `False` also means: cannot
    tell.
    """
    parts = (owner or '').split('/')
    if len(parts) != 6 or not parts[1].isdecimal() or len(parts[1]) > 19:
        return False
    pid, started, boot, namespace = int(parts[1]), parts[2], parts[3], parts[4]
    if _UNKNOWN in (started, boot, namespace):
        return False
    mine = current().split('/')
    if (boot, namespace) != (mine[3], mine[4]):
        return False
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    except (OSError, OverflowError):
        # Somebody else's process: the pid is in use, the start time below tells whether it is the
        # same process.
        pass
    stat = _stat(pid)
    if stat is None:
        return False
    state, start = stat
    return state == 'Z' or start != started
