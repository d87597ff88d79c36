"""The parts that all batching policies share; a policy itself is one method, `schedule`."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass

from mist_sim.clients.scheduling.admission import Admitting
from mist_sim.clients.scheduling.order import ORDERS, Order
from mist_sim.clients.scheduling.plan import StepPlan
from mist_sim.clients.scheduling.preemption import PREEMPTIONS, Preempting, Preemption
from mist_sim.clients.sequence_state import SequenceState
from mist_sim.core.batch import StepBatch, StepGrowth
from mist_sim.errors import did_you_mean
from mist_sim.registry import Registry

SCHEDULERS = Registry("schedulers")


@dataclass(kw_only=True)
class Scheduler(Admitting, Preempting, ABC):
    """Base of the batching policies: everything but `schedule`, which decides about each step.

    A request is admitted when blocks for all its known tokens, less those that a prefix cache
    has and others hold, are free beside those that the running decodes need in the next step and
    the reserve; it keeps them while its prompt is chunked. When the decodes run short, a running
    sequence gives up its blocks and goes back to the queue; its tokens are computed again (vLLM's
    recompute), except those whose blocks are still cached. With `preemption: swap` its blocks are
    copied to host memory instead, if there is room, and back before it goes on; until all such
    sequences are back, in the order in which they went, no other is admitted (vLLM v0).

    max_num_seqs: sequences that may run at once, in scenarios by default what vLLM's server takes,
        1,024 on GPUs of 70 GiB and more but A100s and else 256, and never more than the
        max_num_batched_tokens that a scenario says, nor, with the chunked scheduler, than its
        tokens can verify drafts of (vLLM's name).
    order: which waiting request is admitted next, and who gives way.
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

    @abstractmethod
    def schedule(self, limit: int) -> StepPlan | None:
        """Admit, preempt and return the next steps, at most `limit`; None when idle.

        The members of the plan are fixed for all its steps: no sequence finishes before the
        last one, no waiting sequence could be admitted in between, and no block runs short.
        """

    def refusal(self, sequence: SequenceState) -> str | None:
        """Return why a sequence that arrives can never be served, or None."""
        return self.outgrown(sequence)

    def cannot_verify(self, num_drafts: int) -> str | None:
        """Return what it must have so that a step can verify so many drafts of every sequence.

        None: it has it.
        """
        return None

    def batch(self, plan: StepPlan) -> StepBatch:
        """Return what the first step of a plan computes."""
        prefills = plan.prefills
        chunks = tuple(
            [(new, seq.num_computed_tokens) for seq, new in prefills] if prefills else ()
        )
        return self.clock.batch(chunks) if plan.decodes else StepBatch(chunks)

    def growth(self, plan: StepPlan) -> StepGrowth:
        """Return what each step of a plan adds for the next one."""
        return self.clock.growth(plan.num_steps) if plan.decodes else StepGrowth()

    def update(
        self, plan: StepPlan, num_steps: int
    ) -> tuple[list[SequenceState], list[SequenceState]]:
        """Account for `num_steps` executed steps of a plan.

        Returns (emitted, finished): sequences whose prefill emitted a token at the end of the
        last step, and sequences that have all their tokens, decodes first.
        """
        pool, clock = self.pool, self.clock
        if num_steps > 1:  # blocks of the first step were entered by the plan
            for sequence, new in plan.prefills:
                self.kv_cache.compute_more(sequence, new, num_steps)
        if plan.decodes:
            num_blocks = clock.advance(num_steps)
            if num_blocks or self.kv_cache.drops:  # what windows left comes back with it
                self.kv_cache.grow(num_blocks)
        num_free = pool.num_free
        self.num_peak_blocks = pool.num_blocks - num_free
        finished = clock.pop_finished() if plan.decodes else []
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
            self.release()
            self._hold_back(len(finished), pool.num_free - num_free)
        return emitted, finished

    def _emit(self, sequence: SequenceState) -> bool:
        """Count the token that a prefill emitted; return whether it was the last."""
        sequence.num_tokens += 1
        if sequence.num_output_tokens < sequence.num_target_tokens:
            self.clock.join(sequence)
            return False
        context = sequence.num_computed_tokens
        self.kv_cache.free(sequence, self.pool.blocks_for(context), context)
        del self.running[sequence]
        return True

    def _steps_until_join(self, limit: int) -> int:
        """Steps, 1 or `limit`, of a plan made without admissions until who waits may join.

        Who has no room in the second step has none in those after it, which leave less.
        """
        return 1 if self.holds_back or self._may_join_second_step() else limit

    def _may_join_second_step(self) -> bool:
        num_free = self._num_admissible(self.clock.blocks_needed(2))
        if not self._has_seat():
            return False
        if self.swapped:
            return self._num_to_return(next(iter(self.swapped.values()))) <= num_free
        head = self.head()
        return head is not None and self.kv_cache.blocks_to_admit(head) <= num_free

    def _steps_until_change(self, limit: int) -> int:
        """Steps that the decodes can run before one changes or blocks run short."""
        clock = self.clock
        if limit == 1 or not clock.num_decodes:  # there is room for the next step
            return limit
        return clock.steps_within(self.pool.num_free, min(limit, clock.steps_to_change()))
