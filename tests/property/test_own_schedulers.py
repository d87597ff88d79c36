"""Schedulers of one's own give what the built-in rules and plain references give, to the bit."""

from collections.abc import Sequence
from dataclasses import replace
from typing import ClassVar
from unittest.mock import patch

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mist_sim.clients.scheduling import ChunkedScheduler, Scheduler
from mist_sim.clients.scheduling.lane_view import Inside, LaneView
from mist_sim.errors import ScenarioError
from tests.effort import examples
from tests.property.loop_cases import copying, crowd, engines, pipeline, run_case
from tests.property.test_step_core import assert_same_steps
from tests.reference.comparison import POLICIES, Case, assert_exact
from tests.reference.predictors import AWKWARD, DYADIC, LINES
from tests.reference.stepwise import Plan, StepwiseChunked


def without_options(case: Case) -> Case:
    """Return a case without the options that `StepwiseUrgent` leaves out."""
    options, swap = case.options, case.options.swap
    changed = replace(
        options,
        threshold=None,
        prefill_schedule_interval=1,
        pads_prompts=False,
        max_partial=1,
        swap=swap if swap is not None and swap.overlaps else None,
    )
    return replace(case, options=changed)


class Written(ChunkedScheduler):
    """The built-in rules, where the core asks for each of them."""

    def begin(self, lane: LaneView) -> None:
        assert lane.num_decodes <= lane.max_num_seqs

    def budget(self, lane: LaneView) -> int:
        return self.max_num_batched_tokens

    def piece(self, lane: LaneView, prompt: Inside, num_tokens: int, most: int) -> int:
        return min(num_tokens, most)

    def admits(self, lane: LaneView, prompt: Inside, num_new: int) -> bool:
        return lane.has_seat


class Asked(Written):
    """With whom gives way."""

    def victim(self, lane: LaneView, running: Sequence[Inside]) -> Inside:
        return running[-1]


class Pieces(ChunkedScheduler):
    """One that leaves quiet steps alone."""

    def piece(self, lane: LaneView, prompt: Inside, num_tokens: int, most: int) -> int:
        return min(num_tokens, most)


@pytest.mark.exact
@given(
    case=engines()
    | engines(drafts=None)
    | st.integers(0, 2**32).map(crowd)
    | st.integers(0, 2**32).map(copying)
    | st.integers(0, 2**32).map(pipeline),
    predictor=st.sampled_from([AWKWARD, DYADIC, LINES]),
    kind=st.sampled_from([Written, Asked, Pieces]),
)
@examples(200)
def test_rules_that_core_asks_for_have_equal_bits(case, predictor, kind):
    """Planned as steps begin or ahead, in pipelines, and while blocks are copied."""
    if kind is Asked:
        case = replace(case, options=replace(case.options, order="fcfs"))
    theirs = patch.dict(POLICIES, chunked=(kind, POLICIES["chunked"][1]))
    try:
        expected = run_case(case, predictor)
    except ScenarioError:  # it never ends, by whichever rules
        with theirs, pytest.raises(ScenarioError, match="for ever|lets no request compute"):
            run_case(case, predictor)
        return
    with theirs:
        found = run_case(case, predictor)
    assert_same_steps(found, expected)


# --- one that preempts ------------------------------------------------------------------------


class Urgent(ChunkedScheduler):
    """Who is more urgent takes the seat of the last admitted of those who are less so."""

    def begin(self, lane: LaneView) -> None:
        head = lane.head
        if head is not None and not lane.has_seat:
            less = [each for each in lane.running if each.request.priority > head.request.priority]
            if less:
                lane.preempt(less[-1])


class StepwiseUrgent(StepwiseChunked):
    """The same, one step at a time, without a shortcut."""

    def plan(self) -> Plan:
        if (self.queue or self.loaded) and len(self.running) >= self.max_num_seqs:
            head = self.head()
            less = [
                live
                for live in self.active
                if live in self.running and live.job.priority > head.job.priority
            ]
            if less:
                self.preempt(less[-1])
        return super().plan()


@given(case=engines(longest=60) | st.integers(0, 2**32).map(copying))
@examples(150)
def test_one_that_preempts_for_a_seat_is_exact(case):
    options = replace(
        case.options, order="priority", max_num_seqs=min(3, case.options.max_num_seqs), windows=None
    )
    with patch.dict(POLICIES, chunked=(Urgent, StepwiseUrgent)):
        assert_exact(without_options(replace(case, options=options)), AWKWARD)


# --- what was withdrawn -----------------------------------------------------------------------


class PlansAsBefore(ChunkedScheduler):
    """One that fills plans."""

    def schedule(self, lane, limit):
        return super().schedule(lane, limit)


class AsksBefore(ChunkedScheduler):
    """One that says who cuts plans of many steps."""

    def would_admit(self, lane, sequence, num_steps):
        return True


class WholeBlocks(ChunkedScheduler):
    """One whose prompts take all their blocks."""

    by_piece: ClassVar[bool] = False


class FromTheBase(Scheduler):
    """One with no rules."""


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        (PlansAsBefore, "PlansAsBefore must not have `schedule`, which engines no longer ask"),
        (AsksBefore, "AsksBefore must not have `would_admit`"),
        (WholeBlocks, "WholeBlocks must not have `by_piece`"),
        (FromTheBase, "FromTheBase has no rules"),
    ],
)
def test_what_was_withdrawn_says_what_to_write_instead(kind, message):
    with pytest.raises(ValueError, match=message + r".* write `plan\(lane\)`"):
        kind()
