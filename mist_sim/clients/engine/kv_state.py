"""What routers may know of the KV memory of a client's engines, computed when they ask."""

from __future__ import annotations

from collections.abc import Iterator

from mist_sim.clients.engine.lane import Lane
from mist_sim.clients.engine.replicas import Engines
from mist_sim.clients.sequence_state import SequenceState
from mist_sim.core.request import Request
from mist_sim.core.views import ContentWatcher
from mist_sim.core.visit import Visit
from mist_sim.environment import Environment


class EngineKvState:
    """The `KvView` of a client with engines.

    Runs of steps are computed ahead and accounted for at their end. So what they hold meanwhile
    follows by arithmetic from the number of their steps that have ended by now.

    block_size: tokens in a block.
    """

    def __init__(self, env: Environment, engines: Engines, block_size: int) -> None:
        self.block_size = block_size
        self._env = env
        self._engines = engines

    def num_blocks(self) -> int:
        """KV blocks that requests hold, as of the last step that ended."""
        return sum([_num_blocks(lane) for lane in self._lanes()])

    def num_tokens(self) -> int:
        """Tokens of running requests that have KV entries, as of the last step that ended."""
        return sum([_num_tokens(lane) for lane in self._lanes()])

    def prefix_tokens(self, request: Request) -> int:
        """Tokens of a request's prompt that the engine need not compute that would take it now."""
        if not request.content:
            return 0
        visit = Visit(request, (), self._env.now)
        probe = SequenceState(visit, request.num_prompt_tokens, 0)
        return self._engines.next_lane().scheduler.kv_cache.num_prefix_tokens(probe)

    def watch(self, watcher: ContentWatcher) -> bool:
        """Tell a watcher what the caches have (see `KvView`)."""
        return all(lane.scheduler.kv_cache.watch(watcher) for lane in self._lanes())

    def _lanes(self) -> Iterator[Lane]:
        return iter(self._engines.lanes)


def _num_blocks(lane: Lane) -> int:
    scheduler = lane.scheduler
    num_blocks = scheduler.pool.num_used
    plan, num_over = lane.engine.progress(lane)
    if num_over and plan is not None and plan.decodes:
        num_blocks += scheduler.clock.blocks_needed(num_over)
    return num_blocks


def _num_tokens(lane: Lane) -> int:
    scheduler = lane.scheduler
    num_tokens = sum([sequence.num_computed_tokens for sequence in scheduler.prefilling])
    plan, num_over = lane.engine.progress(lane)
    if not num_over or plan is None:
        return num_tokens + scheduler.clock.context_sum
    num_tokens += num_over * sum([num_new for _, num_new in plan.prefills])
    num_decode_steps = num_over if plan.decodes else 0
    return num_tokens + scheduler.clock.context_after(num_decode_steps)
