"""Sequences preempted in flight that come back before the tokens on their way have come.

So it is before 0.33 where steps are planned ahead. While such a sequence waits, its `num_tokens`
are those that have come, and its first piece ends with these. When it runs, they include those on
their way: later pieces compute these, too, and the last one gives a token, as of any prompt. In a
pipeline that staggers decodes, none follows the first before the sequence could decode again.

An answer whose last token is on its way comes back as well. No piece follows its first one if that
is the only token on its way; what it computes is discarded.

Source: `num_output_placeholders` in `Scheduler.schedule`, `vllm/v1/core/sched/scheduler.py`, which
a preemption leaves as they are.
"""

from __future__ import annotations

from mist_sim.clients.engine.queued.eager_cache import EagerAnswers
from mist_sim.clients.engine.queued.groups import Early, Pass
from mist_sim.clients.engine.queued.in_flight import InFlight
from mist_sim.clients.scheduling import StepPlan
from mist_sim.clients.sequence_state import SequenceState


class EarlyReturns(dict[SequenceState, Early]):
    """These sequences, each until a plan has it that knows all its tokens."""

    def __init__(self, state: InFlight) -> None:
        super().__init__()
        self._state = state

    def wait(self, sequence: SequenceState, giving: list[Pass], behind: list[Pass]) -> None:
        """Let a sequence wait that was preempted; its tokens include those on their way.

        giving: batches that give it these. behind: batches that give it tokens behind its last.
        """
        self[sequence] = Early([*giving, *behind], sequence.num_tokens + len(behind))
        self._set_known(sequence, sequence.num_tokens - len(giving))

    def come(self, found: Pass) -> None:
        """Note that the tokens of a batch have come."""
        state = self._state
        for sequence, early in list(self.items()):
            if found not in early.passes:
                continue
            if sequence in state.prefilling:
                self._know(sequence, early, sequence.num_computed_tokens - len(early.in_flight))
            elif sequence not in state.running:
                self._set_known(sequence, early.num_known)
                if not early.in_flight:
                    del self[sequence]

    def begin_plan(self, number: int) -> None:
        """Let prompts go on as far as the plan of a number computes them."""
        state = self._state
        for sequence, early in self.items():
            if sequence in state.prefilling:
                goes_on = self._goes_on(sequence, early, number)
                sequence.num_tokens = early.num_tokens if goes_on else sequence.num_computed_tokens
                state.kv_cache.answers.coming[sequence] = len(early.in_flight)

    def admit(self, plan: StepPlan) -> None:
        """Let the tokens of admitted sequences include those on their way."""
        for sequence in plan.admitted:
            if sequence in self:
                sequence.num_tokens = self[sequence].num_tokens

    def note(self, found: Pass) -> None:
        """Note a batch that was planned."""
        group, plan, state = found.group, found.plan, self._state
        for sequence, early in list(self.items()):
            is_piece = found.computes(sequence)
            is_decode = plan.decodes and state.group_of.get(sequence) is group
            if not (is_piece or (is_decode and sequence.join_step <= found.step)):
                continue
            if in_flight := early.in_flight:
                found.early[sequence] = in_flight
                num_named = min(sequence.num_computed_tokens, early.num_known)
                early.num_named = max(early.num_named, num_named)
            else:
                self.forget(sequence)

    def forget(self, sequence: SequenceState) -> Early | None:
        """Take and return the tokens on their way for a sequence, if any."""
        self._state.kv_cache.answers.coming.pop(sequence, None)
        return self.pop(sequence, None)

    def _set_known(self, sequence: SequenceState, num_tokens: int) -> None:
        """Note how many tokens a sequence that waits has, and so which blocks it can find."""
        sequence.num_tokens = num_tokens
        if sequence.chain is not None:
            sequence.chain.found = None

    def _goes_on(self, sequence: SequenceState, early: Early, number: int) -> bool:
        """Tell whether the plan of a number may compute a piece of a prompt that runs."""
        state = self._state
        if not (num_coming := len(early.in_flight)):
            return True
        num_final = sequence.num_final_tokens
        most = num_final if state.longest is None else min(num_final, state.longest)
        is_over = sequence.num_computed_tokens + 2 - num_coming >= most
        return not is_over and number >= early.passes[-1].number + state.stagger

    def _know(self, sequence: SequenceState, early: Early, num_tokens: int) -> None:
        """Let others find blocks of a prompt with so many tokens, all of which are known."""
        if num_tokens <= early.num_named:
            return
        early.num_named = num_tokens
        state, answers = self._state, self._state.kv_cache.answers
        if isinstance(answers, EagerAnswers):
            answers.enter(sequence, num_tokens)
        elif state.pages is not None and state.kv_cache.caches_prefixes:
            state.pages.know(sequence, num_tokens)
