"""The decode clock of a model with sliding windows.

A decode reads at most a window of keys in the window layers. Their number grows with the context
up to a point and then stays; a run of steps ends where a sequence crosses that point, and between
such points all is arithmetic. Pages that come back do not count here (see `PageManager`).
"""

from __future__ import annotations

from heapq import heappop, heappush

from mist_sim.clients.decode.clock import DecodeClock
from mist_sim.clients.sequence_state import SequenceState
from mist_sim.core.batch import StepBatch, StepGrowth
from mist_sim.models.kv_groups import KvGroups


class WindowClock(DecodeClock):
    """The running decodes of one engine, and the part of their contexts inside the windows.

    window_sum: tokens in the cache that the next queries see through their windows, summed.
    num_growing: sequences whose next step adds one token to `window_sum`.
    """

    __slots__ = ("_crossings", "_reach", "num_growing", "window_sum")

    def __init__(self, block_size: int, groups: KvGroups) -> None:
        super().__init__(block_size)
        self.window_sum = 0
        self.num_growing = 0
        self._pages_per_block = groups.num_groups
        self._reach = (groups.sliding_window or 1) - 1
        # (step of the change, ticket, sequence); sequences that left are dropped lazily
        self._crossings: list[tuple[int, int, SequenceState]] = []

    def join(self, sequence: SequenceState) -> None:
        """Add a sequence, and note when its context reaches the window."""
        super().join(sequence)
        context = self.context(sequence)
        self.window_sum += min(context, self._reach)
        if context < self._reach:
            self.num_growing += 1
            step = self.steps + self._reach - context
            heappush(self._crossings, (step, sequence.ticket, sequence))

    def leave(self, sequence: SequenceState) -> int:
        """Take a sequence off the clock, out of the sums over windows too; return its context."""
        context = super().leave(sequence)
        self.window_sum -= min(context, self._reach)
        if context < self._reach:
            self.num_growing -= 1
        return context

    def steps_to_change(self) -> int:
        """Steps until the first sequence finishes or outgrows its window."""
        steps = super().steps_to_change()
        crossings = self._crossings
        while crossings and crossings[0][2].ticket != crossings[0][1]:
            heappop(crossings)
        return min(steps, crossings[0][0] - self.steps) if crossings else steps

    def steps_until(self, num_free_blocks: int, limit: int) -> int:
        """Steps, at most `limit`, until a sequence ends, outgrows its window or blocks run out."""
        return self.steps_within(num_free_blocks, min(limit, self.steps_to_change()))

    def advance(self, num_steps: int) -> int:
        """As for all decodes; no sequence crosses before the last of the steps ends."""
        num_blocks = super().advance(num_steps)
        self.window_sum += num_steps * self.num_growing
        crossings = self._crossings
        while crossings and crossings[0][0] <= self.steps:
            _, ticket, sequence = heappop(crossings)
            if sequence.ticket == ticket:
                self.num_growing -= 1
        return num_blocks

    def batch(self, chunks: tuple[tuple[int, int], ...]) -> StepBatch:
        """Return the next step's batch, with the tokens that windows read."""
        batch = super().batch(chunks)
        batch.window_sum = self.window_sum
        return batch

    def growth(self, num_steps: int) -> StepGrowth:
        """Return the batch's growth: windows that are not full read one token more each step."""
        growth = super().growth(num_steps)
        growth.window_sum = self.num_growing
        return growth
