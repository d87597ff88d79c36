"""The decode clock of speculative decoding: a step gives each sequence one token or more.

The number of tokens in every step of a sequence is drawn before it joins (`draft_paths.py`). So its
contributions to contexts and blocks are known, and are added to sums over the clock's next steps
when it joins. A run needs only a difference of two sums or a slice of them, and a finish is a step
number, as without speculation.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from mist_sim.clients.decode.clock import DecodeClock
from mist_sim.clients.draft_paths import DraftPath
from mist_sim.clients.sequence_state import SequenceState
from mist_sim.core.batch import StepBatch, StepGrowth

Vector = NDArray[np.int64]

_FIRST_HORIZON = 1024  # steps; grows with the longest path


@dataclass(frozen=True, slots=True)
class Speculation:
    """Speculative decoding, as the scheduler needs it.

    num_drafts: draft tokens per decode and step.
    num_lookahead_tokens: additional slots that a drafting model writes to.
    max_model_len: limit of a sequence's slots, tokens; None: no limit.
    draw: returns the path of a request (see `DraftPaths.draw`).
    plans_ahead: whether a step is planned before the outcome of the step before it is known.
    """

    num_drafts: int
    num_lookahead_tokens: int
    max_model_len: int | None
    draw: Callable[[int, int], Vector]
    plans_ahead: bool = False

    @property
    def num_extra_slots(self) -> int:
        """Tokens that memory is kept for in a step, beside the context and the newest one."""
        return self.num_drafts + self.num_lookahead_tokens

    def num_slots(self, num_tokens: int) -> int:
        """Tokens that a decode keeps memory for in the step that computes its last of so many."""
        return self._capped(num_tokens + self.num_extra_slots)

    def num_slots_behind(self, num_tokens: int) -> int:
        """Tokens that it keeps memory for in a step that is planned before the one before ends.

        num_tokens: known tokens, without those of that step, which counts as if it gave most.
        """
        return self._capped(num_tokens + 1 + self.num_drafts + self.num_extra_slots)

    def slots(self, context: int, stay: Vector, num_ahead: int = 0) -> Vector:
        """Return the slots of a decode after 0, 1, 2, ... steps of a stay.

        context: tokens that the cache held for it before the stay. stay: tokens emitted after each
            step. num_ahead: tokens behind the context for which its prompt took memory.
        """
        slots = np.empty_like(stay)
        slots[0] = context + num_ahead
        slots[1:2] = self._first_slots(context, num_ahead)
        if self.plans_ahead:
            behind = context + 2 + self.num_drafts + self.num_extra_slots
            np.add(stay[:-2], behind, out=slots[2:])
        else:
            np.add(stay[:-1], context + 1 + self.num_extra_slots, out=slots[1:])
        if self.max_model_len is not None:
            np.minimum(slots, self.max_model_len, out=slots)
        return slots

    def first_slots(self, context: int, num_ahead: int) -> int:
        """Return the slots of the first step after a prompt, as `slots` does."""
        return self._capped(self._first_slots(context, num_ahead))

    def _first_slots(self, context: int, num_ahead: int) -> int:
        """Return them without the limit.

        A prompt with more than the lookahead behind it had drafts (`EngineRules.pads_prompts`); a
        plan made ahead does not know that they are refused.
        """
        is_padded = self.plans_ahead and num_ahead > self.num_lookahead_tokens
        return context + 1 + self.num_extra_slots + is_padded * self.num_drafts

    def slots_ahead(self, context: int, num_ahead: int) -> int:
        """Return the tokens for which a prompt has memory once `context` of them are computed."""
        return self._capped(context + num_ahead)

    def _capped(self, num_slots: int) -> int:
        return num_slots if self.max_model_len is None else min(num_slots, self.max_model_len)


class SpeculativeClock(DecodeClock):
    """The running decodes of one engine with speculative decoding.

    A sequence keeps memory for all slots of its last step; slots of rejected drafts are used by the
    next step (vLLM v1's `allocate_slots`). If steps are planned ahead, a step also has slots for
    all drafts of the step before, since it is not known yet which of them are accepted.
    """

    __slots__ = (
        "_blocks_by",
        "_first",
        "_longest_by",
        "_overrun_contexts",
        "_speculation",
        "_tokens_by",
    )

    def __init__(self, block_size: int, speculation: Speculation) -> None:
        super().__init__(block_size)
        self.num_queries_each = 1 + speculation.num_drafts
        self._speculation = speculation
        # running sums before step _first + i of tokens and blocks; only differences count
        self._first = 0
        self._tokens_by: Vector = np.zeros(_FIRST_HORIZON, dtype=np.int64)
        self._blocks_by: Vector = np.zeros(_FIRST_HORIZON, dtype=np.int64)
        # the longest context before step _first + i, without decodes that have ended
        self._longest_by: Vector | None = None
        self._overrun_contexts: list[int] = []

    @property
    def tells_longest(self) -> bool:
        """Whether it follows the longest context of every step."""
        return self._longest_by is not None

    def watch_longest(self) -> None:
        """Follow the longest context, step by step, from now on."""
        self._longest_by = np.zeros_like(self._tokens_by)

    def join(self, sequence: SequenceState) -> None:
        """Add a sequence; its path says how many tokens each step will give it."""
        context = sequence.num_tokens - 1  # the newest token is not in the cache yet
        to_go = sequence.num_final_tokens - sequence.num_tokens
        stay = self._path(sequence, to_go).begin(to_go)
        self._enter(sequence, context, len(stay) - 1)
        start = self._place(len(stay))
        add_ahead(self._tokens_by, start, stay)
        add_ahead(self._blocks_by, start, self._blocks(context, stay, sequence.num_ahead))
        if self._longest_by is not None:
            _raise_to(self._longest_by, start, context + stay[:-1])

    def leave(self, sequence: SequenceState) -> int:
        """Take a sequence off the clock; return its slots, those of drafts included."""
        path = self._path(sequence, 0)
        stay, done = path.stay, self.steps - sequence.join_step
        first_context = sequence.num_tokens - 1
        sequence.num_tokens += path.end(done)
        self._exit(sequence, sequence.num_tokens - 1)
        if done < len(stay) - 1:  # it was to stay longer
            start = self.steps - self._first
            blocks = self._blocks(first_context, stay, sequence.num_ahead)
            add_ahead(self._tokens_by, start, stay[done] - stay[done:])
            add_ahead(self._blocks_by, start, blocks[done] - blocks[done:])
            if self._longest_by is not None:
                self._find_longest(self._longest_by)
        num_slots = self._slots(sequence, first_context, stay, done)
        sequence.num_ahead = 0
        return num_slots

    def _find_longest(self, longest_by: Vector) -> None:
        """Find the longest contexts anew, since a sequence has left before its end."""
        start = self.steps - self._first
        longest_by[start:] = 0
        for _, ticket, sequence in self.heap:
            if sequence.ticket == ticket:
                ahead = self._path(sequence, 0).stay[self.steps - sequence.join_step : -1]
                _raise_to(longest_by, start, sequence.num_tokens - 1 + ahead)

    def slots(self, sequence: SequenceState, num_steps: int = 0) -> int:
        """Tokens that it has memory for in that step: its context, its last token and drafts."""
        stay, done = self._path(sequence, 0).stay, self.steps - sequence.join_step
        return self._slots(sequence, sequence.num_tokens - 1, stay, done + num_steps + 1)

    def slots_held(self, sequence: SequenceState) -> int:
        """Tokens that it had memory for in its last step."""
        stay, done = self._path(sequence, 0).stay, self.steps - sequence.join_step
        return self._slots(sequence, sequence.num_tokens - 1, stay, done)

    def _slots(self, sequence: SequenceState, context: int, stay: Vector, done: int) -> int:
        """Return the slots of a sequence after so many steps of a stay that began at a context."""
        speculation = self._speculation
        if not done:
            return speculation.slots_ahead(context, sequence.num_ahead)
        if done > 1 and speculation.plans_ahead:
            return speculation.num_slots_behind(context + stay.item(done - 2) + 1)
        if done == 1:
            return speculation.first_slots(context, sequence.num_ahead)
        return speculation.num_slots(context + stay.item(done - 1) + 1)

    def context(self, sequence: SequenceState, num_steps: int = 0) -> int:
        """Tokens in the cache: those it joined with, and what its path gave since."""
        stay = self._path(sequence, 0).stay
        return sequence.num_tokens - 1 + stay.item(self.steps + num_steps - sequence.join_step)

    def step_with(self, sequence: SequenceState, num_tokens: int) -> int:
        """The first step before which its path has given so many tokens."""
        stay = self._path(sequence, 0).stay
        return sequence.join_step + int(stay.searchsorted(num_tokens - (sequence.num_tokens - 1)))

    def context_after(self, num_steps: int) -> int:
        """Read the context of all sequences from the sums by step."""
        tokens, start = self._tokens_by, self.steps - self._first
        return self.context_sum + tokens.item(start + num_steps) - tokens.item(start)

    def batch(self, chunks: tuple[tuple[int, int], ...]) -> StepBatch:
        """Return the next step's batch, with its drafts and, if followed, its longest context."""
        batch = super().batch(chunks)
        batch.num_drafts = self._speculation.num_drafts
        if self._longest_by is not None:
            longest = self._longest_by.item(self.steps - self._first)
            batch.longest_context = max(longest, *self._overrun_contexts, 0)
        return batch

    def growth(self, num_steps: int) -> StepGrowth:
        """Return the batch's growth; with decodes that have ended there is one step only."""
        start = self.steps - self._first
        tokens, longest = self._tokens_by, self._longest_by
        growth = StepGrowth(tokens[start : start + num_steps] - tokens[start])
        if longest is not None:
            growth.longest_context = longest[start : start + num_steps] - longest[start]
        return growth

    def blocks_needed_now(self) -> int:
        """Blocks that the next step takes, from the sums by step."""
        blocks, start = self._blocks_by, self.steps - self._first
        return blocks.item(start + 1) - blocks.item(start)

    def blocks_needed(self, num_steps: int) -> int:
        """Blocks that the next `num_steps` steps take, from the sums by step."""
        blocks, start = self._blocks_by, self.steps - self._first
        last = min(start + num_steps, len(blocks) - 1)
        return blocks.item(last) - blocks.item(start)

    def steps_within(self, num_free_blocks: int, limit: int) -> int:
        """Steps, at most `limit`, whose blocks, those of drafts included, are free."""
        if self.blocks_needed(limit) <= num_free_blocks:
            return limit
        start = self.steps - self._first
        ahead = self._blocks_by[start : start + limit]
        return int(ahead.searchsorted(ahead[0] + num_free_blocks, side="right")) - 1

    def steps_until(self, num_free_blocks: int, limit: int) -> int:
        """Steps, at most `limit`, until a sequence ends or the free blocks are used up."""
        return self.steps_within(num_free_blocks, min(limit, self.steps_to_change()))

    def advance(self, num_steps: int) -> int:
        """Let every sequence get the tokens of its next steps; return the KV blocks they took."""
        num_blocks = self.blocks_needed(num_steps)
        start = self.steps - self._first
        tokens = self._tokens_by[start : start + num_steps + 1]
        self.step_tokens = tokens[1:] - tokens[:-1]
        self.steps += num_steps
        self.context_sum += tokens.item(num_steps) - tokens.item(0)
        return num_blocks

    def _path(self, sequence: SequenceState, num_tokens: int) -> DraftPath:
        """Return a sequence's path; the first time, draw it for so many tokens."""
        if sequence.path is None:
            request_id = sequence.visit.request.request_id
            sequence.path = DraftPath(self._speculation.draw(request_id, num_tokens))
        return sequence.path

    def _blocks(self, context: int, stay: Vector, num_ahead: int = 0) -> Vector:
        """Return the blocks taken by 0, 1, 2, ... steps of a stay."""
        blocks = self._blocks_held(context, stay, num_ahead)
        blocks -= blocks[0]
        return blocks

    def _blocks_held(self, context: int, stay: Vector, num_ahead: int = 0) -> Vector:
        """Return the blocks held after 0, 1, 2, ... steps of a stay."""
        blocks, size = self._speculation.slots(context, stay, num_ahead), self.block_size
        blocks += size - 1
        blocks //= size
        return blocks

    def begin_overrun(self, context: int, num_blocks: int) -> None:
        """Add a decode that has ended to the next step, which was planned before its end was known.

        context: tokens that the cache holds for it. num_blocks: those it takes for the step.
        """
        self.num_decodes += 1
        self.context_sum += context
        self._overrun_contexts.append(context)
        self._blocks_by[self.steps - self._first + 1 :] += num_blocks

    def end_overrun(self, context: int, num_blocks: int) -> None:
        """Remove a decode that `begin_overrun` added."""
        self.num_decodes -= 1
        self.context_sum -= context
        self._overrun_contexts.remove(context)
        self._blocks_by[self.steps - self._first + 1 :] -= num_blocks

    def _place(self, num_steps: int) -> int:
        """Return the index of the next step in the vectors, with so many steps from it on."""
        start = self.steps - self._first
        if start + num_steps < len(self._tokens_by):
            return start
        size = max(_FIRST_HORIZON, 2 * num_steps)
        self._tokens_by = moved(self._tokens_by[start:], size)
        self._blocks_by = moved(self._blocks_by[start:], size)
        if self._longest_by is not None:
            self._longest_by = moved(self._longest_by[start:], size)
        self._first = self.steps
        return 0


def add_ahead(sums: Vector, start: int, more: Vector) -> None:
    """Add running sums from index `start` on; after their end the last value is added."""
    end = start + len(more)
    sums[start:end] += more
    sums[end:] += more[-1]


def _raise_to(longest: Vector, start: int, contexts: Vector) -> None:
    """Raise the longest contexts from index `start` on to a sequence's, where that is longer."""
    ahead = longest[start : start + len(contexts)]
    np.maximum(ahead, contexts, out=ahead)


def moved(ahead: Vector, size: int) -> Vector:
    """Return running sums of length `size`: `ahead`, continued with its last value."""
    sums: Vector = np.full(size, ahead[-1])
    sums[: len(ahead)] = ahead
    return sums
