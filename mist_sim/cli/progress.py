"""A progress bar on stderr, for runs that take longer than a moment."""

from __future__ import annotations

import sys
from time import monotonic
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

if TYPE_CHECKING:
    from rich.progress import Progress as Bar

_PATIENCE = 1.0  # seconds without a bar


class Progress:
    """Called with (requests done, simulated seconds); shows a bar after a second of waiting.

    num_requests: how many there will be; None if unknown. visible: False shows nothing,
    nor does a stderr that is no terminal. unit: what is counted, where it is not requests.
    """

    def __init__(
        self, num_requests: int | None, *, visible: bool = True, unit: str = "requests"
    ) -> None:
        self._num_requests = num_requests
        self._unit = unit
        self._visible = visible and sys.stderr.isatty()
        self._begin = monotonic()
        self._bar: Bar | None = None
        self._task: Any = None

    def __enter__(self) -> Self:
        return self

    def __call__(self, num_done: int, sim_seconds: float | None = None) -> None:
        """Show how far the run is."""
        if not self._visible or monotonic() - self._begin < _PATIENCE:
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
        from rich.console import Console
        from rich.progress import BarColumn, TextColumn, TimeElapsedColumn
        from rich.progress import Progress as Bar

        of_total = "" if self._num_requests is None else "/{task.total:,.0f}"
        bar = Bar(
            BarColumn(),
            TextColumn(f"{{task.completed:,.0f}}{of_total} {self._unit}"),
            TextColumn("{task.fields[simulated]}"),
            TimeElapsedColumn(),
            console=Console(stderr=True),
            transient=True,
        )
        self._task = bar.add_task("requests", total=self._num_requests, simulated="")
        bar.start()
        return bar


def _simulated(seconds: float | None) -> str:
    return "" if seconds is None else f"{seconds:,.0f} s simulated"
