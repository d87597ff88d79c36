"""Schedulers of one's own give what the built-in rules and plain references give, to the bit."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from unittest.mock import patch

import pytest
from hypothesis import assume, event, given
from hypothesis import strategies as st

from mist_sim import llm_client
from mist_sim.clients.scheduling import (
    ChunkedScheduler,
    ContinuousScheduler,
    LaneState,
    Ranked,
    Scheduler,
    StepPlan,
    WaitingQueue,
    add_prefill,
    admit,
    admit_next,
    decode_steps,
    make_room,
    next_to_admit,
    preempt,
    take_in_turn,
    tokens_to_compute,
)
from mist_sim.clients.scheduling.admission import add_piece
from mist_sim.clients.scheduling.lane_view import Inside, LaneView
from mist_sim.clients.sequence_state import SequenceState
from mist_sim.errors import InvariantError, ScenarioError
from mist_sim.metrics import Result
from mist_sim.simulation import Simulation
from mist_sim.testing import check_scheduler
from tests.effort import examples
from tests.property.loop_cases import crowd, engines, pipeline, run_case
from tests.property.strategies import ahead, cases, copies
from tests.property.test_step_core import assert_same_steps
from tests.reference.comparison import POLICIES, Case, EngineOptions, assert_exact, workload
from tests.reference.predictors import AWKWARD, DYADIC, LINES
from tests.reference.stepwise import Job, Plan, StepwiseChunked


@dataclass(frozen=True, kw_only=True)
class Chunked(ChunkedScheduler):
    """The built-in rules of pieces, by the guide's functions."""

    def schedule(self, lane: LaneState, limit: int) -> StepPlan | None:
        plan, whole = StepPlan(), self.scheduler_reserve_full_isl
        disturbed, budget = take_in_turn(lane, plan, self.max_num_batched_tokens, min)
        plan.decodes = lane.clock.num_decodes > 0
        while not disturbed and budget and (num_new := admit_next(lane, plan, budget, whole=whole)):
            budget -= num_new
        return None if plan.is_empty else plan


@dataclass(frozen=True, kw_only=True)
class Continuous(ContinuousScheduler):
    """Those of whole prompts."""

    def schedule(self, lane: LaneState, limit: int) -> StepPlan | None:
        plan, budget = StepPlan(), self.max_num_batched_tokens or 2**62
        for lost in lane.prefilling:
            budget -= add_prefill(lane, plan, lost, lost.num_tokens - lost.num_computed_tokens)
        while sequence := next_to_admit(lane, plan):
            num_tokens = tokens_to_compute(lane, sequence)
            if plan.prefills and num_tokens > budget:
                break
            budget -= admit(lane, plan, sequence, num_tokens)
        if plan.prefills:
            return plan
        make_room(lane, plan)
        return decode_steps(lane, plan, limit)


class GuidedChunked(ChunkedScheduler):
    """Pieces by `make_room` and `add_prefill`, on a class whose prompts take blocks piecewise."""

    def schedule(self, lane: LaneState, limit: int) -> StepPlan | None:
        plan = StepPlan()
        disturbed = make_room(lane, plan)
        budget = self.max_num_batched_tokens - lane.clock.num_decodes
        for sequence in list(lane.prefilling):
            num_to_go = sequence.num_tokens - sequence.num_computed_tokens
            if sequence in lane.running and (num_new := min(num_to_go, budget)):
                budget -= add_prefill(lane, plan, sequence, num_new)
        while not (disturbed or plan.preempted) and budget > 0:
            if not (num_new := admit_next(lane, plan, budget)):
                break
            budget -= num_new
        plan.decodes = lane.clock.num_decodes > 0
        return None if plan.is_empty else plan


def without_options(case: Case) -> Case:
    """Return a case without the options that `Chunked` leaves out."""
    options = case.options
    changed = replace(
        options,
        threshold=None,
        prefill_schedule_interval=1,
        pads_prompts=False,
        max_partial=1,
        swap=None if options.policy == "chunked" else options.swap,
    )
    return replace(case, options=changed)


def run(case: Case) -> Result:
    return Simulation(clients=[case.client(AWKWARD)], workload=workload(case.jobs)).run()


def assert_same(case: Case, **own: type[Scheduler]) -> None:
    """Run a case with the built-in scheduler and with one's own; all steps have the same bits."""
    case = without_options(case)
    built_in = run(case)
    policies = {name: (kind, POLICIES[name][1]) for name, kind in own.items()}
    with patch.dict(POLICIES, policies):
        mine = run(case)
    assert mine.requests.equals(built_in.requests)
    assert [list(each) for each in mine.recorder.step_ends] == [
        list(each) for each in built_in.recorder.step_ends
    ]
    event(f"preempted: {built_in.requests['num_preemptions'].any()}")


@given(case=cases(policy="chunked") | ahead(drafts=True) | copies())
@examples(150)
def test_pieces_written_anew_have_equal_bits(case):
    assume(case.options.policy == "chunked")
    assert_same(case, chunked=Chunked)


@given(case=cases(policy="continuous", drafts=False))
@examples(60)
def test_whole_prompts_written_anew_have_equal_bits(case):
    assert_same(case, continuous=Continuous)


@given(case=cases(policy="chunked", ample=True, drafts=False))
@examples(60)
def test_guided_pieces_equal_the_built_in_in_ample_memory(case):
    assert_same(case, chunked=GuidedChunked)


class Written(ChunkedScheduler):
    """The same, where the core asks for each of them."""

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
    | st.integers(0, 2**32).map(pipeline),
    predictor=st.sampled_from([AWKWARD, DYADIC, LINES]),
    kind=st.sampled_from([Written, Asked, Pieces]),
)
@examples(200)
def test_rules_that_the_core_asks_for_have_equal_bits(case, predictor, kind):
    """Planned as steps begin or ahead, and in pipelines."""
    if kind is Asked:
        case = replace(case, options=replace(case.options, order="fcfs"))
    expected = run_case(case, predictor, "step")
    with patch.dict(POLICIES, chunked=(kind, POLICIES["chunked"][1])):
        found = run_case(case, predictor, "step")
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


@given(case=engines(longest=60))
@examples(150)
def test_one_that_preempts_for_a_seat_is_exact(case):
    options = replace(
        case.options,
        order="priority",
        max_num_seqs=min(3, case.options.max_num_seqs),
        windows=None,
        swap=None,
        spares_in_flight=False,  # with tiers and planned ahead, the core does not serve it
    )
    with patch.dict(POLICIES, chunked=(Urgent, StepwiseUrgent)):
        assert_exact(without_options(replace(case, options=options)), AWKWARD)


def test_rules_that_only_the_core_asks_for_go_with_nothing_else():
    urgent = {"scheduler": Urgent(), "step_loop": "general"}
    with pytest.raises(ScenarioError, match=r"scheduler Urgent, which has begin of its own, must"):
        llm_client("llm", model="llama-3.1-8b", gpu="h100-sxm", **urgent)


# --- what the check sees ----------------------------------------------------------------------


class Hasty(ChunkedScheduler):
    """Prompts of an odd length go first, and take the seat of the last admitted of the others."""

    def schedule(self, lane: LaneState, limit: int) -> StepPlan | None:
        first, head = StepPlan(), lane.head()
        if head is not None and not lane.has_seat() and head.num_prompt_tokens % 2:
            less = [each for each in lane.running if not each.num_prompt_tokens % 2]
            less = [each for each in less if not lane.is_busy(each)]
            if less:
                preempt(lane, first, less[-1])
        plan = ChunkedScheduler.schedule(self, lane, 1 if first.preempted else limit)
        if plan is None:
            return first if first.preempted else None
        plan.preempted = first.preempted + plan.preempted
        return plan

    def would_admit(self, lane: LaneState, sequence: SequenceState, num_steps: int) -> bool:
        return True

    def new_queue(self) -> WaitingQueue:
        return Ranked(lambda sequence: not sequence.num_prompt_tokens % 2)


@pytest.mark.parametrize("scheduler", [GuidedChunked, Hasty])
def test_the_check_passes_them(scheduler):
    check_scheduler(scheduler)


def test_the_check_fails_plans_of_many_steps_that_nothing_cuts(monkeypatch):
    """As those of one that preempts were: nobody asked it before a run had ended."""
    monkeypatch.setattr(Scheduler, "plans_single_steps", property(lambda self: self.sees_time))
    with pytest.raises(AssertionError, match="Hasty.schedule: plans of many steps .* full"):
        check_scheduler(Hasty)


def test_the_check_fails_pieces_that_take_no_blocks(monkeypatch):
    """As those of `add_prefill` were."""
    monkeypatch.setattr(f"{__name__}.add_prefill", add_piece)
    with pytest.raises(AssertionError, match=r"GuidedChunked.* blocks"):
        check_scheduler(GuidedChunked)


ROOMY = EngineOptions("chunked", 60, 1, 4, 32)


class LeavesDecodesOut(ChunkedScheduler):
    """Gives decodes their blocks, and then plans prompts alone."""

    def schedule(self, lane: LaneState, limit: int) -> StepPlan | None:
        plan = StepPlan()
        make_room(lane, plan)
        if not admit_next(lane, plan):
            plan.decodes = lane.clock.num_decodes > 0
        return None if plan.is_empty else plan


def test_decodes_left_out_with_their_blocks_stop_the_run():
    jobs = (Job(0.0, 8, 20), Job(0.003, 8, 20))
    with (
        patch.dict(POLICIES, chunked=(LeavesDecodesOut, StepwiseChunked)),
        pytest.raises(InvariantError, match="LeavesDecodesOut.schedule gave the decodes"),
    ):
        run(Case(ROOMY, jobs))
