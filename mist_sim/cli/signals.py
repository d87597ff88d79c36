"""Signals that end a command: each becomes one exception, so that everything is left in order."""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from time import monotonic
from types import FrameType

_SAID = {"SIGINT": "interrupted", "SIGTERM": "terminated", "SIGHUP": "hung up"}
_GRACE = 2.0  # seconds in which a second signal does not disturb the leaving


class Stopped(KeyboardInterrupt):
    """A signal asked the command to end. number: which one."""

    def __init__(self, number: int) -> None:
        super().__init__()
        self.number = number


@contextmanager
def stopping_signals() -> Iterator[None]:
    """Raise Stopped inside when Ctrl-C, SIGTERM or SIGHUP comes, as far as the platform has them.

    A signal that is ignored, as under `nohup`, stays ignored.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    last = -_GRACE

    def stop(number: int, frame: FrameType | None) -> None:
        nonlocal last
        if monotonic() - last >= _GRACE:
            last = monotonic()
            raise Stopped(number)

    numbers = [getattr(signal, name) for name in _SAID if hasattr(signal, name)]
    before = {number: signal.getsignal(number) for number in numbers}
    heeded = [number for number, handler in before.items() if handler != signal.SIG_IGN]
    try:
        for number in heeded:
            signal.signal(number, stop)
        yield
    finally:
        for number in heeded:
            signal.signal(number, before[number])


@contextmanager
def saved(folder: Path | None) -> Iterator[None]:
    """Let an interruption inside say that the results were written before, if they were."""
    try:
        yield
    except KeyboardInterrupt as stop:
        if folder is not None:
            stop.add_note(f"the results are in {folder}")
        raise


def take_leave(stop: KeyboardInterrupt) -> int:
    """Say on stderr that the command was interrupted; return the exit code, as shells count it."""
    number = signal.Signals(getattr(stop, "number", signal.SIGINT))
    results = getattr(stop, "__notes__", ["no results were written"])[0]
    with suppress(OSError):  # the terminal may be gone
        print(f"{_SAID[number.name]}; {results}", file=sys.stderr, flush=True)
    return 128 + number
