"""What a lane and its client ask of the engine that steps the lane."""

from __future__ import annotations

from typing import Protocol

from mist_sim.clients.engine.lane import Lane
from mist_sim.clients.scheduling import StepPlan
from mist_sim.clients.sequence_state import SequenceState


class LaneEngine(Protocol):
    """The engine that steps a lane, as the lane and its client use it (see `Engine`)."""

    @property
    def score(self) -> int:
        """Its load, by which requests are sent to the least loaded engine."""

    def add_request(self, sequence: SequenceState) -> None:
        """Queue a sequence at one of its lanes."""

    def next_lane(self) -> Lane:
        """Return the lane that the next request would get."""

    def steps_over(self, lane: Lane, /) -> tuple[StepPlan | None, int]:
        """Return the plan in flight of a lane, and how many of its steps have ended."""

    def steps_begun(self, lane: Lane, /) -> tuple[StepPlan | None, int]:
        """Return the plan in flight of a lane, and how many of its steps have begun."""

    def end_load(self, sequence: SequenceState, lane: Lane, /) -> None:
        """Let a sequence continue whose entries have come."""

    def abort(self, sequence: SequenceState, lane: Lane, /) -> None:
        """Give up a sequence."""

    def release(self, sequence: SequenceState, lane: Lane, /) -> None:
        """Free blocks that another client, or the host, has copied."""

    def notice(self, lane: Lane, /) -> None:
        """Cut the run in flight if a sequence just queued could join before it ends."""

    def halt(self) -> None:
        """Lose the steps in flight."""
