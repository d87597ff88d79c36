"""A prefix cache for answers that are on several clocks."""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from typing import TYPE_CHECKING

from mist_sim.clients.kv_cache.answers import Answers
from mist_sim.clients.kv_cache.block_pool import BlockPool
from mist_sim.clients.kv_cache.prefix_manager import PrefixCachingManager

if TYPE_CHECKING:
    from mist_sim.clients.engine.queued.state import QueuedState


class EagerAnswers(Answers):
    """Who fills blocks of which content ids, where all that is filled has been entered."""

    def catch_up(self, keys: Iterable[Hashable]) -> bool:
        """Return that there is nothing to enter."""
        return False


class EagerPrefixManager(PrefixCachingManager):
    """A prefix cache that several clocks fill: blocks of answers are entered as they are filled."""

    state: QueuedState

    def __init__(self, pool: BlockPool, *, uncached_first: bool = False) -> None:
        super().__init__(pool, uncached_first=uncached_first)
        self.answers = EagerAnswers(self.cache, pool.block_size)

    def note_step(self) -> None:
        """Enter what the decodes of the plan fill, as far as the ids of their tokens are known."""
        self._enter(ahead=1)

    def note_return(self) -> None:
        """Enter what is known now that a batch has returned."""
        self._enter(ahead=0)

    def _enter(self, ahead: int) -> None:
        state = self.state
        writers = [each for each in self.answers.writers if state.group_of.get(each) is state.group]
        for sequence in state.in_turn(writers) if len(writers) > 1 else writers:
            chain = sequence.chain
            if chain is None:
                continue
            num_tokens = state.group.clock.context(sequence) + ahead - len(state.giving(sequence))
            num_full = min(num_tokens // self.pool.block_size, chain.num_shared)
            if num_full > chain.num_held:
                self.cache.enter(chain, num_full)
