"""A warm process that gives birth to workers: `python -m tests.crash.nursery SOCKET`.

Importing everything and binding the graph takes a second, a fork of a process that has done so a
few milliseconds. It runs no event loop and no thread of its own. Knows nothing of pytest.

A client connects and sends one line, `{"job": …, "with": {…}, "fresh": …}`; a child does that
job, `fresh` in a new interpreter. On the same connection the child says what it has to say, one
JSON object a line, and hears what it is told. In the end the nursery says how it died:
`{"status": …}`, negative for a signal. A client that goes away takes its child with it.
"""

from __future__ import annotations

import ctypes
import gc
import json
import os
import select
import signal
import socket
import sys

_DEATH_SIGNAL = 1  # PR_SET_PDEATHSIG


def main(path: str) -> None:
    """Serves until stdin is closed."""
    from tests.crash import jobs

    jobs.warm_up()
    # What is here now stays: a child that counts references to it need not copy it.
    gc.collect()
    gc.freeze()
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(path)
    listener.listen(64)
    woken, wake = socket.socketpair()
    woken.setblocking(False)
    wake.setblocking(False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.set_wakeup_fd(wake.fileno(), warn_on_full_buffer=False)
    print('ready', flush=True)

    poll = select.poll()
    for fd in (0, listener.fileno(), woken.fileno()):
        poll.register(fd, select.POLLIN)
    clients: dict[int, tuple[socket.socket, int]] = {}
    while True:
        for fd, _ in poll.poll():
            if fd == 0:
                for _, pid in clients.values():
                    os.kill(pid, signal.SIGKILL)
                return
            if fd == listener.fileno():
                client = listener.accept()[0]
                request = _line(client)
                client.setblocking(False)
                pid = os.fork()
                if pid == 0:
                    poll.unregister(0)
                    for mine in (listener, woken, wake, *(c for c, _ in clients.values())):
                        mine.close()
                    _live(client, request)
                clients[client.fileno()] = client, pid
                # Not POLLIN: what a client says is for its child.
                poll.register(client.fileno(), 0)
            elif fd == woken.fileno():
                woken.recv(4096)
                _bury(clients, poll)
            else:
                # The client has gone.
                poll.unregister(fd)
                os.kill(clients[fd][1], signal.SIGKILL)


def _line(client: socket.socket) -> bytes:
    data = b''
    while not data.endswith(b'\n'):
        data += client.recv(65536)
    return data


def _live(client: socket.socket, request: bytes) -> None:
    """The whole life of a child."""
    from tests.crash import jobs

    code = 1
    try:
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        ctypes.CDLL(None).prctl(_DEATH_SIGNAL, signal.SIGKILL, 0, 0, 0)
        asked = json.loads(request)
        if asked['fresh']:
            client.set_inheritable(True)
            command = [sys.executable, '-m', 'tests.crash', str(client.fileno()), request]
            os.execv(sys.executable, command)
        code = jobs.live(client, asked['job'], asked['with'])
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def _bury(clients: dict[int, tuple[socket.socket, int]], poll: select.poll) -> None:
    for fd, (client, pid) in list(clients.items()):
        found, status = os.waitpid(pid, os.WNOHANG)
        if found:
            del clients[fd]
            try:
                poll.unregister(fd)
            except KeyError:
                pass
            try:
                client.sendall(b'{"status": %d}\n' % os.waitstatus_to_exitcode(status))
            except OSError:
                pass
            client.close()


if __name__ == '__main__':
    main(sys.argv[1])
