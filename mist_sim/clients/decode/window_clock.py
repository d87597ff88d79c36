"""The decode clock of a model with sliding windows.

A decode reads at most a window of keys in the window layers, and holds at most so many of their
pages. Both grow with the context up to a point and then stay, so a sequence crosses two points
in its life; a run of steps ends at each of them, and between them all is arithmetic.
"""

from __future__ import annotations

from heapq import heappop, heappush

from mist_sim.clients.decode.clock import DecodeClock
from mist_sim.clients.kv_cache.windows.window_drops import WindowDrops
from mist_sim.clients.sequence_state import SequenceState
from mist_sim.core.batch import StepBatch, StepGrowth
from mist_sim.models.kv_groups import KvGroups

_KEYS, _PAGES = 0, 1  # sequences that stop growing when they reach the window


class WindowClock(DecodeClock):
    """The running decodes of one engine, and the part of their contexts inside the windows.

    window_sum: tokens in the cache that the next queries see through their windows, summed.
    num_growing: sequences whose next step adds one token to `window_sum`.
    drops: receives blocks that windows have left, for a prefix cache; None: no prefix cache.
    """

    __slots__ = (
        "_crossings",
        "_drops",
        "_filled",
        "_last_page_at",
        "_most_window_blocks",
        "_num_filled",
        "_reach",
        "_returns",
        "_window_pages",
        "num_growing",
        "window_sum",
    )

    def __init__(
        self,
        block_size: int,
        groups: KvGroups,
        drops: WindowDrops | None = None,
        *,
        returns: bool = True,
    ) -> None:
        """returns: whether a page that a window has left counts; otherwise only those taken do."""
        super().__init__(block_size)
        self._returns = returns
        self._drops = drops
        self._filled = [0] * block_size  # of each phase, sequences that hold all pages of a window
        self._num_filled = 0
        self._most_window_blocks = groups.max_window_blocks(block_size)
        self.window_sum = 0
        self.num_growing = 0
        self._pages_per_block = groups.num_groups
        self._window_pages = groups.num_window_groups
        self._reach = (groups.sliding_window or 1) - 1
        # context at which a sequence takes the last of the pages that a window can fill
        self._last_page_at = (self._most_window_blocks - 1) * block_size
        # (step of the change, ticket, kind, sequence); sequences that left are dropped lazily
        self._crossings: list[tuple[int, int, int, SequenceState]] = []

    def join(self, sequence: SequenceState) -> None:
        """Add a sequence, and note when its context reaches the window and its last page."""
        super().join(sequence)
        context = self.context(sequence)
        self.window_sum += min(context, self._reach)
        if context < self._reach:
            self.num_growing += 1
            self._cross_at(self._reach, context, _KEYS, sequence)
        if not self._returns:
            return
        if context <= self._last_page_at:
            self._cross_at(self._last_page_at + 1, context, _PAGES, sequence)
        else:
            self._fill(sequence.block_phase, 1)
        if self._drops is not None:
            self._drops.watch(self, sequence)

    def leave(self, sequence: SequenceState) -> int:
        """Take a sequence off the clock, out of the sums over windows too; return its context."""
        context = super().leave(sequence)
        self.window_sum -= min(context, self._reach)
        if context < self._reach:
            self.num_growing -= 1
        if self._returns and context > self._last_page_at:
            self._fill(sequence.block_phase, -1)
        return context

    def steps_to_change(self) -> int:
        """Steps until the first sequence finishes or outgrows its window."""
        steps = super().steps_to_change()
        crossings = self._crossings
        while crossings and crossings[0][3].ticket != crossings[0][1]:
            heappop(crossings)
        return min(steps, crossings[0][0] - self.steps) if crossings else steps

    def steps_until(self, num_free_blocks: int, limit: int) -> int:
        return self.steps_within(num_free_blocks, min(limit, self.steps_to_change()))

    def advance(self, num_steps: int) -> int:
        """As for all decodes; no sequence crosses before the last of the steps ends."""
        if self._drops is not None and self._drops.is_kept:
            self._drops.advance(self, num_steps)
        num_blocks = super().advance(num_steps)
        self.window_sum += num_steps * self.num_growing
        crossings = self._crossings
        while crossings and crossings[0][0] <= self.steps:
            _, ticket, what, sequence = heappop(crossings)
            if sequence.ticket != ticket:
                continue
            if what == _KEYS:
                self.num_growing -= 1
            else:
                self._fill(sequence.block_phase, 1)
        return num_blocks

    def batch(self, chunks: tuple[tuple[int, int], ...]) -> StepBatch:
        batch = super().batch(chunks)
        batch.window_sum = self.window_sum
        return batch

    def growth(self, num_steps: int) -> StepGrowth:
        growth = super().growth(num_steps)
        growth.window_sum = self.num_growing
        return growth

    def _cross_at(self, target: int, context: int, what: int, sequence: SequenceState) -> None:
        step = self.steps + target - context
        heappush(self._crossings, (step, sequence.ticket, what, sequence))

    def _fill(self, phase: int, number: int) -> None:
        """Let so many sequences of a phase give back a window block for each that they take."""
        self._filled[phase] += number
        self._num_filled += number
        self.phases[phase] -= number * self._window_pages
        self._pages_per_cycle -= number * self._window_pages

    def num_dropped(self, num_steps: int) -> int:
        """Window blocks that the next steps give back; no sequence crosses before the last step."""
        cycles, rest = divmod(num_steps, self.block_size)
        first = self.steps % self.block_size
        end = first + rest
        beyond = max(0, end - self.block_size)
        return cycles * self._num_filled + sum(self._filled[first:end]) + sum(self._filled[:beyond])

    def drop_step(self, sequence: SequenceState, position: int) -> int:
        """The step in which a sequence on the clock gives back the window block of a position."""
        context = (position + self._most_window_blocks) * self.block_size
        return sequence.join_step + context - (sequence.num_tokens - 1)
