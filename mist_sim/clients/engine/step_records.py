"""Records of the steps of an engine and the tokens that they gave."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import numpy as np
from numpy.typing import NDArray

from mist_sim.clients.engine.run import Run
from mist_sim.clients.sequence_state import SequenceState
from mist_sim.clients.step_track import TokenCount, write_move
from mist_sim.core.batch import StepBatch, StepGrowth, attended
from mist_sim.core.recorder import Recorder


class StepRecords:
    """Writes one track of steps: those of one clock, in order of time.

    A token's time is the end of a step, so a request's tokens are recorded as the range of its
    steps. The time between two tokens is a step's duration; if a decode waited in between, the gap
    is recorded separately.

    steps_inside: as in `PredictorTraits`. layout: number of the client's layout, from 0.
    streamed: counts the tokens of its client; None: a count of its own.
    """

    def __init__(
        self,
        recorder: Recorder,
        client_id: int,
        steps_inside: Callable[[StepBatch, StepGrowth], int] | None,
        layout: int = 0,
        streamed: TokenCount | None = None,
    ) -> None:
        self._recorder = recorder
        self.streamed = streamed or TokenCount()
        self._steps_inside = steps_inside
        self._track = recorder.add_track(client_id, layout)
        self._sink = recorder.step_sink(self._track) if steps_inside is None else None
        self._num_steps = 0
        self._last_decode_end = 0.0
        self._num_beside = 0  # tokens that the latest steps gave, each
        self._num_drafts = 0  # of each decode, in the last decode step
        self._newly_decoding: list[SequenceState] = []  # joined since the last decode step
        self._resumed: set[SequenceState] = set()  # whose stay did not begin with a prefill
        self._some_resumed = False  # since the last decode step
        self.move = partial(write_move, recorder, self._track)
        """Writes which tokens' entries were moved for a sequence, and when."""
        self.awaits_first = False
        """Whether the next decode step gives one that resumed the first token of its answer, for
        which its sender may not wait for ever."""

    def run(
        self,
        run: Run,
        batch: StepBatch,
        num_waiting: int,
        num_used_blocks: int,
        step_tokens: NDArray[np.int64] | None = None,
        num_gone: int = 0,
    ) -> None:
        """Write executed steps. num_gone: decodes in them that left before they were over."""
        start, end, num_steps = run.start, run.end, run.num_steps
        self._num_beside = num_gaps = batch.num_decodes - num_gone
        if num_gaps:
            self.streamed.number += (
                num_steps * num_gaps if step_tokens is None else step_tokens.sum().item()
            )
            if self._last_decode_end != start or self._some_resumed:
                num_gaps = self._stalls(run, num_gaps)
            self._last_decode_end = end
            self._num_drafts = batch.num_drafts
            if self._newly_decoding or self._some_resumed:
                self._newly_decoding.clear()
                self._some_resumed = self.awaits_first = False
        busy = end - start if run.busy is None else run.busy
        self._num_steps += num_steps
        if self._sink is None or step_tokens is not None:
            num_extrapolated = 0
            if self._steps_inside is not None:
                num_inside = self._steps_inside(batch, StepGrowth(batch.num_decodes))
                num_extrapolated = max(num_steps - num_inside, 0)
            self._recorder.record_steps(
                self._track,
                start,
                run.ends if isinstance(run.ends, float) else list(run.ends),
                num_steps,
                batch,
                busy,
                num_waiting,
                num_used_blocks,
                num_gaps,
                num_extrapolated,
                step_tokens,
            )
            return
        add, all_ends = self._sink
        if num_steps == 1:
            all_ends.append(end)
        else:
            all_ends.extend(run.ends[:num_steps])  # type: ignore[index]
        num_chunks = num_new = context = pairs = 0
        if chunks := batch.chunks:
            num_chunks = len(chunks)
            num_new, context, pairs = attended(chunks, num_steps)
        add(
            (
                start,
                num_steps,
                num_chunks,
                num_new,
                batch.num_decodes,
                batch.context_sum,
                context,
                pairs,
                busy,
                num_waiting,
                num_used_blocks,
                num_gaps,
                0,
            )
        )

    def _stalls(self, run: Run, num_decodes: int) -> int:
        """Record the gaps of decodes that waited for prefill steps; return how many did not."""
        start = run.start
        first_end = run.first_end
        num_fresh = 0
        if self._some_resumed:
            for sequence in self._newly_decoding:
                if not sequence.visit.has_token:  # those before were another client's
                    sequence.visit.first_token_at = first_end
                    sequence.visit.num_beside = num_decodes - 1
        for sequence in self._newly_decoding:
            if sequence.last_token_at == start:
                num_fresh += 1
            elif sequence.last_token_at == sequence.last_token_at:  # else it is the first token
                gap = first_end - sequence.last_token_at
                self._recorder.record_gap(self._track, first_end, gap, 1)
        num_stalled = num_decodes - len(self._newly_decoding)
        if self._last_decode_end == start:
            num_fresh += num_stalled
        elif num_stalled:
            gap = first_end - self._last_decode_end
            self._recorder.record_gap(self._track, first_end, gap, num_stalled)
        return num_fresh

    def emit(self, sequence: SequenceState, now: float, *, goes_on: bool = False) -> None:
        """Note the token that a prefill emitted at its end.

        goes_on: whether more follow although the answer's last token is on its way.
        """
        visit, last = sequence.visit, sequence.last_token_at
        if visit.is_silent:
            return
        self.streamed.number += 1
        if visit.first_token_at != visit.first_token_at:
            visit.first_token_at, visit.num_beside = now, self._num_beside
        self._num_beside += 1
        if last == last:
            self._recorder.record_gap(self._track, now, now - last, 1)
        sequence.last_token_at = now
        sequence.first_step = self._num_steps
        if goes_on or sequence.num_tokens < sequence.num_final_tokens:
            self._newly_decoding.append(sequence)

    def evict(self, sequence: SequenceState) -> None:
        """Close a sequence's stay in the decode batch, if any: it lost its memory."""
        if sequence in self._newly_decoding:
            self._newly_decoding.remove(sequence)  # no decode step has given it a token since
        elif sequence.first_step is not None:
            last = sequence.last_token_at
            if last == last or sequence.visit.has_token:
                sequence.last_token_at = max(self._last_decode_end, last)
        if sequence.first_step is not None:
            self.finish(sequence)

    def resume(self, sequence: SequenceState) -> None:
        """Note that a decode continues where it was, with its memory back."""
        sequence.first_step = self._num_steps
        self._resumed.add(sequence)
        self._newly_decoding.append(sequence)
        self._some_resumed = True
        has_limits = sequence.visit.request.limits is not None
        if has_limits and sequence.last_token_at != sequence.last_token_at:
            self.awaits_first = True

    def finish(self, sequence: SequenceState) -> None:
        """Record the steps that gave a sequence its tokens since its last prefill."""
        if sequence.first_step is None:
            return
        path, tokens = sequence.path, None
        if path is not None and path.num_steps:
            tokens = path.step_tokens
            self._recorder.record_drafts(
                self._last_decode_end,
                path.num_steps,
                path.num_steps * self._num_drafts,
                path.num_accepted,
            )
            path.forget_stay()
        request_id = sequence.visit.request.request_id
        resumed = bool(self._resumed) and sequence in self._resumed
        if resumed:
            self._resumed.remove(sequence)
        self._recorder.record_tokens(
            self._track, request_id, sequence.first_step, self._num_steps, tokens, resumed=resumed
        )
        sequence.first_step = None
