"""Records of the steps of one batch of a bundle, and of the tokens they gave."""

from __future__ import annotations

from mist_sim.clients.afd.bundle_clock import Pass
from mist_sim.clients.afd.slots import BatchSlots
from mist_sim.clients.engine.run import Run
from mist_sim.clients.engine.step_records import StepRecords
from mist_sim.clients.sequence_state import SequenceState
from mist_sim.core.batch import StepBatch
from mist_sim.core.recorder import Recorder


class BatchTrack:
    """The steps of one batch: each lasts from when the batch is ready until its last pass ends.

    Steps with the same members are one row. They are written before members change.
    """

    def __init__(self, recorder: Recorder, client_id: int) -> None:
        self.records = StepRecords(recorder, client_id, None)
        self._ends: list[float] = []  # of steps that are not written
        self._start = 0.0
        self._batch = StepBatch()
        self._busy = 0.0  # in these steps
        self._busy_last = 0.0  # in the latest that has begun
        self._is_open = False  # whether a step with unknown end has begun

    def begin(self, step: Pass, slots: BatchSlots, was_empty: bool) -> None:
        """Note that a step begins with the present members.

        was_empty: whether the batch had no members before, so that it was not waiting.
        """
        self._is_open = True
        if not self._ends:
            self._start = step.start if was_empty else step.ready
            self._batch = StepBatch(
                num_decodes=slots.num_filled, context_sum=slots.held.sum().item()
            )

    def work(self, busy: float) -> None:
        """Note the workers' time for that step, mean over all workers of both kinds, seconds."""
        self._busy += busy
        self._busy_last = busy or self._busy_last

    def end(self, time: float) -> None:
        """Note when the step that has begun ends."""
        self._ends.append(time)
        self._is_open = False

    def lose_step(self, now: float) -> bool | None:
        """Forget the step under way, which will never end.

        Return whether its end was known already; None if no step is under way.
        """
        is_known = bool(self._ends) and self._ends[-1] > now
        if not (is_known or self._is_open):
            return None
        if is_known:
            self._ends.pop()
        self._busy -= self._busy_last
        self._is_open = False
        return is_known

    def write(self, num_waiting: int) -> None:
        """Write the steps up to now. num_waiting: requests that wait for a slot."""
        if not self._ends:
            return
        ends = list(self._ends)
        run = Run((), self._start, ends, len(ends), ends[-1], self._busy)
        self.records.run(run, self._batch, num_waiting, 0)
        self._ends.clear()
        self._busy = 0.0

    def finish(self, sequence: SequenceState, num_waiting: int) -> None:
        """Write that a member leaves at the end of the latest step."""
        self.write(num_waiting)
        self.records.evict(sequence)
