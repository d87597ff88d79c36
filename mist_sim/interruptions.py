"""Delays signals that end a command while it does work that must not be left half done."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

_NAMES = ("SIGINT", "SIGHUP", "SIGTERM", "SIGALRM")  # an alarm repeats a swallowed signal


@contextmanager
def put_off() -> Iterator[Sequence[int]]:
    """Delay Ctrl-C, SIGHUP and SIGTERM: signals that arrive inside are handled on leaving.

    Yields those that have arrived, for work that can end early.

    Blocking is not enough: other threads, such as those of a BLAS library, take signals, too, and
    Python calls the handler in the main thread, blocked or not.
    """
    if threading.current_thread() is not threading.main_thread():
        yield ()  # handlers are called in the main thread alone
        return
    came: list[int] = []
    numbers = [getattr(signal, name) for name in _NAMES if hasattr(signal, name)]
    before = {number: signal.getsignal(number) for number in numbers}
    ours = {number: handler for number, handler in before.items() if callable(handler)}
    try:
        for number in ours:
            signal.signal(number, lambda number, frame: came.append(number))
        yield came
    finally:
        for number, handler in ours.items():
            signal.signal(number, handler)
        for number in dict.fromkeys(came):
            signal.raise_signal(number)
