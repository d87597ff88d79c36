"""How waiting sequences come in: who is next, whether memory lets it, what is computed of it."""

from __future__ import annotations

from mist_sim.clients.scheduling.members import Members
from mist_sim.clients.scheduling.plan import StepPlan
from mist_sim.clients.sequence_state import SequenceState


class Admitting(Members):
    """A sequence is admitted with blocks for all its known tokens, never past one before it."""

    def would_admit(self, sequence: SequenceState, num_steps: int) -> bool:
        """Could the sequence that was just queued join after `num_steps` steps of the plan?

        True when in doubt; the plan made then decides.
        """
        return (
            self.head() is sequence
            and len(self.running) < self.max_num_seqs
            and self.kv_cache.fewest_blocks_to_admit(sequence)
            <= self._num_admissible(self.clock.blocks_needed(num_steps + 1))
        )

    def _admit_head(self, plan: StepPlan, max_new_tokens: int | None = None) -> int:
        """Admit who is next with at most `max_new_tokens` of its prompt (None: all of it).

        Those before it that have blocks in lower tiers get memory, and wait for these. Returns the
        tokens it got, 0 when memory or `max_num_seqs` keep it waiting, or nobody else waits.
        """
        sequence = self._next_head(plan)
        if sequence is None:
            return 0
        most = sequence.num_tokens if max_new_tokens is None else max_new_tokens
        return self._take_head(plan, sequence, most)

    def _take_head(self, plan: StepPlan, sequence: SequenceState, max_new_tokens: int) -> int:
        """Admit the head of the queue, which fits; return the tokens that it got."""
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

    def _fits(self, sequence: SequenceState) -> bool:
        """Tell whether memory and `max_num_seqs` let a waiting sequence in."""
        if not self._has_seat():
            return False
        num_blocks = self.kv_cache.blocks_to_admit(sequence)
        return num_blocks <= self._num_admissible(self.clock.blocks_needed_now())

    def _next_head(self, plan: StepPlan) -> SequenceState | None:
        """Return who is admitted next, if it fits; loads are started for those before it."""
        while (sequence := self.head()) is not None and self._fits(sequence):
            if self.loaded or not self.kv_cache.has_tiers:
                return sequence
            counts = self.kv_cache.start_load(sequence)
            if not counts:
                return sequence
            self.waiting.take()
            self.loading[sequence] = None
            plan.loads.append((sequence, counts))
        return None

    def _add_prefill(self, plan: StepPlan, sequence: SequenceState, num_new_tokens: int) -> int:
        """Let every step of a plan compute some of a prompt; return how many tokens."""
        plan.prefills.append((sequence, num_new_tokens))
        self.kv_cache.compute(sequence, sequence.num_computed_tokens + num_new_tokens)
        return num_new_tokens

    def _tokens_to_admit(self, sequence: SequenceState) -> int:
        """Tokens that have to be computed for a waiting sequence, as things are now."""
        return sequence.num_tokens - self.kv_cache.num_cached_tokens(sequence)
