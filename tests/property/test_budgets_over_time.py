"""A scheduler that sees the time plans as a plain engine does that looks at the clock each step."""

from __future__ import annotations

from dataclasses import dataclass, replace
from unittest.mock import patch

from hypothesis import event, given
from hypothesis import strategies as st

from mist_sim.clients.scheduling import ChunkedScheduler, LaneState, StepPlan
from mist_sim.simulation import Simulation
from mist_sim.testing import check_scheduler
from tests.effort import examples
from tests.property.strategies import ahead, ahead_together, cases
from tests.reference.comparison import POLICIES, Case, assert_exact, workload
from tests.reference.predictors import AWKWARD
from tests.reference.stepwise import Plan, StepwiseChunked


def tokens_at(time: float, period: float, most: int, least: int) -> int:
    """Tokens of a step: in every second period, half as many."""
    return most if time // period % 2 == 0 else max(least, most // 2)


@dataclass(frozen=True, kw_only=True)
class ByTheClock(ChunkedScheduler):
    """Half the budget in every second period."""

    sees_time = True
    period: float = 0.5

    def schedule(self, lane: LaneState, limit: int) -> StepPlan | None:
        least = lane.max_num_seqs * lane.clock.num_queries_each
        tokens = tokens_at(lane.time, self.period, self.max_num_batched_tokens, least)
        options = {"max_num_seqs": min(self.max_num_seqs, tokens), "max_num_batched_tokens": tokens}
        return ChunkedScheduler.schedule(replace(self, **options), lane, limit)


def classes(seconds: float) -> tuple[type[ChunkedScheduler], type[StepwiseChunked]]:
    """Return the scheduler, and the reference that does the same."""

    @dataclass(frozen=True, kw_only=True)
    class Scheduler(ByTheClock):
        period: float = seconds

    class Reference(StepwiseChunked):
        def plan(self) -> Plan:
            most = self.max_num_batched_tokens
            time = self.known_until if self.is_ahead else self.now
            least = self.max_num_seqs * (1 + self.num_drafts)
            self.max_num_batched_tokens = tokens_at(time, seconds, most, least)
            event(f"budget {'low' if self.max_num_batched_tokens < most else 'high'}")
            try:
                return super().plan()
            finally:
                self.max_num_batched_tokens = most

    return Scheduler, Reference


periods = st.sampled_from([0.004, 0.02, 0.1, 0.5])


def is_chunked(case: Case) -> bool:
    return case.options.policy == "chunked"


@given(case=cases(policy="chunked"), period=periods)
@examples(60)
def test_a_budget_that_follows_the_clock_is_exact(case, period):
    with patch.dict(POLICIES, chunked=classes(period)):
        assert_exact(case, AWKWARD)


@given(case=(ahead() | ahead_together()).filter(is_chunked), period=periods)
@examples(60)
def test_it_is_exact_where_steps_are_planned_ahead(case, period):
    with patch.dict(POLICIES, chunked=classes(period)):
        assert_exact(case, AWKWARD)


@given(case=cases(policy="chunked"))
@examples(30)
def test_a_clock_that_is_never_heeded_changes_nothing_on_any_engine(case):
    """Also in pipelines; runs are cut into single steps, and times stay the same."""
    plain = Simulation(clients=[case.client(AWKWARD)], workload=workload(case.jobs)).run()
    with patch.dict(POLICIES, chunked=classes(1e9)):
        seen = Simulation(clients=[case.client(AWKWARD)], workload=workload(case.jobs)).run()
    assert seen.requests.equals(plain.requests)


def test_the_scheduler_keeps_the_rules_of_schedulers():
    check_scheduler(lambda: ByTheClock(period=20, max_num_seqs=8, max_num_batched_tokens=64))
