"""The parts that all batching policies share; a policy itself is one method, `schedule`."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque
from dataclasses import dataclass
from typing import Literal, NamedTuple, get_args

from mist_sim.clients.decode_clock import DecodeClock
from mist_sim.clients.kv_cache import KvCacheManager, SwapSpace
from mist_sim.clients.scheduling.order import ORDERS, Order, waiting_queue
from mist_sim.clients.sequence import Sequence
from mist_sim.clients.speculative_clock import Speculation, SpeculativeClock
from mist_sim.clients.speculative_window_clock import SpeculativeWindowClock
from mist_sim.clients.window_clock import WindowClock
from mist_sim.core.batch import StepBatch, StepGrowth
from mist_sim.errors import did_you_mean
from mist_sim.registry import Registry

SCHEDULERS = Registry("schedulers")

Preemption = Literal["recompute", "swap"]
PREEMPTIONS: tuple[str, ...] = get_args(Preemption)


class Swap(NamedTuple):
    """What is copied of a sequence before a step, to host memory or back.

    num_tokens: computed tokens in `num_blocks` blocks. in_prefill: whether more of its known
    tokens have to be computed.
    """

    sequence: Sequence
    num_blocks: int
    num_tokens: int
    in_prefill: bool
    is_out: bool


class StepPlan:
    """What an engine does next: `num_steps` steps of the same members.

    prefills: sequences in prefill with the prompt tokens that each gets in every step.
    decodes: whether the running decodes take part.
    admitted, preempted: sequences that came from and went back to the waiting queue.
    loads: sequences that got memory and wait for blocks in it, with their number by tier.
    dropped: sequences that can never run again, because they outgrew the whole cache.
    swaps: sequences whose blocks are copied to or from host memory before the first step. Those
        that come back are not among the admitted.
    swap_time: seconds that the copies before the first step take.
    """

    __slots__ = (
        "admitted",
        "decodes",
        "dropped",
        "loads",
        "num_steps",
        "preempted",
        "prefills",
        "swap_time",
        "swaps",
    )

    def __init__(self) -> None:
        self.num_steps = 1
        self.prefills: list[tuple[Sequence, int]] = []
        self.decodes = False
        self.admitted: list[Sequence] = []
        self.preempted: list[Sequence] = []
        self.loads: list[tuple[Sequence, list[int]]] = []
        self.dropped: list[Sequence] = []
        self.swaps: list[Swap] | None = None
        self.swap_time = 0.0

    @property
    def is_empty(self) -> bool:
        """Whether it changes nothing and computes nothing."""
        return not (self.prefills or self.decodes or self.loads or self.preempted or self.dropped)


@dataclass(kw_only=True)
class Scheduler(ABC):
    """Paged memory, and preemption.

    A request is admitted when blocks for all its known tokens, less those that a prefix cache
    has and others hold, are free beside those that the running decodes need in the next step and
    the reserve; it keeps them while its prompt is chunked. When the decodes run short, a running
    sequence gives up its blocks and goes back to the queue; its tokens are computed again (vLLM's
    recompute), except those whose blocks are still cached. With `preemption: swap` its blocks are
    copied to host memory instead, if there is room, and back before it goes on; until all such
    sequences are back, in the order in which they went, no other is admitted (vLLM v0).

    max_num_seqs: sequences that may run at once (vLLM's name; 256 is its server's default on
        GPUs below 70 GiB, on larger ones 1,024).
    order: which waiting request is admitted next, and who gives way (see `order.py`).
    preemption: what becomes of the blocks of a request that gives way: "recompute" forgets them,
        "swap" copies them to host memory and back, while the engine waits (vLLM v0's
        `preemption_mode`; v1 has recompute alone).
    """

    max_num_seqs: int = 256
    order: Order = "fcfs"
    preemption: Preemption = "recompute"

    def __post_init__(self) -> None:
        if self.max_num_seqs < 1:
            raise ValueError(f"max_num_seqs must be >= 1, got {self.max_num_seqs}")
        if self.order not in ORDERS:
            hint = did_you_mean(self.order, ORDERS)
            raise ValueError(f"order has no {self.order!r}{hint} Known: {', '.join(ORDERS)}")
        if self.preemption not in PREEMPTIONS:
            hint = did_you_mean(self.preemption, PREEMPTIONS)
            known = ", ".join(PREEMPTIONS)
            raise ValueError(f"preemption has no {self.preemption!r}{hint} Known: {known}")

    def start(self, kv_cache: KvCacheManager) -> None:
        """Begin with empty queues on KV memory."""
        self.kv_cache = kv_cache
        self.pool = pool = kv_cache.pool
        groups = pool.groups
        self.clock: DecodeClock = (
            WindowClock(pool.block_size, groups) if groups else DecodeClock(pool.block_size)
        )
        self.speculation: Speculation | None = None
        self.waiting = waiting_queue(self.order)
        self.running: dict[Sequence, None] = {}  # in order of admission
        self.prefilling: list[Sequence] = []
        self.loading: dict[Sequence, None] = {}  # have memory, and wait for blocks in it
        self.loaded: deque[Sequence] = deque()  # have these, and wait to be admitted
        self.swap_space: SwapSpace | None = None
        self.swapped: dict[Sequence, Swap] = {}  # their blocks lie there, the first to go first
        self.abandoned: set[Sequence] = set()  # given up; blocks still come into their memory
        self.num_peak_blocks = 0  # held in the last step of the latest run
        self.plans_ahead = False  # whether the next step is planned before this one ends
        self._num_left = self._num_left_blocks = 0  # what the last step freed, if so
        self._num_arrived = 0

    def swap_to(self, space: SwapSpace) -> None:
        """Preempt by swapping; called right after `start`."""
        self.swap_space = space

    def speculate(self, speculation: Speculation) -> None:
        """Let all decodes verify drafts; called right after `start`."""
        self.speculation = speculation
        block_size, groups = self.pool.block_size, self.pool.groups
        self.clock = (
            SpeculativeWindowClock(block_size, speculation, groups)
            if groups
            else SpeculativeClock(block_size, speculation)
        )

    @abstractmethod
    def schedule(self, limit: int) -> StepPlan | None:
        """Admit, preempt and return the next steps, at most `limit`; None when idle.

        The members of the plan are fixed for all its steps: no sequence finishes before the
        last one, no waiting sequence could be admitted in between, and no block runs short.
        """

    def refusal(self, sequence: Sequence) -> str | None:
        """Return why a sequence that arrives can never be served, or None."""
        return self.outgrown(sequence)

    def outgrown(self, sequence: Sequence) -> str | None:
        """Return how a sequence has more tokens than the whole cache holds, or None.

        One that has emitted tokens also needs the slots for drafts of its next step.
        """
        pool = self.pool
        num_slots = self._num_slots(sequence)
        num_blocks = pool.blocks_for(num_slots)
        if num_blocks <= pool.num_blocks:
            return None
        if pool.groups:
            return (
                f"{sequence.num_tokens} tokens take {num_blocks} blocks and exceed the KV cache "
                f"of {pool.num_blocks} blocks"
            )
        num_extra = num_slots - sequence.num_tokens
        drafts = f" and {num_extra} for drafts" if num_extra else ""
        return (
            f"{sequence.num_tokens} tokens{drafts} exceed the KV cache of "
            f"{pool.num_token_slots} tokens ({pool.num_blocks} blocks of {pool.block_size})"
        )

    def _num_slots(self, sequence: Sequence) -> int:
        """Tokens that a sequence off the clock needs memory for in the next step that it is in."""
        if self.speculation is not None and sequence.num_output_tokens:
            return self.speculation.num_slots(sequence.num_tokens)
        return sequence.num_tokens

    def cannot_verify(self, num_drafts: int) -> str | None:
        """Return what it must have so that a step can verify so many drafts of every sequence.

        None: it has it.
        """
        return None

    def add_request(self, sequence: Sequence) -> None:
        """Queue a sequence."""
        sequence.arrival = self._num_arrived
        self._num_arrived += 1
        self.kv_cache.add(sequence)
        self.waiting.add(sequence)

    def abort(self, sequence: Sequence) -> None:
        """Forget a sequence that waits or runs, and free its memory; no step in flight has it.

        While blocks come into its memory, that stays taken.
        """
        if sequence in self.running:
            num_free = self.pool.num_free
            num_tokens, num_computed = self._stop(sequence)
            self.kv_cache.free(sequence, self.pool.blocks_for(num_tokens), num_computed)
            if self.plans_ahead:
                self._num_left += 1
                self._num_left_blocks += self.pool.num_free - num_free
        elif sequence in self.swapped:
            del self.swapped[sequence]
        elif sequence in self.loading:
            del self.loading[sequence]
            self.abandoned.add(sequence)
            sequence.num_computed_tokens = 0
        elif sequence in self.loaded:
            self.loaded.remove(sequence)
            self.kv_cache.forget(sequence)
        else:
            self.waiting.remove(sequence)

    def finish_load(self, sequence: Sequence) -> bool:
        """Let a sequence be admitted whose blocks have come, unless it was given up.

        Returns whether it can be; otherwise its memory is free now.
        """
        if sequence in self.abandoned:
            self.abandoned.remove(sequence)
            self.kv_cache.forget(sequence)
            return False
        del self.loading[sequence]
        self.loaded.append(sequence)
        return True

    @property
    def num_waiting(self) -> int:
        """Sequences that wait to be admitted, those included whose blocks are on the way."""
        return len(self.waiting) + len(self.loading) + len(self.loaded) + len(self.swapped)

    def head(self) -> Sequence | None:
        """Return who is admitted next: those whose blocks were loaded first, then the queue.

        Nobody while sequences are swapped out.
        """
        if self.swapped:
            return None
        if self.loaded:
            return self.loaded[0]
        return self.waiting.head() if self.waiting else None

    def would_admit(self, sequence: Sequence, num_steps: int) -> bool:
        """Could the sequence that was just queued join after `num_steps` steps of the plan?

        True when in doubt; the plan made then decides.
        """
        return (
            self.head() is sequence
            and len(self.running) < self.max_num_seqs
            and self.kv_cache.fewest_blocks_to_admit(sequence)
            <= self._num_admissible(self.clock.blocks_needed(num_steps + 1))
        )

    def batch(self, plan: StepPlan) -> StepBatch:
        """Return what the first step of a plan computes."""
        batch = StepBatch()
        if plan.prefills:
            batch.chunks = tuple([(new, seq.num_computed_tokens) for seq, new in plan.prefills])
        if plan.decodes:
            self.clock.show(batch)
        return batch

    def growth(self, plan: StepPlan) -> StepGrowth:
        """Return what each step of a plan adds for the next one."""
        return self.clock.growth(plan.num_steps) if plan.decodes else StepGrowth()

    def update(self, plan: StepPlan, num_steps: int) -> tuple[list[Sequence], list[Sequence]]:
        """Account for `num_steps` executed steps of a plan.

        Returns (emitted, finished): sequences whose prefill emitted a token at the end of the
        last step, and sequences that have all their tokens, decodes first.
        """
        finished: list[Sequence] = []
        pool, clock = self.pool, self.clock
        if num_steps > 1:  # blocks of the first step were entered by the plan
            for sequence, new in plan.prefills:
                self.kv_cache.compute(sequence, sequence.num_computed_tokens + num_steps * new)
        if plan.decodes:
            self.kv_cache.grow(clock.advance(num_steps))
        num_free = pool.num_free
        self.num_peak_blocks = pool.num_blocks - num_free
        if plan.decodes:
            finished = clock.pop_finished()
            for sequence in finished:
                num_blocks = pool.blocks_for(clock.leave(sequence))
                self.kv_cache.free(sequence, num_blocks, sequence.num_tokens - 1)
                del self.running[sequence]
        emitted = []
        for sequence, num_new_tokens in plan.prefills:
            sequence.num_computed_tokens += num_steps * num_new_tokens
            if sequence.num_computed_tokens == sequence.num_tokens:
                self.prefilling.remove(sequence)
                emitted.append(sequence)
                if self._emit(sequence):
                    finished.append(sequence)
        if self.plans_ahead:
            self._num_left, self._num_left_blocks = len(finished), pool.num_free - num_free
        return emitted, finished

    @property
    def holds_back(self) -> bool:
        """Whether admissions cannot take yet what the last step freed."""
        return self._num_left > 0

    def release(self) -> None:
        """Let admissions take what the last step freed."""
        self._num_left = self._num_left_blocks = 0

    def _emit(self, sequence: Sequence) -> bool:
        """Count the token that a prefill emitted; return whether it was the last."""
        sequence.num_output_tokens += 1
        if sequence.num_output_tokens < sequence.num_target_tokens:
            self.clock.join(sequence)
            return False
        context = sequence.num_computed_tokens
        self.kv_cache.free(sequence, self.pool.blocks_for(context), context)
        del self.running[sequence]
        return True

    def _num_admissible(self, num_needed: int) -> int:
        """Blocks that an admission may take when the decodes need `num_needed`.

        The reserve is for running sequences; without any, it would only keep requests out.
        """
        num_reserved = self.pool.num_reserved if self.running else 0
        return self.pool.num_free - self._num_left_blocks - num_needed - num_reserved

    def _admit_head(self, plan: StepPlan, max_new_tokens: int) -> int:
        """Admit the head of the queue with at most `max_new_tokens` of its prompt.

        Returns the tokens it got, 0 when memory or `max_num_seqs` keep it waiting.
        """
        sequence = self.head()
        if sequence is None or not self._fits(sequence):
            return 0
        if self.loaded:
            self.loaded.popleft()
        else:
            self.waiting.take()
        self.kv_cache.admit(sequence)
        self.running[sequence] = None
        self.prefilling.append(sequence)
        plan.admitted.append(sequence)
        num_to_go = sequence.num_tokens - sequence.num_computed_tokens
        return self._add_prefill(plan, sequence, min(num_to_go, max_new_tokens))

    def _fits(self, sequence: Sequence) -> bool:
        """Tell whether memory and `max_num_seqs` let a waiting sequence in."""
        if len(self.running) + self._num_left >= self.max_num_seqs:
            return False
        num_blocks = self.kv_cache.blocks_to_admit(sequence)
        return num_blocks <= self._num_admissible(self.clock.blocks_needed_now())

    def _next_head(self, plan: StepPlan) -> Sequence | None:
        """Return who may be admitted next, after loads were started for those before it."""
        if not self.kv_cache.has_tiers:
            return self.head()
        while (sequence := self.head()) is not None and not self.loaded:
            if not self._fits(sequence):
                break
            counts = self.kv_cache.start_load(sequence)
            if not counts:
                break
            self.waiting.take()
            self.loading[sequence] = None
            plan.loads.append((sequence, counts))
        return sequence

    def _add_prefill(self, plan: StepPlan, sequence: Sequence, num_new_tokens: int) -> int:
        """Let every step of a plan compute some of a prompt; return how many tokens."""
        plan.prefills.append((sequence, num_new_tokens))
        self.kv_cache.compute(sequence, sequence.num_computed_tokens + num_new_tokens)
        return num_new_tokens

    def _tokens_to_admit(self, sequence: Sequence) -> int:
        """Tokens that have to be computed for a waiting sequence, as things are now."""
        return sequence.num_tokens - self.kv_cache.num_cached_tokens(sequence)

    def _make_room(self, plan: StepPlan) -> bool:
        """Preempt running sequences until the next decode step fits; return whether any was.

        Otherwise swapped ones come back.
        """
        clock, pool = self.clock, self.pool
        if clock.blocks_needed_now() <= pool.num_free:
            if self.swapped:
                self._swap_in(plan)
            return False
        while clock.blocks_needed_now() > pool.num_free:
            sequence = self.waiting.victim(self.running)
            in_prefill = self.swap_space is not None and sequence in self.prefilling
            num_tokens, num_computed = self._stop(sequence)
            num_blocks = pool.blocks_for(num_tokens)
            if self.outgrown(sequence):
                self.kv_cache.preempt(sequence, num_blocks, num_computed)
                plan.dropped.append(sequence)
                continue
            plan.preempted.append(sequence)
            if self.swap_space is not None:
                num_filled = pool.blocks_for(num_computed)
                swap = Swap(sequence, num_filled, num_computed, in_prefill, is_out=True)
                if self._swap_out(plan, swap, num_blocks):
                    continue
            self.kv_cache.preempt(sequence, num_blocks, num_computed)
            self.waiting.give_back(sequence)
        return True

    def _swap_out(self, plan: StepPlan, swap: Swap, num_blocks: int) -> bool:
        """Copy a preempted sequence to host memory; return False when there is no room.

        num_blocks: those that it holds.
        """
        num_used = sum([each.num_blocks for each in self.swapped.values()])
        if self.swap_space is None or num_used + swap.num_blocks > self.swap_space.num_blocks:
            return False
        self.kv_cache.swap_out(swap.sequence, num_blocks, swap.num_tokens)
        self.swapped[swap.sequence] = swap
        plan.swaps = [*(plan.swaps or ()), swap]
        return True

    def _swap_in(self, plan: StepPlan) -> None:
        """Let swapped sequences go on, in the order in which they went, while they fit."""
        swaps = []
        for sequence, swap in self.swapped.items():
            num_seqs = len(self.running) + self._num_left
            num_needed = self.pool.blocks_for(
                sequence.num_tokens if swap.in_prefill else self._num_slots(sequence)
            )
            free = self._num_admissible(self.clock.blocks_needed_now())
            if num_seqs >= self.max_num_seqs or num_needed > free:
                break
            num_blocks = num_needed if swap.in_prefill else swap.num_blocks
            self.kv_cache.swap_in(sequence, num_blocks, swap.num_tokens)
            self.running[sequence] = None
            if swap.in_prefill:
                self.prefilling.append(sequence)
            else:
                self.clock.join(sequence)
            swaps.append(swap._replace(is_out=False))
        for swap in swaps:
            del self.swapped[swap.sequence]
        plan.swaps = swaps or None

    def _stop(self, sequence: Sequence) -> tuple[int, int]:
        """Take a running sequence out of the batch; its blocks are for the caller to free.

        Returns the tokens that it has blocks for, and how many of them are computed.
        """
        del self.running[sequence]
        if sequence in self.prefilling:
            self.prefilling.remove(sequence)
            return sequence.num_tokens, sequence.num_computed_tokens
        num_tokens = self.clock.leave(sequence)
        return num_tokens, sequence.num_tokens - 1

    def _steps_until_change(self, limit: int) -> int:
        """Steps that the decodes can run before one changes or blocks run short."""
        clock = self.clock
        if not clock.num_decodes:
            return limit
        return clock.steps_within(self.pool.num_free, min(limit, clock.steps_to_change()))
