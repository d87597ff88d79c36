"""Which computed tokens of a sequence the next plan knows: only blocks of known ones are cached."""

from __future__ import annotations

from mist_sim.clients.decode.clock import DecodeClock
from mist_sim.clients.kv_cache.reusable_decodes import Answers
from mist_sim.clients.scheduling.overruns import Overruns
from mist_sim.clients.sequence_state import SequenceState


class KnownTokens:
    """Gives the number of a decode's tokens that plans know.

    A plan that is made ahead does not know the latest token of a decode. With drafts it does not
    know how many of the last step were accepted.

    is_behind: whether the next plan does not know the tokens of the latest step. lacks_tokens:
        whether the plan before it did not know those of the step before that one.
    """

    def __init__(
        self, clock: DecodeClock, answers: Answers, overruns: Overruns | None, *, is_late: bool
    ) -> None:
        """is_late: whether tokens that a step verified are cached with the next plan."""
        self.is_behind = self.lacks_tokens = False
        self._clock = clock
        self._answers = answers
        self._overruns = overruns
        self._is_late = is_late

    def of(
        self,
        sequence: SequenceState,
        num_computed: int,
        *,
        was_served: bool = False,
        in_prefill: bool = False,
    ) -> int:
        """Return how many of a sequence's computed tokens the next plan knows and can cache.

        was_served: whether it had its turn in that plan, which caches its computed tokens.
        in_prefill: whether more of its prompt is to be computed.
        """
        if self._answers.covers_next:
            is_known = in_prefill or not self._answers.is_ahead
            return num_computed - (0 if is_known else _num_last(sequence) or 1)
        if self._is_late and not was_served:
            return self.cacheable(sequence, num_computed)
        if self._overruns is not None:
            num_last = _num_last(sequence)
            if not (self.is_behind and num_last):
                return num_computed
            return num_computed - num_last + (was_served or not self.lacks_tokens)
        if was_served or not self.lacks_tokens or sequence.join_step == self._clock.steps:
            return num_computed
        return max(sequence.num_computed_tokens, num_computed - 1)

    def cacheable(self, sequence: SequenceState, num_computed: int) -> int:
        """Computed tokens that are cached of a sequence off the clock, for which no plan is made.

        Where verified tokens are cached with the next plan, those of its last step are not.
        """
        path = sequence.path
        if not self._is_late or path is None or not path.num_steps:
            return num_computed
        return min(num_computed, sequence.num_tokens - path.num_last)


def _num_last(sequence: SequenceState) -> int:
    """Return the tokens that its last step with drafts gave a sequence; 0 without any."""
    return sequence.path.num_last if sequence.path is not None else 0
