"""Records of the steps of a batch whose decodes come from elsewhere, and their tokens."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from mist_sim.clients.sequence_state import SequenceState
from mist_sim.clients.step_track import write_move
from mist_sim.core.batch import StepBatch
from mist_sim.core.recorder import Recorder


class StepRecords:
    """Writes one track of steps: those of one clock, in order of time.

    A token's time is the end of a step, so a request's tokens are recorded as the range of its
    steps. The time between two tokens is a step's duration; if a decode waited in between, the gap
    is recorded separately.
    """

    def __init__(self, recorder: Recorder, client_id: int) -> None:
        self._recorder = recorder
        self._track = recorder.add_track(client_id)
        self._num_steps = 0
        self._last_end = 0.0
        self._joined: list[SequenceState] = []  # since the last step
        self.move = partial(write_move, recorder, self._track)
        """Writes which tokens' entries were moved for a sequence, and when."""

    def run(
        self,
        start: float,
        ends: Sequence[float],
        batch: StepBatch,
        busy: float,
        num_waiting: int,
    ) -> None:
        """Write executed steps of decodes. busy: seconds of work in them, on all ranks."""
        num_gaps = batch.num_decodes
        if num_gaps:
            if self._last_end != start or self._joined:
                num_gaps = self._stalls(start, ends[0], num_gaps)
            self._last_end = ends[-1]
            self._joined.clear()
        num_steps = len(ends)
        self._num_steps += num_steps
        self._recorder.record_steps(
            self._track, start, list(ends), num_steps, batch, busy, num_waiting, 0, num_gaps, 0
        )

    def _stalls(self, start: float, first_end: float, num_decodes: int) -> int:
        """Record the gaps of decodes that waited before a step; return how many did not."""
        num_fresh = 0
        for sequence in self._joined:
            if not sequence.visit.has_token:  # those before were another client's
                sequence.visit.first_token_at = first_end
                sequence.visit.num_beside = num_decodes - 1
            if sequence.last_token_at == start:
                num_fresh += 1
            elif sequence.last_token_at == sequence.last_token_at:  # else it is the first token
                gap = first_end - sequence.last_token_at
                self._recorder.record_gap(self._track, first_end, gap, 1)
        num_stalled = num_decodes - len(self._joined)
        if self._last_end == start:
            num_fresh += num_stalled
        elif num_stalled:
            gap = first_end - self._last_end
            self._recorder.record_gap(self._track, first_end, gap, num_stalled)
        return num_fresh

    def resume(self, sequence: SequenceState) -> None:
        """Note that a decode goes on with the next step."""
        sequence.first_step = self._num_steps
        self._joined.append(sequence)

    def leave(self, sequence: SequenceState) -> None:
        """Note that a decode leaves; record the steps that gave it its tokens."""
        last = sequence.last_token_at
        if sequence in self._joined:
            self._joined.remove(sequence)  # no step has given it a token
        elif last == last or sequence.visit.has_token:
            sequence.last_token_at = max(self._last_end, last)
        if sequence.first_step is not None:
            request_id = sequence.visit.request.request_id
            self._recorder.record_tokens(
                self._track, request_id, sequence.first_step, self._num_steps, None, resumed=True
            )
            sequence.first_step = None
