"""A progress bar on stderr."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from time import monotonic
from types import TracebackType
from typing import Any, Self

from rich.progress import BarColumn, ProgressColumn, Task, TaskID, TextColumn
from rich.progress import Progress as Bar
from rich.table import Column
from rich.text import Text

from mist_sim.report.elements import Terminal

_PATIENCE = 1.0  # seconds


class Progress:
    """Called with (requests done, simulated seconds); shows a bar after a second of waiting.

    total: number of requests; None if unknown. visible: False hides the bar, as does a stderr that
        is not a terminal. unit: counted items, if not requests. patience: seconds without a bar.
    """

    def __init__(
        self,
        total: int | None,
        *,
        visible: bool = True,
        unit: str = "requests",
        patience: float = _PATIENCE,
    ) -> None:
        self._total = total
        self._unit = unit
        self._visible = visible and sys.stderr.isatty()
        self._begin, self._patience = monotonic(), patience
        self._bar: Bar | None = None
        self._task: Any = None

    def __enter__(self) -> Self:
        return self

    def __call__(self, num_done: int, sim_seconds: float | None = None) -> None:
        """Show how far the run is."""
        if not self._visible or monotonic() - self._begin < self._patience:
            return
        if self._bar is None:
            self._bar = self._start()
        self._bar.update(self._task, completed=num_done, simulated=_simulated(sim_seconds))

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._bar is not None:
            self._bar.stop()

    def _start(self) -> Bar:

        bar, self._task = started(self._total, self._unit)
        return bar


def _simulated(seconds: float | None) -> str:
    return "" if seconds is None else f"{seconds:,.0f} s simulated"


_WIDE = 80  # columns of a terminal that has room for everything
_REQUESTS, _RUNS = 30.0, 3_600.0  # seconds by which the time left is judged: a run may take minutes


def started(total: int | None, unit: str) -> tuple[Bar, TaskID]:
    """Show a bar; return it with the task that it shows. The parameters are those of `Progress`."""
    console = Terminal(stderr=True)
    columns = _columns(unit, total, is_wide=console.width >= _WIDE)
    window = _REQUESTS if unit == "requests" else _RUNS
    bar = Bar(
        *columns,
        console=console,
        transient=True,
        get_time=monotonic,
        speed_estimate_period=window,
    )
    task = bar.add_task("", total=total, simulated="")
    bar.start()
    return bar, task


class _Left(ProgressColumn):
    """The time that is left, as the last half minute lets one expect, of runs the last hour."""

    max_refresh = 0.5  # seconds: it should not flicker

    def render(self, task: Task) -> Text:
        """Return the time left, or nothing while it is unknown."""
        seconds = task.time_remaining
        return Text("" if seconds is None else f"{_clock(seconds)} left")


class _Elapsed(ProgressColumn):
    def render(self, task: Task) -> Text:
        """Return the time since the start."""
        return Text(_clock(task.elapsed or 0.0))


def _columns(unit: str, total: int | None, *, is_wide: bool) -> Iterator[ProgressColumn]:
    of_total = "" if total is None else "/{task.total:,.0f}"
    whole = Column(no_wrap=True)
    if is_wide or total is not None:
        yield BarColumn(30 if is_wide else 10)
    yield TextColumn(f"{{task.completed:,.0f}}{of_total} {unit}", table_column=whole)
    if is_wide:
        yield TextColumn("{task.fields[simulated]}", table_column=whole)
    if is_wide or total is None:
        yield _Elapsed(table_column=whole)
    if total is not None:
        yield _Left(table_column=whole)


def _clock(seconds: float) -> str:
    """Return a time as minutes and seconds, 1:05, or with hours, 2:01:05."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"
