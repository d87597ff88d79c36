"""The KV memory of a client's engines as routers see it, computed when they ask."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from typing import Any

from mist_sim.clients.engine.lane import Lane
from mist_sim.clients.kv_cache.manager import Ahead
from mist_sim.clients.scheduling.page_turns import serve_steps
from mist_sim.clients.scheduling.planned_steps import blocks_after_first
from mist_sim.clients.sequence_state import Home, SequenceState
from mist_sim.core.answers import AnswerLengths
from mist_sim.core.request import Request
from mist_sim.core.views import ContentWatcher
from mist_sim.core.visit import Visit
from mist_sim.environment import Environment


class EngineKvState:
    """The `KvView` of a client with engines.

    Runs of steps are accounted for at their end. What they hold in between is computed from the
    number of their steps that have ended by now.

    block_size: tokens in a block. stays: the visits at the client, live.
    """

    def __init__(
        self,
        env: Environment,
        engines: Any,
        block_size: int,
        stays: Mapping[Visit, SequenceState],
    ) -> None:
        self.block_size = block_size
        self._env = env
        self._engines = engines
        self._stays = stays
        self._sees_prefixes = False
        self._watcher: ContentWatcher | None = None

    def num_blocks(self) -> int:
        """KV blocks that requests hold.

        Includes blocks for the step in flight if they are taken when it is planned; otherwise as of
        the last step that ended.
        """
        lanes = self._engines.lanes
        if len(lanes) == 1:  # as most often, and routers ask for every request and client
            return _num_blocks(lanes[0])
        return sum([_num_blocks(lane) for lane in lanes])

    def num_tokens(self) -> int:
        """Tokens of running requests that have KV entries, as of the last step that ended."""
        return sum([_num_tokens(lane) for lane in self._engines.lanes])

    def num_remaining(self, answers: AnswerLengths) -> float:
        """Tokens that requests at the client may still emit, each at least 1."""
        clocks: dict[Home | None, tuple[Callable[[SequenceState, int], int], int]] = {}
        for lane in self._engines.lanes:
            plan, num_over = lane.engine.steps_over(lane)
            num_steps = num_over if plan is not None and plan.decodes else 0
            clocks[lane] = lane.state.clock.context, num_steps
        means, overall = answers.by_bits, answers.overall
        left = 0.0
        for visit, sequence in self._stays.items():  # much work, so no call more than needed
            num_tokens = sequence.num_tokens
            if sequence.ticket:
                context, num_steps = clocks[sequence.lane]
                num_tokens = context(sequence, num_steps) + 1
            num_new = num_tokens - sequence.num_prompt_tokens - sequence.num_before
            expected = means.get(visit.request.num_prompt_tokens.bit_length(), overall)
            left += max(1, expected - num_new)
        return left

    def prefix_tokens(self, request: Request) -> int:
        """Tokens of a request's prompt that are cached at the engine that would get it now."""
        if not request.content:
            return 0
        self.see_prefixes()
        visit = Visit(request, (), self._env.now)
        probe = SequenceState(visit, request.num_prompt_tokens, 0)
        lane = self._engines.next_lane()
        return int(lane.state.kv_cache.num_prefix_tokens(probe, _ahead(lane)))

    def watch(self, watcher: ContentWatcher) -> bool:
        """Tell a watcher the contents of the caches, and every change (see `KvView`)."""
        self.see_prefixes()
        self._watch_stays(watcher)
        return all(lane.state.kv_cache.watch(watcher) for lane in self._engines.lanes)

    def _watch_stays(self, watcher: ContentWatcher) -> None:
        """Tell a watcher of the contents of the requests that are here, and come and go."""
        for visit in self._stays:
            _tell(visit.request, watcher.enter)
        self._watcher = watcher

    def follow(self, engines: Any) -> EngineKvState:
        """Return what reports on other engines from now on, whose caches are empty."""
        found: EngineKvState = engines.kv_state(self._env, self.block_size, self._stays)
        if self._sees_prefixes:
            found.see_prefixes()
        if self._watcher is not None:
            self._unwatch()
            found.tell(self._watcher)
        return found

    def _unwatch(self) -> None:
        for lane in self._engines.lanes:
            lane.state.kv_cache.unwatch()

    def tell(self, watcher: ContentWatcher) -> None:
        """Tell a watcher that knows the requests here what else is cached, now and later."""
        self._watcher = watcher
        for lane in self._engines.lanes:
            lane.state.kv_cache.watch(watcher)

    def accept(self, request: Request) -> None:
        """Note that the client takes a request, whose content its engines may compute from now on.

        Runs enter blocks in the caches at their end, so a watcher is told beforehand.
        """
        if self._watcher is not None:
            _tell(request, self._watcher.enter)

    def finish(self, request: Request) -> None:
        """Note that a request leaves the client."""
        if self._watcher is not None:
            _tell(request, self._watcher.leave)

    def see_prefixes(self) -> None:
        """Make lanes whose caches cannot predict a run's effect compute one step at a time."""
        if not self._sees_prefixes:
            self._sees_prefixes = True
            for lane in self._engines.lanes:
                if not lane.state.kv_cache.looks_ahead:
                    lane.run_length.be_single()


def _tell(request: Request, note: Callable[[Hashable], None]) -> None:
    for content_id, _ in request.content:
        note(content_id)


def _ahead(lane: Lane) -> Ahead:
    """Return the part of the run in flight that has ended or begun by now."""
    plan, num_begun = lane.engine.steps_begun(lane)
    if plan is None:
        return Ahead(0, [])
    computed = [
        (sequence, sequence.num_computed_tokens + num_begun * num_new)
        for sequence, num_new in plan.prefills
    ]
    if plan.decodes:
        _, num_over = lane.engine.steps_over(lane)
        computed += lane.state.kv_cache.answers.ahead(num_over, num_begun)
    return Ahead(_num_taken(lane), computed)


def _num_blocks(lane: Lane) -> int:
    num_taken = _num_taken(lane)  # first, since a pipeline enters what has happened by now
    pool = lane.state.pool
    return pool.num_blocks - pool.num_free + num_taken


def _num_taken(lane: Lane) -> int:
    """Return the blocks that steps in flight have taken but not yet entered in the pool."""
    state = lane.state
    if state.pages is not None:
        plan, num_begun = lane.engine.steps_begun(lane)
        if plan is not None and num_begun > 1:
            serve_steps(state, state.pages, plan, num_begun)
        return 0
    if state.by_piece:
        plan, num_begun = lane.engine.steps_begun(lane)
        return blocks_after_first(state, plan, num_begun) if plan is not None else 0
    plan, num_over = lane.engine.steps_over(lane)
    return state.clock.blocks_needed(num_over) if plan is not None and plan.decodes else 0


def _num_tokens(lane: Lane) -> int:
    state = lane.state
    num_tokens = sum([sequence.num_computed_tokens for sequence in state.prefilling])
    num_tokens += sum([sequence.num_tokens - 1 for sequence in state.paused])
    plan, num_over = lane.engine.steps_over(lane)
    if not num_over or plan is None:
        return num_tokens + state.clock.context_sum
    num_tokens += num_over * sum([num_new for _, num_new in plan.prefills])
    num_decode_steps = num_over if plan.decodes else 0
    return num_tokens + state.clock.context_after(num_decode_steps)
