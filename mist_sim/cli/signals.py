"""Signals that end a command: each becomes one exception, so that everything is left in order."""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from time import monotonic
from types import FrameType
from typing import TYPE_CHECKING, Any, ClassVar, Self
from weakref import ref

from mist_sim.errors import printable

if TYPE_CHECKING:
    from pathlib import Path

    from mist_sim.output import OutputFile, OutputFolder

_SAID = {"SIGINT": "interrupted", "SIGTERM": "terminated", "SIGHUP": "hung up"}
_GRACE = 2.0  # seconds in which a second signal does not disturb the leaving
_LOOK = 0.1  # seconds between two looks whether the exception is still on its way


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
    raiser = _Raiser()
    numbers = [getattr(signal, name) for name in _SAID if hasattr(signal, name)]
    before = {number: signal.getsignal(number) for number in numbers}
    heeded = [number for number, handler in before.items() if handler != signal.SIG_IGN]
    told = sys.unraisablehook
    sys.unraisablehook = lambda lost: None if isinstance(lost.exc_value, Stopped) else told(lost)
    try:
        for number in heeded:
            signal.signal(number, raiser.stop)
        yield
    finally:
        raiser.rest()
        for number in heeded:
            signal.signal(number, before[number])
        sys.unraisablehook = told


class _Raiser:
    """Raises Stopped on a signal, and again if the interrupted code swallowed it.

    Python swallows exceptions in methods such as `__del__`; without a repeat the command would go
    on.
    """

    def __init__(self) -> None:
        self._last = -_GRACE
        self._number = 0
        self._raised: ref[Stopped] | None = None
        self._alarm: Any = None

    def stop(self, number: int, frame: FrameType | None) -> None:
        """Handle a signal that ends the command."""
        if monotonic() - self._last < _GRACE:
            return
        self._last, self._number = monotonic(), number
        if sys.platform != "win32" and self._alarm is None:  # Windows has no timers of this kind
            self._alarm = signal.signal(signal.SIGALRM, self._look)
            signal.setitimer(signal.ITIMER_REAL, _LOOK, _LOOK)
        self._raise()

    def rest(self) -> None:
        """Look no more."""
        if sys.platform != "win32" and self._alarm is not None:
            signal.setitimer(signal.ITIMER_REAL, 0.0)
            signal.signal(signal.SIGALRM, self._alarm)

    def _look(self, number: int, frame: FrameType | None) -> None:
        if self._raised is not None and self._raised() is None:
            self._raise()

    def _raise(self) -> None:
        stopped = Stopped(self._number)
        self._raised = ref(stopped)
        try:
            raise stopped
        finally:
            del stopped  # its traceback holds this frame, which would hold it


def interruption_of(error: BaseException | None) -> KeyboardInterrupt | None:
    """Return the interruption that caused or preceded an error; None if there is none."""
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        if isinstance(error, KeyboardInterrupt):
            return error
        seen.add(id(error))
        error = error.__cause__ or error.__context__
    return None


class Saved:
    """The output of a command; messages of an interruption name its place.

    output: the file or folder claimed for the results; None: none. latest: of the running or latest
        command; None: it writes no output.
    """

    latest: ClassVar[Saved | None] = None

    def __init__(self) -> None:
        self.output: OutputFile | OutputFolder | None = None

    def __enter__(self) -> Self:
        Saved.latest = self
        return self

    def __exit__(self, *error: object) -> None:
        """Keep the place: a signal may come after this."""

    @property
    def place(self) -> Path | None:
        """The place of the results; None while there are none."""
        return self.output.written if self.output is not None else None


def take_leave(stop: KeyboardInterrupt) -> int:
    """Say on stderr that the command was interrupted; return the exit code, as shells count it."""
    number = signal.Signals(getattr(stop, "number", signal.SIGINT))
    place = Saved.latest.place if Saved.latest is not None else None
    where, *so_far = getattr(stop, "__notes__", ["no results were written"])
    results = where if place is None else f"the results are in {printable(str(place))}"
    with suppress(OSError):  # the terminal may be gone
        for line in so_far if place is None else ():
            print(line, file=sys.stderr)
        print(f"{_SAID[number.name]}; {results}", file=sys.stderr, flush=True)
    return 128 + number
