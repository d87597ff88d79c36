"""How far a run is, on a bar if it takes longer than a moment and someone sees it."""

from __future__ import annotations

import sys
from time import monotonic
from typing import TYPE_CHECKING, Any, Self

if TYPE_CHECKING:
    from rich.progress import Progress as Bar

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
            from mist_sim.cli.progress_bar import started

            self._bar, self._task = started(self._total, self._unit)
        simulated = "" if sim_seconds is None else f"{sim_seconds:,.0f} s simulated"
        self._bar.update(self._task, completed=num_done, simulated=simulated)

    def __exit__(self, *error: object) -> None:
        if self._bar is not None:
            self._bar.stop()
