"""Prefetching: entries return from the host's buffer while prompts are computed (Seesaw 5.2).

The paper's prefetcher runs while the GPUs compute prompts or answers, as long as there are free
slots. Prefetched entries have the form of the layout for answers, so they stay in place when the
weights change. Until then they do not get in the way: the next prompts take their blocks first.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import inf

from mist_sim.clients.scheduling import LaneState, StepPlan
from mist_sim.clients.scheduling.resuming import begin_return


class Prefetched:
    """Entries that are on the GPUs for the layout of answers, or on their way there.

    num_lanes, num_blocks: lanes of that layout, and blocks of each. When the layouts change, each
        returning sequence goes to the lane with room that has the fewest answers.
    """

    def __init__(self, num_lanes: int, num_blocks: int) -> None:
        self._num_lanes, self._num_blocks = num_lanes, num_blocks
        self._used = self._largest = 0

    def begin(self, lanes: Sequence[LaneState]) -> None:
        """Begin to compute prompts beside the answers that stay on the GPUs."""
        self._used = self._largest = 0
        for lane in lanes:
            for sequence in lane.running:
                self._count(lane.pool.blocks_for(sequence.num_tokens))

    def bring(self, lane: LaneState, plan: StepPlan, max_num_batched_tokens: int | None) -> None:
        """Bring entries back to blocks of a lane, in the order in which they left.

        Blocks for the next step of prompts stay free. Everything brought back also fits into the
        lanes of the other layout, in whatever order it goes there.
        """
        num_kept = _blocks_of_next_prompts(lane, max_num_batched_tokens)
        while lane.swapped:
            sequence, swap = next(iter(lane.swapped.items()))
            num_blocks = lane.needs.to_return(swap)
            if sequence in lane.swaps.going or not self._has_place(num_blocks):
                return
            num_needed = lane.clock.blocks_needed_now() + lane.coming.num_promised + num_kept
            if num_blocks > lane.num_admissible(num_needed):
                return
            begin_return(lane, plan, sequence, swap)
            self._count(num_blocks)

    def _count(self, num_blocks: int) -> None:
        self._used += num_blocks
        self._largest = max(self._largest, num_blocks)

    def _has_place(self, num_blocks: int) -> bool:
        """Tell whether the lanes of the other layout can take that many more blocks, in any order.

        One of b blocks finds no place when each of n lanes has less than b free of its N, and so
        n (N - b + 1) blocks are taken by others. That cannot be while all take less than that and b
        together, for the largest b.
        """
        largest = max(self._largest, num_blocks)
        most = self._num_lanes * (self._num_blocks - largest + 1) + largest
        return self._used + num_blocks < most


def _blocks_of_next_prompts(lane: LaneState, max_num_batched_tokens: int | None) -> int:
    """Return the blocks that a step takes for the prompts that wait, at most."""
    budget = max_num_batched_tokens or inf
    num_blocks = 0
    for number, sequence in enumerate(lane.waiting):
        if budget <= 0 or number == lane.max_num_seqs:
            break
        num_blocks += lane.pool.blocks_for(sequence.num_tokens)
        budget -= sequence.num_tokens
    return num_blocks
