"""Decodes whose blocks other requests may reuse: their full blocks enter the prefix cache.

In vLLM v1 a block enters the cache in the step that fills it. Here decodes run on a clock, and no
step looks at them one by one. So filled blocks are entered when another request looks up or enters
the same content, in the order of the steps that filled them.

Source: the end of `KVCacheManager.allocate_slots` in vLLM 0.19, `vllm/v1/core/kv_cache_manager.py`:
blocks are entered when a step is scheduled, as far as its tokens are known by then.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from typing import Protocol

from mist_sim.clients.prefixes.prefix_cache import Chain, PrefixCache
from mist_sim.clients.sequence_state import SequenceState


class AnswerClock(Protocol):
    """The decode clock of a lane; `steps`: decode steps done."""

    steps: int

    def context(self, sequence: SequenceState, num_steps: int = 0) -> int:
        """Tokens that the cache holds for a sequence on the clock, after more steps."""

    def step_with(self, sequence: SequenceState, num_tokens: int) -> int:
        """The first step before which the cache holds so many tokens of a sequence on the clock."""


class Answers:
    """The decodes that fill blocks of each content id.

    is_early: whether a step enters its blocks when it is planned, rather than when it ends.
    is_ahead: whether plans do not know the token of the latest step yet.
    planned: number of the latest planned step; None: none yet. known: number of the latest step
        whose plan knew all tokens.
    is_late: whether what a step verified of drafts is entered when the next one is planned.
    covers_next: whether the hash of a block covers the token behind it, so that no block is entered
        before that token is known. Its step has ended then.
    cache: where blocks are entered; without a prefix cache there is none, and no decode `begin`s.
    """

    cache: PrefixCache
    clock: AnswerClock

    def __init__(self, block_size: int) -> None:
        self.is_early = False
        self.is_late = False
        self.covers_next = False
        self.planned: int | None = None
        self.known: int | None = None
        self.is_ahead = False
        self._block_size = block_size
        self._writers: dict[Hashable, list[SequenceState]] = {}
        self._keys: dict[SequenceState, list[Hashable]] = {}

    def __bool__(self) -> bool:
        return bool(self._keys)

    @property
    def writers(self) -> Iterable[SequenceState]:
        """The sequences that fill such blocks while on the clock."""
        return self._keys

    def follow(self, clock: AnswerClock, *, is_early: bool, is_late: bool) -> None:
        """Get to know the clock of the decodes, and when its steps enter blocks."""
        self.clock = clock
        self.is_early = is_early and not self.covers_next
        self.is_late = is_late

    def num_hashed(self, sequence: SequenceState) -> int:
        """Tokens of a sequence that is not on the clock whose blocks have a hash."""
        return sequence.num_tokens - self.covers_next

    def note_step(self) -> None:
        """Note that the next decode step is planned, and has its blocks."""
        self.planned = self.clock.steps
        if not self.is_ahead:
            self.known = self.planned

    def forget_step(self) -> None:
        """Note that the planned step is lost."""
        self.planned = None

    def settle(self, sequence: SequenceState) -> None:
        """Enter the blocks filled by a decode that leaves the clock next."""
        chain = sequence.chain
        if self._keys and chain is not None and chain.is_entering:
            self.catch_up(chain.keys_until(chain.num_held + 1))

    def enter_known(self, sequence: SequenceState, num_tokens: int) -> None:
        """Enter the blocks of one off the clock for which a step is planned that knows its tokens.

        num_tokens: that it knows.
        """
        chain = sequence.chain
        if self.is_early and chain is not None and chain.is_entering:
            num_full = min(num_tokens // self._block_size, chain.num_shared)
            self.catch_up(chain.keys_until(num_full))
            self._enter(sequence, num_full)

    def begin(self, sequence: SequenceState) -> None:
        """Note that a sequence fills blocks from now on whenever it is on the clock."""
        chain = sequence.chain
        if chain is None or sequence in self._keys:
            return
        spans = chain.spans[chain.place :]
        self._keys[sequence] = keys = [key for key, end in spans if end <= chain.num_shared]
        for key in keys:
            self._writers.setdefault(key, []).append(sequence)

    def end(self, sequence: SequenceState) -> None:
        """Note that it does no more."""
        for key in self._keys.pop(sequence, ()):
            writers = self._writers[key]
            writers.remove(sequence)
            if not writers:
                del self._writers[key]

    def are_written(self, chain: Chain) -> bool:
        """Whether a sequence fills blocks of content that a chain has still to enter."""
        return any(key in self._writers for key, _ in chain.spans[chain.place :])

    def catch_up(self, keys: Iterable[Hashable]) -> bool:
        """Enter the blocks of these content ids filled so far; return whether there were any."""
        group: dict[SequenceState, int] = {}
        todo = [key for key in keys if key in self._writers]
        while todo:
            for sequence in self._writers.get(todo.pop(), ()):
                chain = sequence.chain
                if chain is not None and sequence not in group:
                    num_filled = self._num_filled(sequence, chain)
                    if num_filled > chain.num_held:
                        group[sequence] = num_filled
                        todo += chain.keys_until(num_filled)
        if len(group) > 1:
            self._enter_in_turn(group)
        else:
            for sequence, num_filled in group.items():
                self._enter(sequence, num_filled)
        return bool(group)

    def steps_until(self, key: Hashable, start: int, end: int) -> int | None:
        """Steps after which one more of the blocks [start, end) of an id is filled; None: unknown.

        It can be found then.
        """
        steps = [
            self.clock.step_with(sequence, self._num_tokens_until(max(start, chain.num_held)))
            for sequence in self._writers.get(key, ())
            if sequence.ticket and (chain := sequence.chain) and chain.num_held < end
        ]
        num_behind = int((self.is_early or self.covers_next) and self.is_ahead)
        return min(steps) + num_behind - self.clock.steps if steps else None

    def ahead(self, num_over: int, num_begun: int) -> list[tuple[SequenceState, int]]:
        """Return the sequences on the clock with their findable tokens, within a run of steps.

        num_over, num_begun: steps of the run that have ended and begun.
        """
        if (self.is_early or self.covers_next) and self.is_ahead:
            on_clock = [each for each in self._keys if each.ticket]
            return [(each, self._num_planned(each, num_over)) for each in on_clock]
        num_more = (num_begun - num_over) * self.is_early
        return [
            (sequence, self.clock.context(sequence, num_over) + num_more)
            for sequence in self._keys
            if sequence.ticket
        ]

    def _num_tokens_until(self, position: int) -> int:
        """Tokens that a decode holds before the step after which others find a block of it."""
        return (position + 1) * self._block_size - self.is_early

    def _num_planned(self, sequence: SequenceState, num_steps: int) -> int:
        """Tokens entered by the plan ahead of the step after so many more: those known by then.

        The outcome of the step before is not; the first step of all enters nothing.
        """
        if self.clock.steps + num_steps <= sequence.join_step:
            return self.clock.context(sequence, num_steps) - self.covers_next
        return self.clock.context(sequence, num_steps - 1) + (not self.covers_next)

    def _num_filled(self, sequence: SequenceState, chain: Chain) -> int:
        """Blocks that others can find by now; a sequence off the clock has entered all."""
        if not sequence.ticket:
            return 0
        if self.is_early:
            num_tokens = self._num_entered(sequence)
        elif self.covers_next and self.is_ahead:
            num_tokens = self._num_planned(sequence, 0)
        else:
            num_tokens = self.clock.context(sequence)
        return min(num_tokens // self._block_size, chain.num_shared)

    def _num_entered(self, sequence: SequenceState) -> int:
        """Tokens that the plans made so far have entered, or the steps that ended."""
        clock = self.clock
        now, context = clock.steps, clock.context
        in_step, has_joined = self.planned == now, sequence.join_step == now
        if self.is_ahead:
            is_planned = in_step or has_joined or self.known == now - 1
            return self._num_planned(sequence, 0) if is_planned else context(sequence, -1)
        if self.is_late and not (in_step or has_joined):
            return context(sequence, -1) + 1
        return context(sequence) + in_step

    def _enter_in_turn(self, group: dict[SequenceState, int]) -> None:
        """Enter several sequences' blocks by step, and within a step by order of joining."""
        fills = [
            (self._filled_at(sequence, number), sequence.ticket, number, sequence)
            for sequence, num_filled in group.items()
            if sequence.chain is not None
            for number in range(sequence.chain.num_held + 1, num_filled + 1)
        ]
        for _, _, number, sequence in sorted(fills, key=lambda fill: fill[:3]):
            self._enter(sequence, number)

    def _filled_at(self, sequence: SequenceState, num_blocks: int) -> int:
        """When it had filled so many blocks: twice the step, and one more if at its end."""
        num_tokens = num_blocks * self._block_size
        at_end = 2 * self.clock.step_with(sequence, num_tokens) - 1
        if not self.is_early:
            return at_end
        at_plan = 2 * self.clock.step_with(sequence, num_tokens - 1)
        return at_plan if self.is_late else min(at_plan, at_end)

    def _enter(self, sequence: SequenceState, num_blocks: int) -> None:
        if sequence.chain is not None:
            self.cache.enter(sequence.chain, num_blocks)
