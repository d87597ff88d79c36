"""The processes of replications: they end with the one that started them, however that ends."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from threading import Thread
from time import sleep

_LOOK = 0.5  # seconds between two looks
_QUIET = "ignore:resource_tracker:UserWarning"


@contextmanager
def starting_quietly() -> Iterator[None]:
    """Let processes that are started inside end with this one without a word of their own.

    A terminal that closes sends SIGHUP to all processes at once, and the one in which joblib counts
    what to clean up would die before the others: none of them gets it, and their parent ends them
    in order. That one also warns of whatever a parent that is ending too has removed, which is
    ignored.
    """
    warnings = os.environ.get("PYTHONWARNINGS")
    os.environ["PYTHONWARNINGS"] = f"{warnings},{_QUIET}" if warnings else _QUIET
    try:
        with _deaf_to_hang_ups():
            yield
    finally:
        if warnings is None:
            del os.environ["PYTHONWARNINGS"]
        else:
            os.environ["PYTHONWARNINGS"] = warnings


@contextmanager
def _deaf_to_hang_ups() -> Iterator[None]:
    """Block SIGHUP, which reaches this process on leaving."""
    if not hasattr(signal, "SIGHUP"):  # Windows
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGHUP])
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


@cache
def end_with(parent: int) -> None:
    """End this process soon after its parent, also where that is killed; nothing if it has another.

    parent: the id of a process. What is computed by then is lost, and nobody could take it.
    """
    if os.getppid() == parent:
        Thread(target=_wait_for_the_end_of, args=(parent,), daemon=True).start()


def _wait_for_the_end_of(parent: int) -> None:
    while os.getppid() == parent:
        sleep(_LOOK)
    os._exit(1)
