"""Which computed tokens of a sequence the next plan knows: only blocks of known ones are cached."""

from __future__ import annotations

from mist_sim.clients.decode.clock import DecodeClock
from mist_sim.clients.scheduling.overruns import Overruns
from mist_sim.clients.sequence_state import SequenceState


class KnownTokens:
    """Tells how many tokens of a decode the plans know.

    A plan that is made ahead does not know the latest token of a decode. With drafts it does not
    know how many of the last step were accepted.

    is_behind: whether the next plan does not know the tokens of the latest step. lacks_tokens:
        whether the plan before it did not know those of the step before that one.
    """

    def __init__(self, clock: DecodeClock, overruns: Overruns | None, *, is_late: bool) -> None:
        """is_late: whether tokens that a step verified are cached with the next plan."""
        self.is_behind = self.lacks_tokens = False
        self._clock = clock
        self._overruns = overruns
        self._is_late = is_late

    def of(self, sequence: SequenceState, num_computed: int, *, was_served: bool = False) -> int:
        """Return how many of a sequence's computed tokens the next plan knows and can cache.

        was_served: whether it had its turn in that plan, which caches its computed tokens.
        """
        if self._is_late and not was_served:
            return self.cacheable(sequence, num_computed)
        if self._overruns is not None:
            path = sequence.path
            if not self.is_behind or path is None or not path.num_last:
                return num_computed
            return num_computed - path.num_last + (was_served or not self.lacks_tokens)
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
        return min(num_computed, sequence.num_tokens - path.step_tokens.item(-1))
