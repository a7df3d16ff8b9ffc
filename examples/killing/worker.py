"""A worker beside its work: what it is given, what it says, how it ends."""

from __future__ import annotations

import argparse
import asyncio
import logging
import os
import sys
from collections.abc import Callable, Coroutine
from typing import Any

import graphkeep

__all__ = ('parse', 'run', 'say')


def parse(parser: argparse.ArgumentParser, *, store: str) -> argparse.Namespace:
    """The arguments, with what every worker has: `run_id`, `pace`, and `store`, a URL.

    Args:
        parser: Knows what this worker has beside that.
        store: The URL where the environment has none.
    """
    parser.add_argument('run_id')
    parser.add_argument('--pace', type=float, default=1.0, help='how slow the model is; 0: not')
    parser.add_argument('--quiet', action='store_true', help='no warnings about the store')
    args = parser.parse_args()
    # By the environment: a URL may hold a password, and arguments show in every list of processes.
    args.store = os.environ.get('STORE') or store
    if args.quiet:
        logging.getLogger('graphkeep').setLevel(logging.ERROR)
    return args


def say(event: str, text: str) -> None:
    """Tell who started this process."""
    print(event, text, flush=True)


def run(main: Callable[[], Coroutine[Any, Any, None]]) -> None:
    """Run `main` to its end, and end the process as what stopped it asks for."""
    try:
        asyncio.run(main())
    except KeyboardInterrupt:
        sys.exit(130)
    except graphkeep.GraphkeepError as error:
        sys.exit(f'{type(error).__name__}: {error}')
