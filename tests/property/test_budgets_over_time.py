"""A scheduler that sees the time plans as a plain engine does that looks at the clock each step."""

from dataclasses import dataclass
from unittest.mock import patch

import pytest
from hypothesis import event, given
from hypothesis import strategies as st

from mist_sim.clients.scheduling import ChunkedScheduler
from mist_sim.clients.scheduling.lane_view import LaneView
from mist_sim.testing import check_scheduler
from tests.effort import examples
from tests.property.loop_cases import engines
from tests.reference.comparison import POLICIES, Case, assert_exact
from tests.reference.predictors import AWKWARD
from tests.reference.stepwise import Plan, StepwiseChunked


def tokens_at(time: float, period: float, most: int, least: int) -> int:
    """Tokens of a step: in every second period, half as many."""
    return most if time // period % 2 == 0 else max(least, most // 2)


@dataclass(frozen=True, kw_only=True)
class ByTheClock(ChunkedScheduler):
    """Half the budget in every second period."""

    period: float = 0.5
    block: int = 0

    def budget(self, lane: LaneView) -> int:
        least = max(self.block, lane.max_num_seqs * lane.num_queries)
        return tokens_at(lane.time, self.period, self.max_num_batched_tokens, least)


def least_of_a_block(case: Case) -> int:
    """Tokens below which no piece fits: before 0.26 those of a block where states are kept."""
    windows = case.options.windows
    kept = None if windows is None else windows.kept
    return 0 if kept is None or kept.goes_on else case.options.block_size


def classes(seconds: float, size: int = 0) -> tuple[type[ChunkedScheduler], type[StepwiseChunked]]:
    """Return the scheduler, and the reference that does the same."""

    @dataclass(frozen=True, kw_only=True)
    class Scheduler(ByTheClock):
        period: float = seconds
        block: int = size

    class Reference(StepwiseChunked):
        def plan(self) -> Plan:
            most = self.max_num_batched_tokens
            time = self.known_until if self.is_ahead else self.now
            least = max(size, self.max_num_seqs * (1 + self.num_drafts))
            self.max_num_batched_tokens = tokens_at(time, seconds, most, least)
            event(f"budget {'low' if self.max_num_batched_tokens < most else 'high'}")
            try:
                return super().plan()
            finally:
                self.max_num_batched_tokens = most

    return Scheduler, Reference


periods = st.sampled_from([0.004, 0.02, 0.1, 0.5])


@pytest.mark.exact
@given(case=engines(longest=60) | engines(longest=60, drafts=None), period=periods)
@examples(120)
def test_a_budget_that_follows_the_clock_is_exact(case, period):
    with patch.dict(POLICIES, chunked=classes(period, least_of_a_block(case))):
        assert_exact(case, AWKWARD)


def test_the_scheduler_keeps_the_rules_of_schedulers():
    check_scheduler(lambda: ByTheClock(period=20, max_num_seqs=8, max_num_batched_tokens=64))
