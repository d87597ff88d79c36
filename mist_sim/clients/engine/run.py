"""A run: steps in flight whose members do not change."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from mist_sim.clients.scheduling import StepPlan
from mist_sim.core.batch import StepBatch
from mist_sim.hardware.predictors.decode_line import Ends

if TYPE_CHECKING:
    from mist_sim.clients.scheduling import LaneState


class RunningLane(Protocol):
    """A lane, as runs use it (see `Lane`)."""

    @property
    def state(self) -> LaneState:
        """Its sequences, and the memory that they hold."""

    def end(self, run: Run, plan: StepPlan, batch: StepBatch, /) -> None:
        """Account for the lane's part in a run that has ended."""

    def lose_step(self, plan: StepPlan, /) -> None:
        """Give back the blocks of a planned step that is lost."""


Part = tuple[RunningLane, StepPlan, StepBatch]
"""What one lane computes in a run: its plan, and the batch of the first step."""


@dataclass(slots=True)
class Run:
    """Steps in flight: what each lane computes, when they began, and when each ends (seconds).

    ends: of every step; a float for a single step. num_steps: steps that are carried out. end: when
    the last of them ends.
    busy: seconds of work in them, on all ranks; None: all the time.
    went_on: whether the last of them ended and another step was to follow.
    """

    parts: tuple[Part, ...]
    start: float
    ends: Ends | float
    num_steps: int
    end: float
    busy: float | None = None
    went_on: bool = False

    @property
    def last_start(self) -> float:
        """When its last step begins."""
        if self.num_steps == 1 or isinstance(self.ends, float):
            return self.start
        return self.ends[self.num_steps - 2]

    @property
    def first_end(self) -> float:
        """When its first step ends."""
        return self.ends if isinstance(self.ends, float) else self.ends[0]

    def num_begun(self, now: float, *, is_planned: bool = False) -> int:
        """Steps that have begun by now; one that ends at this instant has.

        is_planned: whether the step after it has begun, too.
        """
        if isinstance(self.ends, float):
            return 1
        if is_planned:
            return min(bisect_right(self.ends, now) + 1, self.num_steps)
        return bisect_left(self.ends, now) + 1

    def start_of(self, now: float) -> float:
        """Return when the step that is in flight, or ends just now, began."""
        number = min(self.num_begun(now), self.num_steps)
        if number == 1 or isinstance(self.ends, float):
            return self.start
        return self.ends[number - 2]

    def num_over(self, now: float) -> int:
        """Steps that have ended by now."""
        if isinstance(self.ends, float):
            return int(self.ends <= now)
        return min(bisect_right(self.ends, now), self.num_steps)

    def cut(self, num_steps: int) -> None:
        """Carry out only so many steps."""
        self.num_steps = num_steps
        if not isinstance(self.ends, float):
            self.end = self.ends[num_steps - 1]

    def plan_of(self, lane: RunningLane) -> StepPlan | None:
        """Return what a lane computes in it; None if nothing."""
        for member, plan, _ in self.parts:
            if member is lane:
                return plan
        return None

    def has(self, lane: RunningLane) -> bool:
        """Tell whether a lane computes something in it."""
        return self.plan_of(lane) is not None
