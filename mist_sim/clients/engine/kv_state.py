"""The KV memory of a client's engines as routers see it, computed when they ask."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from typing import TYPE_CHECKING

from mist_sim.clients.sequence_state import SequenceState
from mist_sim.core.request import Request
from mist_sim.core.views import AnswerLengths, ContentWatcher
from mist_sim.core.visit import Visit

if TYPE_CHECKING:
    from mist_sim.clients.engine.stepped import SteppedEngines


class EngineKvState:
    """The `KvView` of a client with engines.

    block_size: tokens in a block. stays: the visits at the client, live.
    """

    def __init__(
        self, engines: SteppedEngines, block_size: int, stays: Mapping[Visit, SequenceState]
    ) -> None:
        self.block_size = block_size
        self._engines = engines
        self._stays = stays
        self._watcher: ContentWatcher | None = None

    def num_blocks(self) -> int:
        """KV blocks that requests hold, those for the step in flight included."""
        return sum([lane.core.num_in_use() for lane in self._engines.lanes])

    def num_tokens(self) -> int:
        """Tokens of running requests that have KV entries, as of the last step that ended."""
        return sum([lane.core.num_entries() for lane in self._engines.lanes])

    def num_remaining(self, answers: AnswerLengths) -> float:
        """Tokens that requests at the client may still emit, each at least 1."""
        left, means, overall = 0.0, answers.by_bits, answers.overall
        for visit, sequence in self._stays.items():
            num_new, lane = 0, sequence.lane
            if lane is not None:
                num_new = lane.core.tokens(sequence.slot) - sequence.num_prompt_tokens
                num_new -= sequence.num_before
            expected = means.get(visit.request.num_prompt_tokens.bit_length(), overall)
            left += max(1, expected - num_new)
        return left

    def prefix_tokens(self, request: Request) -> int:
        """Tokens of a request's prompt that are cached at the engine that would get it now."""
        core = self._engines.next_lane().core
        core.settle()
        return int(core.blocks.prefix_tokens(request.content, request.num_prompt_tokens))

    def watch(self, watcher: ContentWatcher) -> bool:
        """Tell a watcher the contents of the caches, and every change (see `KvView`).

        Not where layers are in groups: what one of them has cached is not what all have.
        """
        for visit in self._stays:
            _tell(visit.request, watcher.enter)
        self.tell(watcher)
        return self._tells

    def follow(self, engines: SteppedEngines) -> EngineKvState:
        """Return what reports on other engines from now on, whose caches are empty."""
        found = EngineKvState(engines, self.block_size, self._stays)
        if self._watcher is not None:
            for lane in self._engines.lanes:
                lane.core.blocks.cache.unwatch()
            found.tell(self._watcher)
        return found

    def tell(self, watcher: ContentWatcher) -> None:
        """Tell a watcher that knows the requests here what else is cached, now and later."""
        self._watcher = watcher
        for lane in self._engines.lanes if self._tells else ():
            if lane.caches_prefixes:
                lane.core.blocks.cache.watch(watcher)

    @property
    def _tells(self) -> bool:
        """Whether watchers can be told what is cached.

        Not where names of blocks cover the token behind them: their ids lie one token up. Nor
        above tiers, whose blocks count as cached.
        """
        lanes = [lane.core for lane in self._engines.lanes if lane.caches_prefixes]
        return not any(lane.is_paged or lane.blocks.covers_next or lane.has_tiers for lane in lanes)

    def accept(self, request: Request) -> None:
        """Note that the client takes a request, whose content its engines may compute from now on.

        Steps enter blocks in the caches at their end, so a watcher is told beforehand.
        """
        if self._watcher is not None:
            _tell(request, self._watcher.enter)

    def finish(self, request: Request) -> None:
        """Note that a request leaves the client."""
        if self._watcher is not None:
            _tell(request, self._watcher.leave)


def _tell(request: Request, note: Callable[[Hashable], None]) -> None:
    for content_id, _ in request.content:
        note(content_id)
