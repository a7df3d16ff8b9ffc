"""Who a worker is, and when it is proven dead."""

from __future__ import annotations

import functools
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from graphkeep import owner

linux = pytest.mark.skipif(sys.platform != 'linux', reason='proof of death is for Linux')


def started(pid: int) -> str:
    """The start time of a process, as the kernel tells it."""
    return Path(f'/proc/{pid}/stat').read_text().rpartition(')')[2].split()[19]


def owner_of(pid: int, **changes: str) -> str:
    """What a process of this machine would write as its owner."""
    host, _, _, boot, namespace, token = owner.current().split('/')
    parts = {'host': host, 'pid': str(pid), 'start': '0', 'boot': boot, 'namespace': namespace}
    parts['token'] = token
    if 'start' not in changes:
        changes['start'] = started(pid)
    return '/'.join({**parts, **changes}.values())


@pytest.fixture
def sleeper() -> Iterator[Callable[[str], subprocess.Popen[bytes]]]:
    children: list[subprocess.Popen[bytes]] = []

    def start(program: str = 'sleep') -> subprocess.Popen[bytes]:
        child = subprocess.Popen([program, '60'])
        children.append(child)
        return child

    yield start
    for child in children:
        child.kill()
        child.wait()


def test_an_owner_says_where_it_runs() -> None:
    current = owner.current()
    assert current == owner.current()
    parts = current.split('/')
    assert len(parts) == 6
    assert all(parts)
    assert parts[1] == str(os.getpid())
    assert owner.is_this_process(current)
    assert not owner.is_proven_dead(current)


@pytest.mark.filterwarnings('ignore:.*multi-threaded, use of fork:DeprecationWarning')
def test_a_forked_child_is_somebody_else() -> None:
    mine = owner.current()
    readable, writable = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.write(writable, owner.current().encode())
        os._exit(0)
    os.close(writable)
    theirs = os.read(readable, 10_000).decode()
    os.close(readable)
    os.waitpid(pid, 0)
    assert theirs.split('/')[1] == str(pid)
    assert theirs.split('/')[5] != mine.split('/')[5]
    assert not owner.is_this_process(theirs)
    if sys.platform == 'linux':
        assert owner.is_proven_dead(theirs)


@linux
def test_a_process_is_dead_when_it_is_gone_or_a_zombie(
    sleeper: Callable[[], subprocess.Popen[bytes]],
) -> None:
    child = sleeper()
    theirs = owner_of(child.pid)
    assert not owner.is_proven_dead(theirs)
    child.send_signal(signal.SIGSTOP)
    assert not owner.is_proven_dead(theirs), 'a stopped process can go on'
    child.kill()
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
    assert Path(f'/proc/{child.pid}/stat').read_text().rpartition(')')[2].split()[0] == 'Z'
    assert owner.is_proven_dead(theirs)
    child.wait()
    assert owner.is_proven_dead(theirs)


@linux
def test_a_pid_that_was_given_to_another_process_is_no_life(
    sleeper: Callable[[], subprocess.Popen[bytes]],
) -> None:
    child = sleeper()
    assert owner.is_proven_dead(owner_of(child.pid, start=str(int(started(child.pid)) - 1)))


@linux
def test_the_name_of_a_program_may_be_anything(
    sleeper: Callable[[str], subprocess.Popen[bytes]], tmp_path: Path
) -> None:
    program = tmp_path / 'x) Z (1 1'
    shutil.copy(shutil.which('sleep') or '/bin/sleep', program)
    child = sleeper(str(program))
    assert not owner.is_proven_dead(owner_of(child.pid))


@linux
@pytest.mark.parametrize('part', ['start', 'boot', 'namespace'])
def test_without_the_same_machine_there_is_no_proof(
    part: str, sleeper: Callable[[], subprocess.Popen[bytes]]
) -> None:
    child = sleeper()
    start = started(child.pid)
    child.kill()
    child.wait()
    assert owner.is_proven_dead(owner_of(child.pid, start=start))
    assert not owner.is_proven_dead(owner_of(child.pid, **{'start': start, part: '-'}))
    if part != 'start':
        other = owner_of(child.pid, **{'start': start, part: 'another'})
        assert not owner.is_proven_dead(other)


@linux
def test_the_host_name_proves_nothing(
    sleeper: Callable[[], subprocess.Popen[bytes]],
) -> None:
    # A container that was renamed is the same machine: boot id and namespace tell.
    child = sleeper()
    assert not owner.is_proven_dead(owner_of(child.pid, host='another'))


@linux
def test_a_process_of_another_user_may_be_alive() -> None:
    assert not owner.is_proven_dead(owner_of(1))


@pytest.mark.parametrize(
    'text',
    [
        None,
        '',
        '/',
        '/////',
        'somebody',
        'a/b/c/d/e/f',
        'host/-1/1/boot/ns/token',
        'host/1/1/boot/ns',
        'host/1/1/boot/ns/token/more',
        'host/٣/1/boot/ns/token',
        'host/' + '9' * 5000 + '/1/boot/ns/token',
    ],
)
def test_an_owner_that_cannot_be_understood_is_not_proven_dead(text: str | None) -> None:
    assert not owner.is_proven_dead(text)
    assert not owner.is_this_process(text)


@linux
@pytest.mark.parametrize('pid', ['0', '99999999999999999999', '4294967297'])
def test_a_pid_that_cannot_be_is_not_proven_dead(pid: str) -> None:
    _, _, start, boot, namespace, token = owner.current().split('/')
    assert not owner.is_proven_dead(f'host/{pid}/{start}/{boot}/{namespace}/{token}')


def test_without_proc_nobody_is_proven_dead(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(owner, '_owner', functools.cache(owner._owner.__wrapped__))
    monkeypatch.setattr(owner, '_read', lambda path: '-')
    monkeypatch.setattr(owner, '_namespace', lambda: '-')
    current = owner.current()
    assert current.split('/')[2:5] == ['-', '-', '-']
    assert owner.is_this_process(current)
    gone = current.replace(f'/{os.getpid()}/', '/999999/')
    assert not owner.is_proven_dead(gone)
