"""A note during a long run whose engines cannot keep up, before the user waits for its end."""

from __future__ import annotations

from collections.abc import Callable
from time import monotonic
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from mist_sim.scenario import Scenario

PATIENCE = 10.0  # seconds of a run before it is worth a look


class Forewarning:
    """Passes progress on; after ten seconds of a run, warns of a proved overload.

    Shorter runs end before a note would help, and pay nothing for it.
    """

    def __init__(
        self,
        scenario: Scenario,
        progress: Callable[[int, float], None],
        note: Callable[[str], None],
    ) -> None:
        self._scenario = scenario
        self._progress = progress
        self._note = note
        self._due: float | None = monotonic() + PATIENCE

    def __call__(self, num_done: int, sim_seconds: float) -> None:
        """Take note of how far the run is."""
        if self._due is not None and monotonic() >= self._due:
            self._due = None
            if text := overload(self._scenario):
                self._note(text)
        self._progress(num_done, sim_seconds)


def overload(scenario: Scenario) -> str:
    """Return a warning if a scenario is provably overloaded; else ""."""
    from mist_sim.search.planning.bounds import proved_load

    load = proved_load(scenario)
    if load is None or load.arriving <= load.most:
        return ""
    return (
        f"workload.arrivals: {load.arriving:.3g} requests a second arrive, and the engines are "
        f"proved to serve at most {load.most:.3g}: queues grow until the last has come, or "
        "requests are given up. `mist goodput` finds the rate that they keep."
    )
