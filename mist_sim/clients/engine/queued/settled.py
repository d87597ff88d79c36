"""Decides when a stretch of a pipeline begins, and enters its result when it is over."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import TYPE_CHECKING

from mist_sim.clients.decode.clock import DecodeClock
from mist_sim.clients.engine.queued.groups import Pass
from mist_sim.clients.engine.queued.rank_times import RankTimes
from mist_sim.clients.engine.queued.stretch import EngineQueue, Stretch, StretchLoop, Until
from mist_sim.clients.kv_cache.prefix_manager import PrefixCachingManager
from mist_sim.clients.scheduling import ChunkedScheduler
from mist_sim.clients.sequence_state import SequenceState
from mist_sim.hardware.predictors.ranks import PipelinePredictor

if TYPE_CHECKING:
    from mist_sim.clients.engine.queued.queued_lane import QueuedLane

_FEWEST = 3  # a shorter stretch costs more than its events


class Stretches:
    """Finds stretches of a lane, and enters them in its state.

    predictor, times: of its ranks.
    """

    def __init__(self, lane: QueuedLane, predictor: PipelinePredictor, times: RankTimes) -> None:
        state, scheduler = lane.state, lane.scheduler
        self._lane, self._state, self._stagger = lane, state, lane.form.stagger
        self._loop = StretchLoop(predictor, lane.form, times)
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
        """Return the batches that follow; None if another event comes too soon for a stretch."""
        if not self._is_possible or len(now.recent) < self._stagger:
            return None
        state, flight = self._state, now.in_flight
        if not (self._is_calm() and self._is_steady(now, flight)):
            return None
        found = self._loop.begin(now, state.groups, self._lane.load.num_waiting)
        if found is None:
            return None
        freed = [state.num_freed(each) for each in flight]
        free = state.pool.num_free, state.pool.num_blocks
        found.more = self._loop.extend(found, free, freed, self._until())
        found.goes_on()
        return found if found.num_over >= _FEWEST else None

    def _until(self) -> Until:
        """Return how far a stretch may go."""
        state = self._state
        if state.overshoots:
            return "before_end"
        # a request may come in with what an answer frees, which are its own blocks alone
        return "end" if state.waiting or state.kv_cache.shares_blocks else "any"

    def next_event(self, found: Stretch, first: int) -> int:
        """Return the place of the next return that has to be an event; none before `first` has.

        One that writes down a gap between tokens is, since rows of gaps are in the order of time.
        """
        ends: dict[int, float] = {}
        num_flight, num_over = len(found.flight), found.num_over
        for place in range(first, min(num_flight, num_over)):
            group = (each := found.flight[place]).group
            has_gap = each.ready != ends.get(group.number, group.records.last_decode_end)
            if has_gap or not self._lane.is_quiet(each):
                return place
            ends[group.number] = each.end
        for place in found.endings:
            if place >= first and num_flight <= place < num_over:
                return place
        return num_over

    def _is_calm(self) -> bool:
        """Tell whether plans find decodes alone, and will while batches in flight return."""
        state = self._state
        if state.prefilling or state.awaiting or state.paused or state.num_taken:
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
        if not self._waits_for_all:
            return False
        num_free, heads = state.num_admissible(0), [*state.waiting.stale]  # each may be the first
        if (head := state.head()) is not None:
            heads.append(head)
        return all(state.kv_cache.blocks_to_admit(each) > num_free for each in heads)

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
        return not any(each.joined for each in flight)

    def keeps_waiting(self, sequence: SequenceState) -> bool:
        """Tell whether a request that comes now waits as long as the stretch that is on.

        That is so behind one that waits already, and will until the stretch is over.
        """
        state = self._state
        if state.head() is None or not state.waiting.adds_at_end:
            return False
        # the first with content makes the cache keep the order of its free blocks from now on
        return state.kv_cache.shares_blocks or not sequence.visit.request.content

    # --- what has happened ----------------------------------------------------------------

    def settle(self, found: Stretch, num_over: int, num_planned: int) -> None:
        """Enter the returns of a stretch up to so many, and the plans after so many of them.

        num_over: those of batches that were in flight are quiet, or given already.
        """
        if num_over == found.num_given and num_planned == found.num_planned:
            return
        for place in range(found.num_given, min(num_over, len(found.flight))):
            self._lane.give_quietly(found.flight[place], found.num_waiting_at(place))
        if num_over > len(found.flight):
            self._write(found, num_over)
        for group in found.groups:
            group.in_flight.clear()
        for each in found.in_flight(num_over, num_planned):
            each.group.in_flight.append(each)
        if num_planned > found.num_planned:
            self._plan(found, num_planned)
        found.num_given, found.num_planned = num_over, num_planned

    def _write(self, found: Stretch, num_over: int) -> None:
        """Write down returns up to so many, without those of batches that were in flight."""
        groups, num_flight = found.groups, len(found.flight)
        num_groups, begin = len(groups), max(found.num_given, num_flight)
        rows, ends = found.rows_between(begin, num_over), found.ends[begin:num_over]
        for first in range(min(num_groups, len(rows))):
            records = groups[(begin + first) % num_groups].records
            records.rows(rows[first::num_groups], ends[first::num_groups])
        self._lane.records = groups[(num_over - 1) % num_groups].records

    def _plan(self, found: Stretch, num_planned: int) -> None:
        """Enter the plans up to so many in the groups and in the memory."""
        state, groups, num_flight = self._state, found.groups, len(found.flight)
        num_groups, end = len(groups), num_flight + num_planned
        begin = num_flight + found.num_planned
        for place in found.endings:
            if begin <= place < end:
                state.count_ended(self._advance(found, place))
        for place in range(max(end - num_groups, begin), end):  # the latest of each group
            groups[place % num_groups].become_last(self._advance(found, place))
        state.kv_cache.grow(found.rows[num_planned - 1][10] - state.pool.num_used)
        state.group = state.groups[found.rhythm.last[(num_planned - 1) % num_groups]]
        state.clock = state.group.clock

    def _advance(self, found: Stretch, place: int) -> Pass:
        """Let a group's clock count the batch at a place, and those before it; return it."""
        last = found.pass_at(place)
        clock = last.group.clock
        clock.count(last.step + 1 - clock.steps)
        if self._state.kv_cache.caches_prefixes:  # nothing else reads it
            num_flight, num_groups = len(found.flight), len(found.groups)
            before = range(place - num_groups, place - num_flight, -num_groups)
            last.before = tuple([found.pass_at(each) for each in before])
        return last

    def queue(self, found: Stretch) -> EngineQueue:
        """Return the queue of the engine as the state has it."""
        before, num_planned = found.before, found.num_planned
        batches = iter(found.in_flight(found.num_given, num_planned))
        num_over = found.num_given - num_planned  # whose plan is to come
        return EngineQueue(
            deque([None if each < 0 else next(batches) for each in found.shape[num_over:]]),
            self._recent(found),
            before.number + num_planned * found.rhythm.num_plans,
            list(found.rank_ends[num_planned - 1]) if num_planned else before.rank_ends,
        )

    def _recent(self, found: Stretch) -> deque[Pass | None]:
        """Return the latest plans as the state has them."""
        recent, rhythm, num_planned = found.before.recent.copy(), found.rhythm, found.num_planned
        num_flight, num_ever = len(found.flight), -(recent.maxlen // -rhythm.num_plans)  # type: ignore[operator]
        for over in range(max(num_planned - num_ever, 0), num_planned):
            plans: list[Pass | None] = [None] * rhythm.num_plans
            plans[rhythm.place] = found.pass_at(num_flight + over)
            recent.extend(plans)
        return recent
