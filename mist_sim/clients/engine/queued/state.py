"""The state of a pipeline with one scheduler: what is in flight, and what of it is known."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from mist_sim.clients.decode.clock import DecodeClock
from mist_sim.clients.decode.clock_of_lane import clock_of_lane
from mist_sim.clients.engine.queued.fresh import FreshQueue
from mist_sim.clients.engine.queued.groups import Group, Pass
from mist_sim.clients.engine.step_records import StepRecords
from mist_sim.clients.kv_cache import KvCacheManager
from mist_sim.clients.scheduling import LaneState, StepPlan
from mist_sim.clients.scheduling.planned_steps import batch_of
from mist_sim.clients.sequence_state import SequenceState

_TICKETS = 1 << 40  # more than a clock ever gives, so that no two sequences have the same


class QueuedState(LaneState):
    """A lane that plans batches before earlier ones have returned.

    Tokens of a batch count as computed when it is planned, and the tokens that it will give as
    known: a sequence's `num_tokens` includes those on their way. The clock is that of the group
    that is planned; `leaving` has sequences whose last token is on its way.

    ahead: whether a decode is planned before its last token has come.

    group: the one that is planned. group_of: the group of each sequence on a clock. home: the group
    whose records have a sequence's latest tokens. awaiting: prompts whose first token is on its
    way; they decode when it has come. ends_with: the batch that gives a sequence's last token.
    taken: for a preempted sequence, the batches in flight that give it a token, and those that
    compute part of it.
    overshoots: whether a decode is planned while two of its tokens or more are on their way, even
    where the last is among them. beyond: for sequences in such steps, the batches that give the
    tokens, and those behind the last. longest: tokens behind which none is planned; None: no limit.
    """

    waiting: FreshQueue

    def __init__(self, kv_cache: KvCacheManager, waiting: FreshQueue, **options: Any) -> None:
        """options: of `LaneState`."""
        super().__init__(kv_cache, waiting, **options)
        self.ahead = False
        self.groups: list[Group] = []
        self.group: Group
        self.group_of: dict[SequenceState, Group] = {}
        self.awaiting: dict[SequenceState, Pass] = {}
        self.ends_with: dict[SequenceState, Pass] = {}
        self.home: dict[SequenceState, Group] = {}
        self.taken: dict[SequenceState, tuple[list[Pass], list[Pass]]] = {}
        self.overshoots = False
        self.beyond: dict[SequenceState, tuple[list[Pass], list[Pass]]] = {}
        self.longest: int | None = None
        self._known = 0
        self._known_if_served = 0
        if self.pages is not None:
            self.pages.num_in_flight = self.num_in_flight

    # --- what is on its way ---------------------------------------------------------------

    def giving(self, sequence: SequenceState) -> list[Pass]:
        """Return the batches in flight that give a sequence a token."""
        noted = self.taken.get(sequence) or self.beyond.get(sequence)
        if noted is not None:
            return [each for each in noted[0] if each in each.group.in_flight]
        last = self.ends_with.get(sequence) or self.awaiting.get(sequence)
        if last is not None:
            passes = [each for each in last.group.in_flight if each.number <= last.number]
            return [each for each in passes if each is last or each.gives(sequence)]
        group = self.group_of.get(sequence)
        return [each for each in group.in_flight if each.gives(sequence)] if group else []

    def is_busy(self, sequence: SequenceState) -> bool:
        """Tell whether a sequence decodes in a group other than the one that is planned."""
        if sequence in self.leaving or sequence in self.awaiting:
            return True
        group = self.group_of.get(sequence)
        return group is not None and group is not self.group

    def computing(self, sequence: SequenceState, giving: list[Pass]) -> list[Pass]:
        """Return the batches in flight that compute part of a sequence.

        giving: those that give it a token.
        """
        every = [each for group in self.groups for each in group.in_flight]
        tokens = [*giving, *self._behind_last(sequence)]
        found = [each for each in every if each in tokens or each.computes(sequence)]
        return sorted(found, key=lambda each: each.number)

    def num_due(self, sequence: SequenceState) -> int:
        """Return the tokens of a sequence on their way, with those behind its last one."""
        return len(self.giving(sequence)) + len(self._behind_last(sequence))

    def _behind_last(self, sequence: SequenceState) -> list[Pass]:
        """Return the batches in flight that compute a sequence behind its last token."""
        return self.beyond[sequence][1] if sequence in self.beyond else []

    def contexts(self, group: Group) -> dict[SequenceState, int]:
        """Return the tokens that the cache holds for each answer of a group, as planned.

        Answers whose last token is on its way are among them.
        """
        clock, leaving = group.clock, self.leaving
        found = {each: clock.context(each) for each, its in self.group_of.items() if its is group}
        for sequence, last in self.ends_with.items():
            if last.group is group and sequence in leaving:
                found[sequence] = leaving[sequence][1]
        return found

    def num_in_flight(self, sequence: SequenceState) -> int:
        """Return the tokens of a sequence that batches in flight compute."""
        found = self.computing(sequence, self.giving(sequence))
        return sum(each.num_computed(sequence) for each in found)

    def records_of(self, sequence: SequenceState) -> StepRecords:
        """Return the track that has the latest tokens of a sequence."""
        return self.home.get(sequence, self.groups[0]).records

    def new_clock(self, number: int) -> DecodeClock:
        """Return a clock like that of the lane, with its own tickets."""
        clock = clock_of_lane(self.kv_cache, None, first_ticket=number * _TICKETS)
        if self.clock.tells_longest:
            clock.watch_longest()
        clock.watch_prefixes(self.clock.reads_again)
        return clock

    # --- a plan ---------------------------------------------------------------------------

    def begin_plan(self, group: Group) -> list[SequenceState]:
        """Start the plan of a group, with all other decodes that are ready; return these.

        Their groups do not know of it yet.
        """
        self.group, self.clock = group, group.clock
        for sequence in self.beyond:
            if sequence not in self.leaving and not self._goes_beyond(sequence):
                self._come_off(sequence)
        joined = list(self.paused)
        if not self.ahead:
            for other in self.groups:
                if other is not group and not other.in_flight and other.clock.num_decodes:
                    joined += [each for each, its in self.group_of.items() if its is other]
        return joined

    def move(self, sequence: SequenceState) -> None:
        """Move a decode to the planned group; one that skipped a step joins with the plan."""
        before = self.group_of.get(sequence)
        if before is not None:
            before.clock.leave(sequence)
            self.group.clock.join(sequence)
        self.group_of[sequence] = self.group
        self.group.newcomers.append(sequence)

    def leave_clock(self, sequence: SequenceState) -> int:
        """Take a decode of the planned group off its clock, for a pause."""
        del self.group_of[sequence]
        return self.clock.leave(sequence)

    def send(self, number: int, plan: StepPlan) -> Pass:
        """Count what a plan computes as computed, and return its batch."""
        group, clock, batch = self.group, self.group.clock, batch_of(self, plan)
        found = Pass(number, group, plan, batch)
        found.num_used = self.pool.num_used
        if group.newcomers:
            found.joined = tuple([s for s in group.newcomers if self.group_of.get(s) is group])
            group.newcomers.clear()
        if plan.decodes:
            clock.advance(1)
            self.num_taken = 0
            self.count_ended(found)
        for sequence, num_new in plan.prefills:
            sequence.num_computed_tokens += num_new
            if sequence.num_computed_tokens == sequence.num_tokens:
                self._complete(sequence, found)
        return found

    def count_ended(self, found: Pass) -> None:
        """Note which decodes a batch gives their last tokens; the clock counts it already."""
        ended = found.group.clock.pop_finished()
        for sequence in self.in_turn(ended) if len(ended) > 1 else ended:
            self._count_last(sequence, found)

    def _count_last(self, sequence: SequenceState, found: Pass) -> None:
        """Note that a decode gets its last token, or is computed behind that one."""
        if sequence in self.beyond:
            found.num_gone += 1
            self.beyond[sequence][1].append(found)
        else:
            if self.overshoots:
                self.beyond[sequence] = self.giving(sequence), []
            self.ends_with[sequence] = found
            found.ending += (sequence,)
        if self._goes_beyond(sequence):
            found.group.clock.stay(sequence)
        else:
            self._come_off(sequence)

    def _goes_beyond(self, sequence: SequenceState) -> bool:
        """Tell whether a decode whose last token is on its way is in one more plan.

        That is so while more than one of its tokens is to come (`Scheduler.schedule` in
        `vllm/v1/core/sched/scheduler.py`), and the longest context is not reached.
        """
        if sequence not in self.beyond or len(self.giving(sequence)) < 2:
            return False
        num_tokens = sequence.num_final_tokens + len(self._behind_last(sequence))
        return self.longest is None or num_tokens < self.longest

    def _come_off(self, sequence: SequenceState) -> None:
        """Take a sequence that has all its steps off the clock; it keeps blocks and seat."""
        group = self.group_of.pop(sequence, None)
        if group is not None:
            group.clock.leave(sequence)
        else:
            self.paused = tuple(each for each in self.paused if each is not sequence)
        num_computed = sequence.num_tokens - 1
        sequence.num_tokens = sequence.num_final_tokens
        self.leaving[sequence] = self.pool.blocks_for(num_computed), num_computed

    def _complete(self, sequence: SequenceState, found: Pass) -> None:
        """Note that the first token of an answer is on its way."""
        self.prefilling.remove(sequence)
        found.completed += (sequence,)
        sequence.num_tokens += 1
        sequence.join_step = found.step + 1  # it was in no batch of the group before
        if sequence.num_tokens == sequence.num_final_tokens:
            self._end(sequence, found, sequence.num_computed_tokens)
        elif self.ahead:
            self.go_on(sequence, found.group)
        else:
            self.awaiting[sequence] = found

    def _end(self, sequence: SequenceState, found: Pass, num_computed: int) -> None:
        """Note that the last token of an answer is on its way."""
        self.leaving[sequence] = self.pool.blocks_for(num_computed), num_computed
        self.ends_with[sequence] = found
        found.ending += (sequence,)

    def go_on(self, sequence: SequenceState, group: Group) -> None:
        """Let a sequence decode in a group."""
        group.clock.join(sequence)
        self.group_of[sequence] = group

    def in_turn(self, sequences: Sequence[SequenceState]) -> list[SequenceState]:
        """Return running sequences in the order of admission."""
        wanted = set(sequences)
        return [each for each in self.running if each in wanted]

    # --- who goes -------------------------------------------------------------------------

    def stop(self, sequence: SequenceState) -> tuple[int, int]:
        """Remove a running sequence; `taken` keeps what batches in flight do for it."""
        giving = self.giving(sequence)
        found = self._stop(sequence, len(giving))
        if giving or any(group.in_flight for group in self.groups):
            self.taken[sequence] = giving, self.computing(sequence, giving)
        return found

    def _stop(self, sequence: SequenceState, num_due: int) -> tuple[int, int]:
        if self.has_ended(sequence):
            if sequence not in self.leaving:
                self._come_off(sequence)
            self._known = self._entered(sequence, self.leaving[sequence][1])
            del self.ends_with[sequence]
            self.beyond.pop(sequence, None)
            return self.leaving.pop(sequence)
        if sequence in self.prefilling or sequence in self.awaiting:
            if self.awaiting.pop(sequence, None) is None:
                self.prefilling.remove(sequence)
            num_computed = self._known = self._known_if_served = sequence.num_computed_tokens
            return self.kv_cache.num_held(sequence, num_computed), num_computed
        context = self.group_of[sequence].clock.context(sequence)
        self._known = self._entered(sequence, context)
        self._known_if_served = max(self._known, min(context, context + 1 - num_due))
        self.group_of.pop(sequence).clock.leave(sequence)
        return self.pool.blocks_for(context), context

    def num_known(
        self,
        sequence: SequenceState,
        num_computed: int,
        *,
        was_served: bool = False,
        in_prefill: bool = False,
    ) -> int:
        """Return the computed tokens of a sequence that the next plan knows and can cache."""
        return self._known_if_served if was_served else self._known

    def has_ended(self, sequence: SequenceState) -> bool:
        """Tell whether the last token of a running sequence is on its way."""
        return sequence in self.ends_with

    def preempt_leaving(self, sequence: SequenceState, *, was_served: bool = False) -> None:
        """Free the blocks of a sequence whose last token is on its way."""
        if sequence not in self.leaving:
            self._come_off(sequence)
        num_blocks, num_computed = self.leaving.pop(sequence)
        num_known = self._entered(sequence, num_computed)
        if was_served:
            num_known = max(num_known, num_computed + 1 - self.num_due(sequence))
        self.beyond.pop(sequence, None)
        self._free(sequence, num_blocks, num_known, num_computed - num_known)

    def _entered(self, sequence: SequenceState, context: int) -> int:
        """Return how many tokens of a decode others may have found by now.

        These are the tokens whose ids the plan of its latest batch knew, and those that came since.
        """
        behind = self._behind_last(sequence)
        last = behind[-1] if behind else self.ends_with.get(sequence)
        group = last.group if last is not None else self.group_of[sequence]
        last = last or group.last
        if last is None or sequence in last.completed or not last.gives(sequence):
            return context
        num_due_then = 1 + sum(each.gives(sequence) for each in last.before)
        return max(context + 1 - num_due_then, context - self.num_due(sequence))

    def num_freed(self, found: Pass) -> int:
        """Return the blocks that are free when a batch returns."""
        leaving = self.leaving
        return sum([leaving[each][0] for each in found.ending if each in leaving]) if leaving else 0

    def finish_with(self, sequence: SequenceState) -> None:
        """Free seat and blocks of a sequence that has its last token, unless it was preempted."""
        del self.ends_with[sequence]
        if sequence in self.beyond and sequence not in self.leaving:
            self._come_off(sequence)
        _, behind = self.beyond.pop(sequence, ((), ()))
        if sequence in self.leaving:
            num_blocks, num_computed = self.leaving.pop(sequence)
            self._free(sequence, num_blocks, num_computed - len(behind), len(behind))

    def abort(self, sequence: SequenceState, *, in_step: bool = False) -> None:
        """Let a sequence go, without the tokens that are on their way (see `LaneState.abort`)."""
        giving = self.giving(sequence)
        for each in giving:
            each.num_gone += sequence not in each.completed
        if sequence in self.running:
            if sequence in self.paused:
                self.paused = tuple(each for each in self.paused if each is not sequence)
                self.go_on(sequence, self.group)
            num_blocks, num_computed = self.stop(sequence)
            self._free(sequence, num_blocks, self._known, num_computed - self._known)
        elif sequence in self.ends_with:
            del self.ends_with[sequence]
        else:
            self.waiting.remove(sequence)
        self.taken.pop(sequence, None)
        sequence.num_tokens -= len(giving)

    def gather(self) -> None:
        """Put all decodes on the clock of the lane, since no batch is in flight any more."""
        self.clock = self.groups[0].clock
        for sequence, group in list(self.group_of.items()):
            if group is not self.groups[0]:
                group.clock.leave(sequence)
                self.clock.join(sequence)
                self.group_of[sequence] = self.groups[0]
        self.group = self.groups[0]

    # --- what others see ------------------------------------------------------------------

    @property
    def num_running(self) -> int:
        """Sequences that hold memory."""
        return len(self.running)

    def head(self) -> SequenceState | None:
        """Return the next sequence to admit; None if there is none."""
        return self.waiting.head() if self.waiting.has_fresh else None
