"""An engine that has stopped for good: its lanes keep their sequences, and no step runs."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from mist_sim.clients.engine.lane import Lane
from mist_sim.clients.scheduling import StepPlan
from mist_sim.clients.sequence_state import SequenceState


class StillEngine:
    """Stands for an engine between its last step and the first step of the next layout.

    look: called when something has come to its lanes or left them.
    """

    def __init__(self, lanes: Sequence[Lane], look: Callable[[], None]) -> None:
        self.lanes = lanes
        self._look = look
        for lane in lanes:
            lane.engine = self
            lane.put_down()

    @property
    def score(self) -> int:
        """How busy it is, see `Lane.score`."""
        return sum([lane.score for lane in self.lanes])

    def add_request(self, sequence: SequenceState) -> None:
        """Queue a sequence at the lane with the lowest score, the first of equals."""
        sequence.lane = lane = self.next_lane()
        lane.state.add_request(sequence)

    def next_lane(self) -> Lane:
        """Return the lane that the next request gets."""
        return min(self.lanes, key=lambda lane: lane.score)

    def num_unwritten(self, lane: Lane) -> int:
        """Return that all its steps are written down."""
        return 0

    def steps_over(self, lane: Lane) -> tuple[StepPlan | None, int]:
        """Return that it has no plan."""
        return None, 0

    def steps_begun(self, lane: Lane) -> tuple[StepPlan | None, int]:
        """Return that it has no plan."""
        return None, 0

    def end_load(self, sequence: SequenceState, lane: Lane) -> None:
        """Note that entries have come; if their sequence was given up, free their memory."""
        lane.state.coming.finish_load(sequence)
        self._look()

    def abort(self, sequence: SequenceState, lane: Lane) -> None:
        """Let a sequence go at once."""
        lane.abort(sequence)
        self._look()

    def release(self, sequence: SequenceState, lane: Lane) -> None:
        """Free what a lane held of a sequence."""
        lane.state.release_held(sequence)
        self._look()

    def halt(self) -> None:
        """Nothing is in flight."""
