"""A lane: one scheduler on memory of its own, whose batch is computed in runs of steps."""

from __future__ import annotations

from collections.abc import Callable

from mist_sim.clients.kv_cache import KvCacheManager
from mist_sim.clients.scheduling import Scheduler, StepPlan
from mist_sim.clients.sequence import Sequence
from mist_sim.clients.speculative_clock import Speculation
from mist_sim.clients.step_records import Run, StepRecords
from mist_sim.core.events import Visit
from mist_sim.core.views import ClientState
from mist_sim.environment import Environment
from mist_sim.errors import InvariantError

_FIRST_RUN = 512  # steps computed ahead; doubles while nothing changes (DESIGN §5)
_LONGEST_RUN = 65536

Leave = Callable[[Visit, str | None], None]
"""Takes a visit that is over, and why it was rejected (None: it was served)."""


class Lane:
    """What a scheduler's plans and steps mean for its requests, the records and the load.

    Engines decide when a lane plans and how long its steps take.

    kv_cache: lends its KV blocks. load: the counts that routers see; lanes of a client share it.
    speculation: how it drafts tokens; None: it does not.
    """

    def __init__(
        self,
        env: Environment,
        scheduler: Scheduler,
        kv_cache: KvCacheManager,
        *,
        records: StepRecords,
        load: ClientState,
        leave: Leave,
        speculation: Speculation | None = None,
    ) -> None:
        self.env = env
        self.scheduler = scheduler
        self.load = load
        self._records = records
        self._leave = leave
        self._run_limit = _FIRST_RUN
        scheduler.start(kv_cache)
        if speculation:
            scheduler.speculate(speculation)

    @property
    def num_waiting(self) -> int:
        """Sequences that wait for admission."""
        return len(self.scheduler.waiting)

    @property
    def num_running(self) -> int:
        """Sequences that hold memory."""
        return len(self.scheduler.running)

    def plan(self, limit: int | None = None) -> StepPlan | None:
        """Return the next steps, which start now; None when there is nothing to do.

        limit: the most steps; None: as many as runs have by now.
        """
        while True:
            plan = self.scheduler.schedule(limit or self._run_limit)
            if plan is None:
                if self.scheduler.holds_back:  # nothing runs, so no plan was made ahead
                    self.scheduler.release()
                    continue
                self._check_empty()
                return None
            if plan.admitted:
                self._begin(plan.admitted)
            if plan.preempted or plan.dropped:
                self._evict(plan)
            if plan.prefills or plan.decodes:
                return plan
            if not plan.dropped:
                raise InvariantError(
                    f"{type(self.scheduler).__name__} planned a step of nothing at {self.env.now} s"
                )

    def _begin(self, admitted: list[Sequence]) -> None:
        """Note who got memory now, and what the cache had of a prompt that starts."""
        now = self.env.now
        for sequence in admitted:
            visit = sequence.visit
            if not visit.num_preemptions:
                visit.started_at = now
                if self.scheduler.kv_cache.caches_prefixes:
                    visit.num_queried_tokens = sequence.num_prompt_tokens
                    visit.num_cached_tokens = sequence.num_computed_tokens
        self.load.num_waiting -= len(admitted)
        self.load.num_running += len(admitted)

    def _evict(self, plan: StepPlan) -> None:
        """Note what lost its memory, and hand back what can never have enough."""
        self.load.num_waiting += len(plan.preempted)
        self.load.num_running -= len(plan.preempted) + len(plan.dropped)
        for sequence in plan.preempted:
            self._records.evict(sequence)
            sequence.visit.num_preemptions += 1
        for sequence in plan.dropped:
            self._records.evict(sequence)
            sequence.visit.num_output_tokens = sequence.num_output_tokens
            self._leave(sequence.visit, self.scheduler.outgrown(sequence) or "dropped")

    def end(self, run: Run) -> None:
        """Account for executed steps and hand back what finished."""
        emitted, finished = self.scheduler.update(run.plan, run.num_steps)
        tokens = self.scheduler.clock.step_tokens if run.plan.decodes else None
        self._records.run(run, self.load.num_waiting, self.scheduler.num_peak_blocks, tokens)
        for sequence in emitted:
            self._records.emit(sequence, run.end)
        for sequence in finished:
            self._records.finish(sequence)
            sequence.visit.num_output_tokens = sequence.num_output_tokens
            self._leave(sequence.visit, None)
        self.load.num_running -= len(finished)
        unchanged = not emitted and not finished and run.num_steps == self._run_limit
        self._run_limit = min(2 * self._run_limit, _LONGEST_RUN) if unchanged else _FIRST_RUN

    def _check_empty(self) -> None:
        if self.scheduler.waiting:
            raise InvariantError(
                f"{self.load.name} sleeps at {self.env.now} s with {self.num_waiting} "
                f"requests waiting, the first is {self.scheduler.waiting.head().visit.request}"
            )
