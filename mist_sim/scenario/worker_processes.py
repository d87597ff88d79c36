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


@contextmanager
def deaf_to_hang_ups() -> Iterator[None]:
    """Let processes that are started inside never get SIGHUP; their parent ends them in order.

    A terminal that closes sends it to all processes at once, and the one in which joblib counts
    what to clean up would die before the others. It reaches this process on leaving.
    """
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
