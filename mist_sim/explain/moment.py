"""The step that an engine computes at a moment of a run."""

from __future__ import annotations

from bisect import bisect_left
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from mist_sim.core.batch import StepBatch, StepGrowth, grown
from mist_sim.errors import ScenarioError
from mist_sim.metrics import ColumnRecorder
from mist_sim.simulation import Simulation


@dataclass(frozen=True, slots=True)
class Moment:
    """A step of a run.

    start, end: seconds. num_waiting: requests waiting for a seat meanwhile. is_exact: whether the
        batch is that of this step; otherwise, with sliding windows or drafts, it is that of the
        first step of its run, with the same sequences.
    """

    batch: StepBatch
    start: float
    end: float
    num_waiting: int
    is_exact: bool


class _FoundError(Exception):
    """Ends a run: its step is known."""


class _Watch(ColumnRecorder):
    """Records a run until a client has computed the step of a moment."""

    def __init__(self, client_id: int, time: float) -> None:
        super().__init__()
        self._client_id, self._time = client_id, time
        self.found: Moment | None = None

    def record_steps(
        self,
        track: int,
        start: float,
        ends: list[float] | float,
        num_steps: int,
        batch: StepBatch,
        *others: Any,
    ) -> None:
        """Stop where the steps include the moment."""
        if self.track_clients[track] == self._client_id:
            every = [ends] if isinstance(ends, float) else ends[:num_steps]
            if start <= self._time <= every[-1]:
                self.found = self._moment(start, every, batch, num_waiting=others[1])
                raise _FoundError
        super().record_steps(track, start, ends, num_steps, batch, *others)

    def _moment(
        self, start: float, ends: list[float], batch: StepBatch, num_waiting: int
    ) -> Moment:
        number = min(bisect_left(ends, self._time), len(ends) - 1)
        is_exact = not number or (batch.window_sum is None and not batch.num_drafts)
        if not is_exact:
            number = 0
        growth = StepGrowth(batch.num_decodes, 0, 1 if batch.num_decodes else 0)
        begin = ends[number - 1] if number else start
        return Moment(grown(batch, growth, number), begin, ends[number], num_waiting, is_exact)


def step_at(simulation: Simulation, client: int, time: float) -> Moment:
    """Return the step that a client computes at a time, in seconds, of a run not begun yet.

    client: its position.
    Raises ScenarioError if it computes no step at that time.
    """
    watch = _Watch(client, time)
    with suppress(_FoundError):
        simulation.run(recorder=watch)
    if watch.found is None:
        raise ScenarioError(
            f"{simulation.clients[client].name} computes no step at {time:g} s; mist timeline and "
            "steps.parquet of mist run --out show when it does"
        )
    return watch.found
