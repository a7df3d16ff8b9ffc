"""What workers do: jobs that a child of the nursery can be given, and how it does one."""

from __future__ import annotations

import asyncio
import importlib
import importlib.util
import json
import logging
import os
import signal
import socket
import traceback
from collections.abc import Callable, Coroutine
from typing import Any

_LATE = ('postgres', 'redis', 'sqlite')
"""The stores that the children will need, and users import late."""


class Line:
    """What connects a worker to the test that asked for it."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._heard = b''

    def say(self, **message: object) -> None:
        """Tell the test something."""
        self._connection.sendall(json.dumps(message).encode() + b'\n')

    async def told(self) -> str:
        """Wait for the test to say something."""
        while b'\n' not in self._heard:
            data = await asyncio.get_running_loop().sock_recv(self._connection, 4096)
            if not data:
                raise ConnectionError('the test has gone')
            self._heard += data
        line, _, self._heard = self._heard.partition(b'\n')
        return line.decode()


Job = Callable[..., Any]

JOBS: dict[str, Job] = {}


def job(function: Job) -> Job:
    JOBS[function.__name__] = function
    return function


def load() -> list[Callable[[], Coroutine[Any, Any, object]]]:
    """Import all jobs; gives what runs each of their graphs once."""
    for store in _LATE:
        importlib.import_module(f'graphkeep.stores.{store}')
    # These import this module.
    from tests.crash import fan_jobs, worker_jobs

    if importlib.util.find_spec('pydantic_graph.persistence') is None:
        return [fan_jobs.once, worker_jobs.once]
    from tests.crash import trip_jobs

    return [fan_jobs.once, worker_jobs.once, trip_jobs.once]


def warm_up() -> None:
    """Load all jobs, bind their graphs, and run all that a run runs."""
    # What goes wrong is told by errors; warnings of a hundred children help nobody.
    logging.getLogger('graphkeep').addHandler(logging.NullHandler())
    for once in load():
        asyncio.run(once())


def live(connection: socket.socket, name: str, arguments: dict[str, Any]) -> int:
    """Does a job; gives the exit status."""
    line = Line(connection)
    line.say(pid=os.getpid())
    try:
        result = JOBS[name](line, **arguments)
        if asyncio.iscoroutine(result):
            result = asyncio.run(result)
    except BaseException as e:
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        line.say(error=type(e).__name__, message=str(e), traceback=traceback.format_exc())
        return 1
    line.say(result=result)
    return 0
