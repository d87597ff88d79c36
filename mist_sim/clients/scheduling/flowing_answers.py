"""TaiChi's Algorithm 1: which decodes leave a lane at the end of a step.

A rule is evaluated at the end of each step in which its result may change. That step follows from
sums, so that steps in which no decode leaves cost nothing (DESIGN §5). The sums assume that no
sequence comes or leaves and that only decodes and prompts take memory; any other change ends the
run (docs/background/speed.md).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from heapq import heappop, heappush
from math import inf, isnan

import numpy as np

from mist_sim.clients.decode.watched_clock import WatchedClock
from mist_sim.clients.scheduling.lane_state import LaneState
from mist_sim.clients.scheduling.plan import StepPlan
from mist_sim.clients.scheduling.planned_steps import blocks_after_first
from mist_sim.clients.sequence_state import SequenceState
from mist_sim.core.flowing import Backflow, Degradation, FlowRule
from mist_sim.core.visit import Pace
from mist_sim.errors import InvariantError
from mist_sim.hardware.predictors.decode_line import Ends

_ROUNDING = 1e-9  # of sums of times; sequences this close to a limit are checked exactly


class Flowing(ABC):
    """A rule's state for one lane, from an empty lane on."""

    @abstractmethod
    def meet(self, lane: LaneState) -> None:
        """Start with the decodes already in a lane, after a change of rule."""

    @abstractmethod
    def num_steps(self, lane: LaneState, plan: StepPlan, ends: Ends | float, limit: int) -> int:
        """Return the number of steps, at most `limit` (> 1), until the rule is evaluated.

        ends: ends of the plan's steps, seconds. After a plan of one step it is always evaluated.
        """

    @abstractmethod
    def leaving(self, lane: LaneState, now: float) -> list[SequenceState]:
        """Return the decodes that leave now, at the end of a step, in this order."""

    @abstractmethod
    def keep(self, lane: LaneState, sequences: list[SequenceState]) -> None:
        """Look again at decodes that were to leave, and stay because no client takes them."""

    @abstractmethod
    def pace(self, sequence: SequenceState, now: float) -> Pace:
        """Return the token from which a leaving answer's time per token counts at the next client.

        sequence: a sequence off the clock.
        """


def flowing_of(rule: FlowRule) -> Flowing:
    """Return the state of a rule for a new lane."""
    return SlowestFlowing(rule) if isinstance(rule, Backflow) else LongestFlowing(rule)


class SlowestFlowing(Flowing):
    """Answers whose time per token exceeds a limit leave; at the next client they count as new.

    Answers that have left the largest allowed number of times stay.

    An answer is above the limit L after step k, which ends at t(k), if t(k) - t0 > L (k - k0). So
    it leaves at the first step with t(k) - L k > t0 - L k0: the right side is a constant of the
    answer, the left side is common to all. The answer with the smallest constant is next.
    """

    def __init__(self, rule: Backflow) -> None:
        self._limit = rule.most_seconds
        self._most_times = inf if rule.most_times is None else rule.most_times
        self._next: list[tuple[float, int, SequenceState]] = []  # (t0 - L k0, ticket, sequence)

    def meet(self, lane: LaneState) -> None:
        """Take up all decodes that have a ticket, and choose those that flow."""
        _clock(lane).joined = [sequence for sequence in lane.running if sequence.ticket]
        self._let_in(lane)

    def num_steps(self, lane: LaneState, plan: StepPlan, ends: Ends | float, limit: int) -> int:
        """Return the first step after which an answer exceeds the limit, at most `limit`."""
        self._let_in(lane)
        self._forget_gone()
        if _clock(lane).joined:
            return 1  # its time begins with the first token, at the end of that step
        if isinstance(ends, float) or not self._next:
            return limit
        num_decoded = lane.clock.steps + np.arange(1, limit + 1) * plan.decodes
        left = np.array(ends[:limit]) - self._limit * num_decoded
        is_above = left > self._next[0][0] - _slack(ends[limit - 1])
        first = int(is_above.argmax())
        return first + 1 if is_above[first] else limit

    def leaving(self, lane: LaneState, now: float) -> list[SequenceState]:
        """Return the answers above the limit now, in order of their tickets."""
        # a preempted sequence may rejoin with this step, and already be too slow
        self._let_in(lane)
        left = now - self._limit * lane.clock.steps + _slack(now)
        near: list[tuple[float, int, SequenceState]] = []
        while self._next and self._next[0][0] < left:
            near.append(heappop(self._next))
        found = []
        for entry in near:
            _, ticket, sequence = entry
            if sequence.ticket != ticket:
                continue
            if self._is_slow(sequence, num_tokens(lane, sequence), now):
                found.append(sequence)
            else:
                heappush(self._next, entry)
        found.sort(key=lambda each: each.ticket)
        return found

    def _is_slow(self, sequence: SequenceState, num_output_tokens: int, now: float) -> bool:
        """Algorithm 1, line 2."""
        start = pace_of(sequence)
        return now - start.time > self._limit * (num_output_tokens - start.num_tokens)

    def keep(self, lane: LaneState, sequences: list[SequenceState]) -> None:
        """Note decodes that have just joined."""
        _clock(lane).joined += sequences

    def pace(self, sequence: SequenceState, now: float) -> Pace:
        """Count from now, and count one more flow back."""
        return Pace(now, sequence.num_output_tokens, pace_of(sequence).num_backflows + 1)

    def _let_in(self, lane: LaneState) -> None:
        """Queue the joined sequences that may leave, by the time until which they stay."""
        clock = _clock(lane)
        joined, clock.joined = clock.joined, []
        if len(joined) > 1:  # a preempted sequence may have joined twice
            joined = list(dict.fromkeys(joined))
        for sequence in joined:
            start = pace_of(sequence)
            if start.num_backflows >= self._most_times:
                continue
            if isnan(start.time):
                clock.joined.append(sequence)  # its next step gives the first token
            elif sequence.ticket:
                step = sequence.join_step - (sequence.num_output_tokens - start.num_tokens)
                entry = start.time - self._limit * step, sequence.ticket, sequence
                heappush(self._next, entry)

    def _forget_gone(self) -> None:
        while self._next and self._next[0][2].ticket != self._next[0][1]:
            heappop(self._next)


class LongestFlowing(Flowing):
    """The longest answers leave while more than a share of the blocks, or of the seats, is used.

    Blocks held until they are copied count as free, since their sequences have left. So do the
    blocks and seats of sequences that are done or have left, even if the next plan does not know it
    yet. A sequence whose entries are on their way has a seat.
    """

    def __init__(self, rule: Degradation) -> None:
        self._rule = rule

    def meet(self, lane: LaneState) -> None:
        """Do nothing: the rule keeps no state."""

    def num_steps(self, lane: LaneState, plan: StepPlan, ends: Ends | float, limit: int) -> int:
        """Return the first step above the watermark, by bisection, at most `limit`."""
        if not plan.decodes:
            return limit
        if self._rule.counts_seats and self._seats_below(lane) < 0:
            return 1  # no sequence is admitted while a plan runs, so evaluate after its first step
        num_left = self._num_below(lane)
        if blocks_after_first(lane, plan, limit) <= num_left:
            return limit
        low, high = 1, limit  # the first number of steps that takes more blocks
        while low < high:
            middle = (low + high) // 2
            if blocks_after_first(lane, plan, middle) > num_left:
                high = middle
            else:
                low = middle + 1
        return low

    def leaving(self, lane: LaneState, now: float) -> list[SequenceState]:
        """Return the longest answers, until blocks and seats are below the watermark."""
        num_above, seats_above = -self._num_below(lane), -inf
        if self._rule.counts_seats:
            seats_above = -self._seats_below(lane)
        if num_above <= 0 and seats_above <= 0:
            return []
        stay = [each for each in lane.running if each.ticket and num_tokens(lane, each)]
        stay.sort(key=lambda each: _length(lane, each), reverse=True)
        found: list[SequenceState] = []
        for sequence in stay:
            if num_above <= 0 and seats_above <= 0:
                break
            found.append(sequence)
            num_above -= lane.pool.blocks_for(lane.clock.context(sequence))
            seats_above -= 1
        return found

    def _num_below(self, lane: LaneState) -> float:
        """Return how many blocks may be taken until the watermark is reached; < 0 above it."""
        num_held = sum([num_blocks for num_blocks, _ in lane.held.values()]) if lane.held else 0
        for sequence, (num_blocks, _) in lane.leaving.items():
            num_held += 0 if sequence in lane.held else num_blocks
        pool = lane.pool
        return self._rule.watermark * pool.num_blocks - (pool.num_blocks - pool.num_free - num_held)

    def _seats_below(self, lane: LaneState) -> float:
        """Return how many may come in until the watermark is reached; < 0 above it."""
        num_taken = lane.num_running + len(lane.coming.loading) + len(lane.coming.moved)
        return self._rule.watermark * lane.max_num_seqs - num_taken

    def keep(self, lane: LaneState, sequences: list[SequenceState]) -> None:
        """Do nothing: the rule looks at all decodes every time."""

    def pace(self, sequence: SequenceState, now: float) -> Pace:
        """Go on with the pace that the answer came with."""
        return pace_of(sequence)


def pace_of(sequence: SequenceState) -> Pace:
    """Return from which token on the time per token of a decode counts."""
    visit = sequence.visit
    kv = visit.kv
    if kv is None or not kv.num_output_tokens:
        return Pace(visit.first_token_at, 1)
    return kv.pace or Pace(kv.last_token_at, kv.num_output_tokens)


def num_tokens(lane: LaneState, sequence: SequenceState) -> int:
    """Return the tokens of the answer of one on the clock."""
    return lane.clock.context(sequence) + 1 - sequence.num_prompt_tokens


def _length(lane: LaneState, sequence: SequenceState) -> int:
    return num_tokens(lane, sequence) - pace_of(sequence).num_tokens


def _clock(lane: LaneState) -> WatchedClock:
    if not isinstance(lane.clock, WatchedClock):
        raise InvariantError("a lane has to list the sequences that join, where slow answers leave")
    return lane.clock


def _slack(time: float) -> float:
    return _ROUNDING * max(1.0, time)
