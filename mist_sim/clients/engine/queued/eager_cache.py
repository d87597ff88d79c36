"""Answers of a pipeline in its prefix cache: they are on several clocks."""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from typing import TYPE_CHECKING

from mist_sim.clients.kv_cache.reusable_decodes import Answers

if TYPE_CHECKING:
    from mist_sim.clients.engine.queued.state import QueuedState


class EagerAnswers(Answers):
    """The sequences that fill blocks of each content id; they are entered as they are filled."""

    state: QueuedState

    def catch_up(self, keys: Iterable[Hashable]) -> bool:
        """Return that nothing is left to enter."""
        return False

    def note_step(self) -> None:
        """Enter blocks that the plan's decodes fill, as far as their token ids are known."""
        self._enter_filled(ahead=1)

    def note_return(self) -> None:
        """Enter blocks whose token ids are known now that a batch has returned."""
        self._enter_filled(ahead=0)

    def _enter_filled(self, ahead: int) -> None:
        state = self.state
        writers = [each for each in self.writers if state.group_of.get(each) is state.group]
        for sequence in state.in_turn(writers) if len(writers) > 1 else writers:
            chain = sequence.chain
            if chain is None:
                continue
            num_tokens = state.group.clock.context(sequence) + ahead - len(state.giving(sequence))
            num_full = min(num_tokens // self._block_size, chain.num_shared)
            if num_full > chain.num_held:
                self.cache.enter(chain, num_full)
