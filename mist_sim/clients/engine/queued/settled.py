"""Decides when a stretch of a pipeline begins, and enters its result when it is over."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import TYPE_CHECKING

from mist_sim.clients.decode.clock import DecodeClock
from mist_sim.clients.engine.queued.groups import Pass
from mist_sim.clients.engine.queued.stretch import EngineQueue, Stretch, StretchLoop
from mist_sim.clients.kv_cache.prefix_manager import PrefixCachingManager
from mist_sim.clients.scheduling import ChunkedScheduler
from mist_sim.hardware.predictors.ranks import PipelinePredictor

if TYPE_CHECKING:
    from mist_sim.clients.engine.queued.queued_lane import QueuedLane

_FIRST = 16  # returns in the first stretch
_MOST = 65536
_FEWEST = 3  # a shorter stretch costs more than its events


class Stretches:
    """Finds stretches of a lane, and enters them in its state.

    predictor: of its ranks.
    """

    def __init__(self, lane: QueuedLane, predictor: PipelinePredictor) -> None:
        state, scheduler = lane.state, lane.scheduler
        self._lane, self._state, self._stagger = lane, state, lane.form.stagger
        self._loop = StretchLoop(predictor, lane.form)
        self._most = _FIRST
        self._waits_for_all = getattr(scheduler, "scheduler_reserve_full_isl", False)
        self._is_possible = (
            type(scheduler) is ChunkedScheduler
            and scheduler.long_prefill_token_threshold is None
            and type(state.clock) is DecodeClock
            and not state.clock.tells_longest
            and state.cadence is None
            and state.by_piece
            and all(group.records.takes_rows for group in state.groups)
        )

    # --- whether nothing changes ----------------------------------------------------------

    def begin(self, now: EngineQueue) -> Stretch | None:
        """Return the batches that follow; None if something else happens soon."""
        if not self._is_possible or len(now.recent) < self._stagger:
            return None
        state, flight = self._state, now.in_flight
        if not (self._is_calm() and self._is_steady(now, flight)):
            return None
        found = self._loop.begin(now, state.groups, self._lane.load.num_waiting)
        if found is None:
            return None
        freed = [state.num_freed(each) for each in flight]
        self._loop.extend(found, (state.pool.num_free, state.pool.num_blocks), freed, self._most)
        if found.num_over >= self._most:
            self._most = min(2 * self._most, _MOST)
        return found if found.num_over >= _FEWEST else None

    def next_event(self, found: Stretch) -> int:
        """Return the place of the next return that has to be an event.

        One that writes down a gap between tokens is, since rows of gaps are in the order of time.
        """
        ends: dict[int, float] = {}
        for place, each in enumerate(found.flight[: found.num_over]):
            group = each.group
            has_gap = each.ready != ends.get(group.number, group.records.last_decode_end)
            if place >= found.num_given and (has_gap or not self._lane.is_quiet(each)):
                return place
            ends[group.number] = each.end
        return found.num_over

    def _is_calm(self) -> bool:
        """Tell whether plans find decodes alone, and will while batches in flight return."""
        state = self._state
        if state.prefilling or state.awaiting or state.paused or state.taken or state.num_taken:
            return False
        if state.beyond or state.early:
            return False
        if state.ends_with and (state.waiting or state.kv_cache.shares_blocks):
            return False
        if self._lane.given_up or self._enters_blocks():
            return False
        for group in state.groups:
            if group.clock.num_read_again:
                return False  # its keys do not tell the time alone
        if not state.waiting or not state.has_seat():
            return True
        head = state.head()
        if head is None or not self._waits_for_all:
            return False
        return state.kv_cache.blocks_to_admit(head) > state.num_admissible(0)

    def _enters_blocks(self) -> bool:
        """Tell whether decodes enter blocks in a prefix cache, or a watcher follows the cache."""
        kv_cache = self._state.kv_cache
        if not kv_cache.shares_blocks:
            return False
        if not isinstance(kv_cache, PrefixCachingManager) or kv_cache.cache.is_watched:
            return True
        chains = [each.chain for each in kv_cache.answers.writers]
        return any(chain is not None and chain.num_held < chain.num_shared for chain in chains)

    def _is_steady(self, now: EngineQueue, flight: Sequence[Pass]) -> bool:
        """Tell whether decodes stay in their groups, and each group goes on without a gap."""
        groups, stagger = self._state.groups, self._stagger
        for place, each in enumerate(now.recent if stagger else ()):
            group = groups[(now.number - len(now.recent) + place) % stagger]
            if each is not (group.last if group.clock.num_decodes else None):
                return False
        for group in groups:
            if group.newcomers or group.records.some_resumed:
                return False
            if group.clock.num_decodes and not group.in_flight:
                return False
        return not any(each.joined or each.left or each.released for each in flight)

    # --- what has happened ----------------------------------------------------------------

    def was_cut(self) -> None:
        """Compute less ahead from now on."""
        self._most = max(self._most // 2, _FIRST)

    def settle(self, found: Stretch, num_over: int, num_planned: int) -> EngineQueue:
        """Enter so many returns of a stretch, and the plans after so many of them.

        num_over: those of batches that were in flight are quiet, or given already. Returns the
        engine's queue at that point.
        """
        made = _Made(found)
        for each in found.flight[found.num_given : num_over]:
            self._lane.give_quietly(each, found.num_waiting)
        self._write(found, num_over)
        state, before, num_flight = self._state, found.before, len(found.flight)
        for group in found.groups:
            group.in_flight.clear()
        for place in range(num_over, num_flight + num_planned):
            (each := made[place]).group.in_flight.append(each)
        if num_planned:
            self._plan(found, made, num_planned)
            state.kv_cache.grow(found.rows[num_planned - 1][10] - state.pool.num_used)
            state.group = state.groups[found.rhythm.last[(num_planned - 1) % len(found.groups)]]
            state.clock = state.group.clock
        places = iter(range(num_planned, num_flight + num_planned))
        queue = deque([None if each is None else made[next(places)] for each in before.queue])
        if num_planned < num_over:
            queue.popleft()
        return EngineQueue(
            queue,
            self._recent(found, made, num_planned),
            before.number + num_planned * found.rhythm.num_plans,
            list(found.rank_ends[num_planned - 1]) if num_planned else before.rank_ends,
        )

    def _write(self, found: Stretch, num_over: int) -> None:
        """Write down so many returns, without those of batches that were in flight."""
        groups, num_flight = found.groups, len(found.flight)
        num_groups = len(groups)
        if num_over > num_flight:
            rows, ends = found.rows[: num_over - num_flight], found.ends[num_flight:num_over]
            for first in range(min(num_groups, len(rows))):
                records = groups[(num_flight + first) % num_groups].records
                records.rows(rows[first::num_groups], ends[first::num_groups])
            self._lane.records = groups[(num_over - 1) % num_groups].records

    def _plan(self, found: Stretch, made: _Made, num_planned: int) -> None:
        """Enter so many plans, one at least, in the groups."""
        groups, num_flight = found.groups, len(found.flight)
        num_groups, end = len(groups), num_flight + num_planned
        for place in range(max(end - num_groups, num_flight), end):  # the latest of each group
            group, last = groups[place % num_groups], made[place]
            group.clock.advance(-((place + 1 - num_flight) // -num_groups))
            group.become_last(last)
            if self._state.kv_cache.shares_blocks:  # else nobody asks
                before = range(place - num_groups, place - num_flight, -num_groups)
                last.before = tuple([made[each] for each in before])

    def _recent(self, found: Stretch, made: _Made, num_planned: int) -> deque[Pass | None]:
        """Return the latest plans as they stood after so many returns."""
        recent, rhythm = found.before.recent.copy(), found.rhythm
        num_flight, num_ever = len(found.flight), -(recent.maxlen // -rhythm.num_plans)  # type: ignore[operator]
        for over in range(max(num_planned - num_ever, 0), num_planned):
            plans: list[Pass | None] = [None] * rhythm.num_plans
            plans[rhythm.place] = made[num_flight + over]
            recent.extend(plans)
        return recent


class _Made(dict[int, Pass]):
    """The batches of a stretch by place, as the engine has them; made when they are asked for."""

    def __init__(self, found: Stretch) -> None:
        super().__init__(enumerate(found.flight))
        self._found = found
        self._steps = [group.clock.steps for group in found.groups]  # before the stretch

    def __missing__(self, place: int) -> Pass:
        found, num_flight, num_groups = self._found, len(self._found.flight), len(self._steps)
        turn, row, rhythm = place % num_groups, found.rows[place - num_flight], found.rhythm
        num_before = (place - num_flight) // num_groups  # of the group, computed ahead
        step, end = self._steps[turn] + num_before, found.ends[place]
        self[place] = made = Pass.of_decodes(found.groups[turn], step, row, end)
        made.number = found.before.number + (place - num_flight) * rhythm.num_plans + rhythm.place
        return made
