"""Steps that are planned for decodes which have ended, since plans ahead know no drafts' outcome.

A step is planned when the step before it begins. Without drafts each decode gets one token a step,
so a plan knows which decodes end. With drafts a decode gets at least one token: a decode that needs
more than one also takes part in the next step, with all its drafts and their blocks. If it ends
with the step before, what the next one computes of it is lost; seat and blocks are free when that
is planned.

Source: `Scheduler.schedule` in `vllm/v1/core/sched/scheduler.py`, which leaves out a request that
is sure to reach `max_tokens` (0.14 to 0.33).
"""

from __future__ import annotations

from typing import NamedTuple

from mist_sim.clients.decode.speculative_clock import Speculation, SpeculativeClock
from mist_sim.clients.kv_cache.block_pool import BlockPool
from mist_sim.clients.kv_cache.reusable_decodes import Answers
from mist_sim.clients.sequence_state import SequenceState


class Overrun(NamedTuple):
    """A decode that has ended in a step that is planned for it.

    context: tokens that the cache holds for it, accepted ones behind its end included.
    num_blocks: those that it takes for the step.
    num_slots: tokens that it has memory for then.
    num_last: tokens that its last step gave it.
    """

    context: int
    num_blocks: int
    num_slots: int
    num_last: int


class Overruns:
    """The overruns of a lane, until the step planned for them is over."""

    def __init__(self, clock: SpeculativeClock, pool: BlockPool, speculation: Speculation) -> None:
        self._clock = clock
        self._pool = pool
        self._speculation = speculation
        self._found: dict[SequenceState, Overrun] = {}

    def __len__(self) -> int:
        return len(self._found)

    def begin(self, sequence: SequenceState, num_blocks: int) -> None:
        """Let a sequence that has just ended take part in the next step, unless its end was sure.

        num_blocks: those that it holds.
        """
        path = sequence.path
        num_last = path.num_last if path is not None else 0
        if path is None or num_last < 2:
            return
        num_slots = self._speculation.num_slots_behind(sequence.num_tokens - num_last)
        num_more = self._pool.blocks_for(num_slots) - num_blocks
        context = sequence.num_tokens - 1 + path.num_beyond
        self._found[sequence] = Overrun(context, num_more, num_slots, num_last)
        self._clock.begin_overrun(context, num_more)

    def of(self, sequence: SequenceState) -> Overrun | None:
        """Return the part of a sequence in the next step; None if it has none."""
        return self._found.get(sequence)

    def enter_known(self, answers: Answers) -> None:
        """Enter the blocks of tokens that the plan of the next step knows."""
        for sequence, overrun in self._found.items():
            answers.enter_known(sequence, sequence.num_tokens - overrun.num_last)

    def end_all(self, leaving: dict[SequenceState, tuple[int, int]], num_taken: int) -> int:
        """Take leaving sequences out of the next step, which gives back the blocks for it.

        leaving: (blocks, computed tokens) of each; these blocks are added. num_taken: blocks that
        the decodes took for the next step.
        Returns the blocks that they have taken now.
        """
        for sequence, (num_blocks, num_computed) in leaving.items():
            overrun = self.end(sequence)
            if overrun is not None and num_taken >= overrun.num_blocks:
                num_taken -= overrun.num_blocks
                leaving[sequence] = num_blocks + overrun.num_blocks, num_computed
        return num_taken

    def end(self, sequence: SequenceState) -> Overrun | None:
        """Take a sequence out of the next step; None if it has no part in it."""
        overrun = self._found.pop(sequence, None)
        if overrun is not None:
            self._clock.end_overrun(overrun.context, overrun.num_blocks)
        return overrun
