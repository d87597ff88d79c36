"""The lane of a pipeline with one scheduler: its plans, and the tokens of its batches."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from mist_sim.clients.engine.lane import Lane
from mist_sim.clients.engine.queued.eager_cache import EagerAnswers
from mist_sim.clients.engine.queued.form import QueueForm
from mist_sim.clients.engine.queued.groups import Group, Pass
from mist_sim.clients.engine.queued.state import QueuedState
from mist_sim.clients.engine.run import Run
from mist_sim.clients.engine.step_records import StepRecords
from mist_sim.clients.kv_cache.pages import PageManager
from mist_sim.clients.scheduling import StepPlan
from mist_sim.clients.scheduling.preemption import num_to_compute
from mist_sim.clients.sequence_state import SequenceState
from mist_sim.core.views import OUT, WAITING


class QueuedLane(Lane):
    """Carries out a scheduler's plans while several of their batches are in flight.

    Every group of decodes has a track of records. `records` are those of the present group.

    some_left: whether sequences have left since the last plan.
    """

    state: QueuedState

    def __init__(
        self, *arguments: Any, form: QueueForm, tracks: Sequence[StepRecords], **options: Any
    ) -> None:
        """form: how batches are queued. tracks: one for each group. Others: of `Lane`."""
        super().__init__(*arguments, records=tracks[0], **options)
        self.form = form
        self.some_left = False
        state = self.state
        clocks = [state.clock, *map(state.new_clock, range(1, len(tracks)))]
        pairs = enumerate(zip(clocks, tracks, strict=True))
        state.groups = [Group(number, clock, records) for number, (clock, records) in pairs]
        state.group = state.groups[0]
        state.ahead, state.stagger = form.stagger > 0, form.stagger
        state.readmits = form.readmits
        state.overshoots = form.stagger == 1 and form.size > 2

    # --- a plan ---------------------------------------------------------------------------

    def send(self, number: int) -> Pass | None:
        """Plan the batch of a number; None if there is nothing to compute."""
        state, self.some_left = self.state, False
        for sequence in state.begin_plan(self._next_group(number), number):
            self._leave_group(sequence)
            state.move(sequence)
        state.kv_cache.num_plans += 1
        own = self._plans_single_steps
        plan = self._own_plan() if own else self.scheduler.schedule(state, 1)
        for sequence in state.gave_way:
            self._note_preempted(sequence)
        state.gave_way.clear()
        if plan is None:
            return None
        if plan.admitted:
            self._begin(plan.admitted)
        if plan.preempted or plan.dropped:
            self.evict(plan)
        return state.send(number, plan) if plan.prefills or plan.decodes else None

    def _next_group(self, number: int) -> Group:
        """Return the group to plan next: one that has decodes and no batch in flight."""
        groups, stagger = self.state.groups, self.form.stagger
        if stagger:
            return groups[number % stagger]
        free = [group for group in groups if not group.in_flight]
        return next((group for group in free if group.clock.num_decodes), free[0])

    def _leave_group(self, sequence: SequenceState) -> None:
        """Tell its records that a decode may go to another group."""
        giving = self.state.giving(sequence)
        if giving:
            giving[-1].left += (sequence,)
        else:
            self.state.records_of(sequence).evict(sequence)

    def evict(self, plan: StepPlan) -> None:
        """Note which sequences lost their memory; tokens on their way still come."""
        state = self.state
        for sequence in plan.preempted:
            self._note_preempted(sequence)
            giving, computing = state.taken.get(sequence, ((), ()))
            if giving:
                giving[-1].left += (sequence,)
            else:
                state.records_of(sequence).evict(sequence)
            awaited = computing if self.form.drains else giving
            if self.form.readmits:
                state.taken.pop(sequence, None)
                if giving:
                    state.early.wait(sequence, giving, [])
            elif awaited:
                state.waiting.stale.add(sequence)
                awaited[-1].released += (sequence,)
            else:
                state.taken.pop(sequence, None)
        for sequence in plan.dropped:
            reason = state.needs.outgrown(sequence) or "dropped"
            giving, _ = state.taken.pop(sequence, ((), ()))
            for each in giving:
                each.num_gone += sequence not in each.completed
            sequence.num_tokens -= len(giving)
            state.records_of(sequence).evict(sequence)
            sequence.visit.num_output_tokens = sequence.num_new_tokens
            self.leave(sequence.visit, reason)

    def _note_preempted(self, sequence: SequenceState) -> None:
        sequence.num_queued_tokens = num_to_compute(self.state, sequence)
        sequence.become(WAITING)
        sequence.visit.num_preemptions += 1

    def take_off(self, sequence: SequenceState) -> int:
        """Remove a running sequence before a change of layout."""
        self.records = self.state.records_of(sequence)
        return super().take_off(sequence)

    def go_on(self, sequence: SequenceState) -> None:
        """Record that a decode continues here after a change of layout."""
        first = self.state.groups[0]
        self.state.group_of[sequence] = self.state.home[sequence] = first
        first.records.resume(sequence)

    def check_asleep(self) -> None:
        """Raise InvariantError if a sequence waits although nothing is in flight."""
        self._check_empty()

    # --- a batch returns ------------------------------------------------------------------

    def give(self, found: Pass) -> None:
        """Hand out the tokens of a batch that has returned."""
        state, group, end = self.state, found.group, found.end
        records = group.records
        for sequence in found.joined:
            if sequence.phase != OUT:
                records.resume(sequence)
                state.home[sequence] = group
        self._write(found)
        for sequence in found.left:
            if sequence.phase != OUT:
                records.evict(sequence)
        for sequence in found.released:
            state.waiting.stale.discard(sequence)
            state.taken.pop(sequence, None)
        if state.ahead and state.kv_cache.caches_prefixes:
            state.group, answers = group, state.kv_cache.answers
            if isinstance(answers, EagerAnswers):
                answers.note_return()
            elif state.pages is not None:
                self._name_known(group, state.pages)
        ended = [each for each in found.ending if each.phase != OUT]
        for sequence in ended:
            state.finish_with(sequence)
            state.home.pop(sequence)
            self.hand_back(sequence, end)
            self.some_left = True
        if self.given_up:
            self.let_go(ended)

    def _write(self, found: Pass) -> None:
        """Write down a batch that has returned, and its first tokens."""
        self.records = records = found.group.records
        found.has_returned()
        if self.state.early:
            self.state.early.come(found)
        run, number = Run((), found.ready, found.end, 1, found.end, found.busy), found.num_gone
        records.run(run, found.batch, self.load.num_waiting, found.num_used, num_gone=number)
        if found.completed:
            self._emit(found)

    def _name_known(self, group: Group, pages: PageManager) -> None:
        """Let others find pages of answers whose token ids are known now."""
        state = self.state
        contexts = state.contexts(group)
        for sequence in state.in_turn(list(contexts)):
            pages.know(sequence, contexts[sequence] - state.num_due(sequence))

    def _emit(self, found: Pass) -> None:
        """Hand out the first tokens of answers."""
        state, group, end = self.state, found.group, found.end
        for sequence in found.completed:
            if sequence.phase == OUT:
                continue
            group.records.emit(sequence, end, goes_on=sequence not in found.ending)
            state.home[sequence] = group
            if self.gate is not None:
                self.gate.prompt_is_done(sequence)
            if state.awaiting.get(sequence) is found:
                del state.awaiting[sequence]
                state.go_on(sequence, group)

    def abort(self, sequence: SequenceState, *, in_step: bool = False) -> None:
        """Let a sequence go and free its memory; batches in flight compute it in vain."""
        self.records = self.state.records_of(sequence)
        super().abort(sequence, in_step=in_step)
        self.state.home.pop(sequence, None)
        self.some_left = True
