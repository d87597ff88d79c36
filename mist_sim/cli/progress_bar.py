"""A progress bar on stderr."""

from __future__ import annotations

from collections.abc import Iterator
from time import monotonic

from rich.progress import BarColumn, ProgressColumn, Task, TaskID, TextColumn
from rich.progress import Progress as Bar
from rich.table import Column
from rich.text import Text

from mist_sim.report.elements import Terminal

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
