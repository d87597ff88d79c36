"""The decode clock with speculative decoding for a model with sliding windows.

A sequence's path is known when it joins, so the tokens and blocks of its windows after each of its
steps are added to sums over the clock's next steps, like all others (`speculative_clock.py`). No
run has to end when a context outgrows its window.
"""

from __future__ import annotations

import numpy as np

from mist_sim.clients.decode.speculative_clock import (
    Speculation,
    SpeculativeClock,
    Vector,
    add_ahead,
    moved,
)
from mist_sim.clients.sequence_state import SequenceState
from mist_sim.core.batch import StepBatch, StepGrowth
from mist_sim.models.kv_groups import KvGroups


class SpeculativeWindowClock(SpeculativeClock):
    """The running decodes of one engine, and the part of their contexts inside the windows.

    window_sum: tokens in the cache that the next queries see through their windows, summed.
    """

    __slots__ = ("_groups", "_reach", "_seen_by", "window_sum")

    def __init__(self, block_size: int, speculation: Speculation, groups: KvGroups) -> None:
        super().__init__(block_size, speculation)
        self.window_sum = 0
        self._groups = groups
        self._reach = (groups.sliding_window or 1) - 1
        self._seen_by: Vector = np.zeros_like(self._tokens_by)  # as `_tokens_by`

    def join(self, sequence: SequenceState) -> None:
        """Add a sequence and the tokens that its windows see after each of its steps."""
        super().join(sequence)
        stay = self._path(sequence, 0).stay
        seen = self._seen(sequence.num_tokens - 1, stay)
        self.window_sum += seen.item(0)
        add_ahead(self._seen_by, self.steps - self._first, seen - seen[0])

    def leave(self, sequence: SequenceState) -> int:
        """Take a sequence off the clock and out of the window sums; return the slots it holds."""
        stay, done = self._path(sequence, 0).stay, self.steps - sequence.join_step
        context = sequence.num_tokens - 1
        seen = self._seen(context, stay)
        num_slots = super().leave(sequence)
        self.window_sum -= seen.item(done)
        if done < len(stay) - 1:
            add_ahead(self._seen_by, self.steps - self._first, seen[done] - seen[done:])
        return num_slots

    def advance(self, num_steps: int) -> int:
        """Make steps; return the blocks that they took."""
        start, seen = self.steps - self._first, self._seen_by
        self.window_sum += seen.item(start + num_steps) - seen.item(start)
        return super().advance(num_steps)

    def begin_overrun(self, context: int, num_blocks: int) -> None:
        """Add an ended decode to the next step, and its part within the windows' reach."""
        super().begin_overrun(context, num_blocks)
        self.window_sum += min(context, self._reach)

    def end_overrun(self, context: int, num_blocks: int) -> None:
        """Remove an ended decode, and its part within the windows' reach."""
        super().end_overrun(context, num_blocks)
        self.window_sum -= min(context, self._reach)

    def batch(self, chunks: tuple[tuple[int, int], ...]) -> StepBatch:
        """Return the next step's batch, with the tokens that windows read."""
        batch = super().batch(chunks)
        batch.window_sum = self.window_sum
        return batch

    def growth(self, num_steps: int) -> StepGrowth:
        """Return the batch's growth, with that of the tokens which windows read."""
        growth = super().growth(num_steps)
        start, seen = self.steps - self._first, self._seen_by
        growth.window_sum = seen[start : start + num_steps] - seen[start]
        return growth

    def _seen(self, context: int, stay: Vector) -> Vector:
        """Return the tokens inside the windows after 0, 1, 2, ... steps of a stay."""
        return np.minimum(context + stay, self._reach)

    def _blocks_held(self, context: int, stay: Vector, num_ahead: int = 0) -> Vector:
        """Return the pages taken; those that come back do not count."""
        blocks = super()._blocks_held(context, stay, num_ahead)
        blocks *= self._groups.num_groups
        return blocks

    def _place(self, num_steps: int) -> int:
        before = self._first
        start = super()._place(num_steps)
        size = len(self._tokens_by)
        if self._first != before or len(self._seen_by) != size:
            self._seen_by = moved(self._seen_by[self._first - before :], size)
        return start
