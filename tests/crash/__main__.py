"""A worker in an interpreter of its own: `python -m tests.crash FD REQUEST`, run by the nursery."""

from __future__ import annotations

import json
import socket
import sys

from tests.crash import jobs

if __name__ == '__main__':
    jobs.load()
    request = json.loads(sys.argv[2])
    sys.exit(jobs.live(socket.socket(fileno=int(sys.argv[1])), request['job'], request['with']))
