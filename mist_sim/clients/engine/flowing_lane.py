"""A lane whose decodes may move to another client while they run, and which takes over decodes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import nan
from typing import Any

from mist_sim.clients.engine.lane import Lane
from mist_sim.clients.engine.run import Run
from mist_sim.clients.scheduling import LaneState, Scheduler, StepPlan
from mist_sim.clients.scheduling.admission import bring_entries
from mist_sim.clients.scheduling.flowing_answers import Flowing, flowing_of
from mist_sim.clients.sequence_state import SequenceState
from mist_sim.core.batch import StepBatch
from mist_sim.core.flowing import FlowRule
from mist_sim.core.visit import Moved, Visit
from mist_sim.environment import Environment
from mist_sim.stages import Decode


class FlowingLane(Lane):
    """A lane of a P-heavy or D-heavy client (TaiChi, §3.3).

    Decodes leave at the end of a step; their blocks stay taken until they are copied. Decodes of
    other clients join as soon as there is memory, even in steps that are full of prompts.

    Where steps are planned ahead, the next step is planned already when the rule looks, and
    includes the decodes that are to leave. So they leave at the end of that one, with its tokens,
    unless they are done, preempted or given up by then.

    flow: the rule that says which decodes leave. has_taker: returns whether another client is up
    that would continue them; if not, they stay. None: there always is one.
    """

    def __init__(
        self,
        env: Environment,
        scheduler: Scheduler,
        state: LaneState,
        *,
        flow: Flowing,
        has_taker: Callable[[], bool] | None = None,
        **others: Any,
    ) -> None:
        super().__init__(env, scheduler, state, **others)
        self._flow = flow
        self._has_taker = has_taker
        self._next_flow: Flowing | None = None  # from a step on that ends after `_turned_at`
        self._turned_at = nan
        self._due: list[tuple[int, SequenceState]] = []  # (ticket, leaves after the next step)

    def plan(
        self, limit: int | None = None, plan_on_the_spot: Callable[[], bool] | None = None
    ) -> StepPlan | None:
        """Return the next steps, as many as end before a decode may leave (see `Lane.plan`)."""
        plan = super().plan(1 if self._due else limit, plan_on_the_spot)
        if plan is None or not self.state.waiting:
            return plan
        head = self.state.head()
        if head and head.is_brought and not (head.has_rest or plan.is_disturbed):
            found = StepPlan()
            bring_entries(self.state, found)
            for move in found.moves:
                self._begin_move(move)
                plan.num_steps = 1  # its steps counted on the blocks that these take
        return plan

    def steps_until_flow(self, plan: StepPlan, run: Run) -> int:
        """Return after how many steps of a run decodes may leave, at most all of them."""
        if self._next_flow is not None:
            self._adopt()
        return self._flow.num_steps(self.state, plan, run.ends, run.num_steps)

    def turn(self, scheduler: Scheduler, rule: FlowRule | None) -> None:
        """Plan with another scheduler from now on, and let answers leave by another rule.

        rule: None: keep the present rule. The new one holds for running decodes, too, from the next
        step that ends.
        """
        self._adopt()
        self.scheduler = scheduler
        self._turned_at = self.env.now
        self._next_flow = None if rule is None else flowing_of(rule)

    def _adopt(self) -> None:
        """Apply the rule that was given last."""
        if self._next_flow is not None:
            self._flow, self._next_flow = self._next_flow, None
            self._due.clear()
            self._flow.meet(self.state)

    def end(self, run: Run, plan: StepPlan, batch: StepBatch) -> None:
        """Account for executed steps, and let decodes leave for other clients."""
        super().end(run, plan, batch)
        self.let_leave(run)

    def let_leave(self, run: Run) -> None:
        """Let decodes leave at the end of a run that is accounted for."""
        due, self._due = self._due, []
        if run.went_on or (self._has_taker is not None and not self._has_taker()):
            self._flow.keep(self.state, _still_here(due))
            return
        if run.end > self._turned_at and self._next_flow is not None:
            self._adopt()
            due = []
        if due:
            self._leave_for_others(_still_here(due))
        found = self._flow.leaving(self.state, run.end)
        if self.ahead is None:
            if found:
                self._leave_for_others(found)
        else:
            self._due = [(sequence.ticket, sequence) for sequence in found]
        if self.state.leaving:
            self.free_if_idle()

    def _leave_for_others(self, sequences: Sequence[SequenceState]) -> None:
        """End the visits of decodes whose rest other clients do, unless they were given up."""
        for sequence in sequences:
            if sequence.visit.outcome is None:
                self._leave_for_another(sequence)

    def _leave_for_another(self, sequence: SequenceState) -> None:
        """End the visit of a decode that another client continues."""
        self.state.move_out(sequence)
        self.records.evict(sequence)
        visit = sequence.visit
        visit.num_output_tokens = sequence.num_new_tokens
        visit.last_token_at = sequence.last_token_at
        visit.outcome = Moved(num_asked(visit) - sequence.num_new_tokens)
        visit.held_kv = self.held.hold(sequence, *self.state.held[sequence])
        visit.held_kv.compute_time = 0.0  # there is nothing that copying could overlap with
        visit.held_kv.pace = self._flow.pace(sequence, visit.last_token_at)
        self.leave(visit, None)


def _still_here(due: Sequence[tuple[int, SequenceState]]) -> list[SequenceState]:
    """Return those that have decoded since they were to leave, without a break."""
    return [sequence for ticket, sequence in due if sequence.ticket == ticket]


def num_asked(visit: Visit) -> int:
    """Return the tokens of the answer that a visit was asked for, the first token included."""
    kv = visit.kv
    stages = visit.stages
    # the first token may be one that its own decode emits
    is_first = stages[0].continues and kv is not None and not kv.num_output_tokens
    return is_first + sum([s.num_tokens if isinstance(s, Decode) else 1 for s in stages])
