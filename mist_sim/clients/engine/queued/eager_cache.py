"""Answers of a pipeline in its prefix cache: they are on several clocks."""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from typing import TYPE_CHECKING

from mist_sim.clients.kv_cache.reusable_decodes import Answers

if TYPE_CHECKING:
    from mist_sim.clients.engine.queued.in_flight import InFlight
    from mist_sim.clients.sequence_state import SequenceState


class EagerAnswers(Answers):
    """The sequences that fill blocks of each content id; they are entered as they are filled."""

    state: InFlight

    def catch_up(self, keys: Iterable[Hashable]) -> bool:
        """Return that nothing is left to enter."""
        return False

    def note_step(self) -> None:
        """Enter blocks that the plan's decodes fill, as far as their token ids are known."""
        state = self.state
        context, group_of = state.group.clock.context, state.group_of
        self._enter_filled(
            {each: context(each) + 1 for each in self.writers if group_of.get(each) is state.group}
        )

    def note_return(self) -> None:
        """Enter blocks whose token ids are known now that a batch has returned."""
        if self.writers:
            contexts = self.state.contexts(self.state.group)
            self._enter_filled({each: contexts[each] for each in self.writers if each in contexts})

    def _enter_filled(self, contexts: dict[SequenceState, int]) -> None:
        """Enter blocks of sequences with so many tokens, without those on their way."""
        state = self.state
        for sequence in state.in_turn(list(contexts)) if len(contexts) > 1 else contexts:
            self.enter(sequence, contexts[sequence] - state.num_due(sequence))

    def enter(self, sequence: SequenceState, num_tokens: int) -> None:
        """Enter the blocks of so many tokens of a sequence, all of which are known."""
        chain = sequence.chain
        if chain is not None:
            num_full = min(num_tokens // self._block_size, chain.num_shared)
            if num_full > chain.num_held:
                self.cache.enter(chain, num_full)
