"""A lane of a client that re-shards: it reports when it has no work in the present stage."""

from __future__ import annotations

from mist_sim.clients.engine.lane import Lane
from mist_sim.clients.engine.run import Run
from mist_sim.clients.kv_cache.moves.kv_move import KvMove
from mist_sim.clients.resharding.phases import PHASES, Phases
from mist_sim.clients.resharding.scheduler import set_all_aside, set_brought_aside
from mist_sim.clients.scheduling import StepPlan
from mist_sim.clients.sequence_state import SequenceState
from mist_sim.core.batch import StepBatch


class StagedLane(Lane):
    """A lane whose sequences may wait for the other stage, in its queue or in the host's buffer."""

    @property
    def phases(self) -> Phases:
        """The client's phases."""
        found: Phases = self.state.notes[PHASES]
        return found

    def end(self, run: Run, plan: StepPlan, batch: StepBatch) -> None:
        """Count the answers that are complete."""
        num_running = len(self.state.running)
        super().end(run, plan, batch)
        has_freed = len(self.state.running) < num_running
        if has_freed:
            self.phases.num_finished += 1
        self.phases.look(has_freed=has_freed)

    def abort(self, sequence: SequenceState, *, in_step: bool = False) -> None:
        """Let a sequence go, for which a stage may have gone on."""
        super().abort(sequence, in_step=in_step)
        self.phases.look(has_freed=True)

    def set_aside(self) -> None:
        """Let all answers go to the host's buffer; no step is in flight."""
        plan = StepPlan()
        set_all_aside(self.state, plan)
        if self.phases.stage == "decode":
            set_brought_aside(self.state, plan)
        if plan.moves:
            self.note(plan)

    def evict(self, plan: StepPlan) -> None:
        """Record evictions; sequences that wait in the buffer for their stage lose nothing."""
        super().evict(plan)
        if self.phases.stage == "prefill" or self.phases.asked:
            for sequence in plan.preempted:
                sequence.visit.num_preemptions -= 1

    def _end_move(self, move: KvMove) -> None:
        """End a move of entries; arrived entries leave room in the buffer for prompts."""
        super()._end_move(move)
        if move.kind == "swap_in" and self.phases.stage == "prefill":
            self.phases.look(has_freed=True)

    def _check_empty(self) -> None:
        """Change to the other stage if this one has no work left."""
        self.phases.look()
