"""The state of a pipeline with one scheduler: plans, sequences that leave, known tokens."""

from __future__ import annotations

from typing import Any

from mist_sim.clients.engine.queued.early import EarlyReturns
from mist_sim.clients.engine.queued.fresh import FreshQueue
from mist_sim.clients.engine.queued.groups import Group, Pass
from mist_sim.clients.engine.queued.in_flight import InFlight
from mist_sim.clients.kv_cache import KvCacheManager
from mist_sim.clients.scheduling import StepPlan
from mist_sim.clients.scheduling.planned_steps import batch_of
from mist_sim.clients.sequence_state import SequenceState


class QueuedState(InFlight):
    """A lane that plans batches before earlier ones have returned.

    Tokens of a batch count as computed when it is planned, and the tokens that it will give as
    known: a sequence's `num_tokens` includes those on their way. The clock is that of the group
    that is planned; `leaving` has sequences whose last token is on its way.

    ahead: whether a decode is planned before its last token has come.

    gave_way: those whose last token is on its way that a plan preempted.
    """

    early: EarlyReturns

    def __init__(self, kv_cache: KvCacheManager, waiting: FreshQueue, **options: Any) -> None:
        """options: of `LaneState`."""
        super().__init__(kv_cache, waiting, **options)
        self.early = EarlyReturns(self)
        self.gave_way: list[SequenceState] = []
        self._known = 0
        self._known_if_served = 0

    @property
    def num_decode_steps(self) -> int:
        """Passes so far in which any of its sequences decoded."""
        return sum([group.clock.steps for group in self.groups])

    # --- a plan ---------------------------------------------------------------------------

    def begin_plan(self, group: Group, number: int) -> list[SequenceState]:
        """Start the plan of a group, with all other decodes that are ready; return these.

        Their groups do not know of it yet.
        """
        self.group, self.clock = group, group.clock
        for sequence in self.beyond:
            is_decode = sequence in self.running and sequence not in self.prefilling
            if is_decode and sequence not in self.leaving and not self._goes_beyond(sequence):
                self._come_off(sequence)
        if self.early:
            self.early.begin_plan(number)
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
        if self.early:
            self.early.admit(plan)
        for sequence, num_new in plan.prefills:
            sequence.num_computed_tokens += num_new
            if sequence.num_computed_tokens == sequence.num_tokens:
                self._complete(sequence, found)
        if self.early:
            self.early.note(found)
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
        num_tokens = sequence.num_final_tokens + len(self.behind_last(sequence))
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
        """Note that the first token of an answer is on its way, or one after a preemption."""
        self.prefilling.remove(sequence)
        sequence.num_tokens += 1
        sequence.join_step = found.step + 1  # it was in no batch of the group before
        if self.has_ended(sequence):
            self._complete_beyond(sequence, found)
            return
        found.completed += (sequence,)
        if sequence.num_tokens == sequence.num_final_tokens:
            self._end(sequence, found, sequence.num_computed_tokens)
        elif self.ahead:
            self.go_on(sequence, found.group)
        else:
            self.awaiting[sequence] = found

    def _end(self, sequence: SequenceState, found: Pass, num_computed: int) -> None:
        """Note that the last token of an answer is on its way."""
        self.ends_with[sequence] = found
        found.ending += (sequence,)
        if self.overshoots and sequence in self.early:
            self.beyond[sequence] = self.giving(sequence), []
            if self._goes_beyond(sequence):
                self.go_on(sequence, found.group)
                return
        self.leaving[sequence] = self.pool.blocks_for(num_computed), num_computed

    def _complete_beyond(self, sequence: SequenceState, found: Pass) -> None:
        """Note that a token behind the last one of an answer is on its way, from a prompt."""
        found.vain += (sequence,)
        found.early[sequence] = [*self.giving(sequence), *self.behind_last(sequence)]
        self.beyond[sequence][1].append(found)
        self.early.forget(sequence)
        if self._goes_beyond(sequence):
            self.go_on(sequence, found.group)
        else:
            num_computed = sequence.num_computed_tokens
            sequence.num_tokens = sequence.num_final_tokens
            self.leaving[sequence] = self.pool.blocks_for(num_computed), num_computed

    def go_on(self, sequence: SequenceState, group: Group) -> None:
        """Let a sequence decode in a group."""
        group.clock.join(sequence)
        self.group_of[sequence] = group

    # --- who goes -------------------------------------------------------------------------

    def stop(self, sequence: SequenceState) -> tuple[int, int]:
        """Remove a running sequence; `taken` keeps what batches in flight do for it."""
        giving = self.giving(sequence)
        found = self._stop(sequence, self.num_due(sequence))
        self.early.forget(sequence)
        if giving or any(group.in_flight for group in self.groups):
            self.taken[sequence] = giving, self.computing(sequence, giving)
        return found

    def _stop(self, sequence: SequenceState, num_due: int) -> tuple[int, int]:
        has_ended = self.has_ended(sequence)
        if has_ended and sequence not in self.prefilling:
            if sequence not in self.leaving:
                self._come_off(sequence)
            num_computed = self.leaving[sequence][1]
            self._known = self._entered(sequence, num_computed)
            self._known_if_served = max(self._known, num_computed + 1 - num_due)
            del self.ends_with[sequence]
            self.beyond.pop(sequence, None)
            return self.leaving.pop(sequence)
        if sequence in self.prefilling or sequence in self.awaiting:
            if self.awaiting.pop(sequence, None) is None:
                self.prefilling.remove(sequence)
            num_computed = self._known = self._known_if_served = sequence.num_computed_tokens
            if (early := self.early.get(sequence)) is not None:
                self._known = early.num_named
                self._known_if_served = max(self._known, min(num_computed, early.num_known))
                sequence.num_tokens = early.num_known + len(self.giving(sequence))
            if has_ended:
                del self.ends_with[sequence]
                del self.beyond[sequence]
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

    def preempt_leaving(self, sequence: SequenceState, *, was_served: bool = False) -> None:
        """Free the blocks of a sequence whose last token is on its way."""
        if self.readmits:
            self._preempt_ended(sequence, was_served=was_served)
            return
        if sequence not in self.leaving:
            self._come_off(sequence)
        num_blocks, num_computed = self.leaving.pop(sequence)
        num_known = self._entered(sequence, num_computed)
        if was_served:
            num_known = max(num_known, num_computed + 1 - self.num_due(sequence))
        self.beyond.pop(sequence, None)
        self._free(sequence, num_blocks, num_known, num_computed - num_known)

    def _preempt_ended(self, sequence: SequenceState, *, was_served: bool) -> None:
        """Let a sequence whose last token is on its way wait until it comes."""
        last, giving = self.ends_with[sequence], self.giving(sequence)
        behind = self.behind_last(sequence)
        num_blocks, num_computed = self._stop(sequence, len(giving) + len(behind))
        num_known = self._known_if_served if was_served else self._known
        del self.running[sequence]
        self.kv_cache.preempt(sequence, num_blocks, num_known, num_computed - num_known)
        sequence.num_computed_tokens = 0
        self.ends_with[sequence], self.beyond[sequence] = last, (giving, behind)
        self.early.wait(sequence, giving, behind)
        self.waiting.give_back(sequence)
        self.gave_way.append(sequence)

    def _entered(self, sequence: SequenceState, context: int) -> int:
        """Return how many tokens of a decode others may have found by now.

        These are the tokens whose ids the plan of its latest batch knew, and those that came since.
        """
        behind = self.behind_last(sequence)
        last = behind[-1] if behind else self.ends_with.get(sequence)
        group = last.group if last is not None else self.group_of[sequence]
        last = last or group.last
        if last is None:
            return context
        early = last.early.get(sequence, ())
        if sequence in last.completed or not last.gives(sequence):
            return context - len(early)
        before = [each for each in last.before if each not in early and each.gives(sequence)]
        num_due_then = 1 + len(early) + len(before)
        return max(context + 1 - num_due_then, context - self.num_due(sequence))

    def finish_with(self, sequence: SequenceState) -> None:
        """Free seat and blocks of a sequence that has its last token, unless it was preempted."""
        if sequence not in self.running and self.readmits:
            sequence.visit.num_preemptions -= 1  # it does not come back
            self._forget_ended(sequence)
            return
        if sequence in self.prefilling:
            num_blocks, num_computed = self._stop(sequence, 0)
            self.early.forget(sequence)
            sequence.num_tokens = sequence.num_final_tokens
            self._free(sequence, num_blocks, self._known, num_computed - self._known)
            return
        del self.ends_with[sequence]
        self.early.forget(sequence)
        if sequence in self.beyond and sequence not in self.leaving:
            self._come_off(sequence)
        _, behind = self.beyond.pop(sequence, ((), ()))
        if sequence in self.leaving:
            num_blocks, num_computed = self.leaving.pop(sequence)
            self._free(sequence, num_blocks, num_computed - len(behind), len(behind))

    def _forget_ended(self, sequence: SequenceState) -> None:
        """Forget a sequence that waits and whose last token comes, or is no more asked for."""
        del self.ends_with[sequence]
        self.beyond.pop(sequence, None)
        self.early.forget(sequence)
        self.waiting.remove(sequence)
        sequence.num_tokens = sequence.num_final_tokens

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
        elif sequence in self.ends_with and self.readmits:
            self._forget_ended(sequence)
        elif sequence in self.ends_with:
            del self.ends_with[sequence]
        else:
            self.waiting.remove(sequence)
            if (early := self.early.forget(sequence)) is not None:
                sequence.num_tokens = early.num_tokens
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
        for sequence in list(self.early):
            if sequence in self.prefilling:
                sequence.num_tokens = self.early[sequence].num_tokens
            self.early.forget(sequence)

    # --- what others see ------------------------------------------------------------------

    @property
    def num_running(self) -> int:
        """Sequences that hold memory."""
        return len(self.running)

    def head(self) -> SequenceState | None:
        """Return the next sequence to admit; None if there is none."""
        return self.waiting.head() if self.waiting.has_fresh else None
