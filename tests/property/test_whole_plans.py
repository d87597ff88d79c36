"""Whole plans of a scheduler of one's own, in the engine core.

Written as plans, the built-in rules give the same bits; other policies are as in a plain reference.
"""

from dataclasses import replace
from unittest.mock import patch

import pytest
from hypothesis import assume, event, given
from hypothesis import strategies as st

from mist_sim.clients.scheduling import ChunkedScheduler
from mist_sim.clients.scheduling.lane_view import Inside, LaneView
from mist_sim.errors import ScenarioError
from mist_sim.metrics import Result
from mist_sim.testing import check_scheduler
from tests.effort import examples
from tests.property.loop_cases import (
    above_tiers,
    crowd,
    engines,
    flows,
    pausing,
    pipeline,
    roles,
    run_case,
    virtual_engines,
)
from tests.property.test_adapters import TIMED
from tests.property.test_adapters import engines as with_adapters
from tests.property.test_step_core import assert_same_steps
from tests.reference.comparison import POLICIES, Case, EngineOptions, assert_exact
from tests.reference.predictors import AWKWARD, DYADIC, LINES
from tests.reference.stepwise import Job, Live, Plan, StepwiseChunked


class Planned(ChunkedScheduler):
    """The built-in rules: decodes first, then pieces of prompts, then admissions."""

    def plan(self, lane: LaneView) -> None:
        running = lane.running
        decodes = [each for each in running if each.is_decoding]
        prompts = [each for each in running if not each.is_decoding]
        has_preempted = False
        for each in decodes + prompts:
            has_preempted |= self.run_or_preempt(lane, each, None)
        if not has_preempted:
            self.let_in(lane)

    def run_or_preempt(self, lane: LaneView, each: Inside, most: int | None) -> bool:
        """Let one take part, for which the last admitted give way; return whether any did."""
        has_preempted = False
        if each not in lane.seated:
            return False
        while lane.lacks(each, most):
            last = lane.seated[-1]
            lane.preempt(last)
            has_preempted = True
            if last == each:
                return True
        lane.run(each, most)
        return has_preempted

    def let_in(self, lane: LaneView) -> None:
        """Admit in order, as far as there is room."""
        while (head := lane.head) is not None:
            if not lane.admit(head) and lane.head == head:
                return


class InTurn(Planned):
    """Those where windows give pages back: in order of admission; decodes have their tokens."""

    def plan(self, lane: LaneView) -> None:
        has_preempted = False
        waiting = [each for each in lane.running if each.is_decoding]
        for each in lane.running:
            if each in waiting:
                waiting.remove(each)
            waiting = [other for other in waiting if other in lane.seated]
            most = lane.num_tokens_left - len(waiting) * lane.num_queries
            if each.is_decoding or most > 0:
                has_preempted |= self.run_or_preempt(lane, each, max(1, most))
        if not has_preempted:
            self.let_in(lane)


class InOrder(Planned):
    """Those where states are kept: tokens in order of admission, too."""

    def plan(self, lane: LaneView) -> None:
        has_preempted = False
        for each in lane.running:
            if lane.num_tokens_left <= 0:
                break
            has_preempted |= self.run_or_preempt(lane, each, None)
        if not has_preempted:
            self.let_in(lane)


def as_plan(options: EngineOptions) -> tuple[EngineOptions, type[ChunkedScheduler]]:
    """Return options without what a plan says itself, and the kind that says it."""
    options = replace(
        pausing(options),
        order="fcfs",
        prefill_schedule_interval=1,
        max_partial=options.max_num_seqs,
        spares_in_flight=False,
        # with windows the built-in rules swap by a count that is too high for some
        **({} if options.windows is None else {"swap": None}),
    )
    if options.windows is None:
        return options, Planned
    return options, InTurn if options.windows.kept is None else InOrder


def caches_more(options: EngineOptions, result: Result) -> bool:
    """Tell whether one that gave way may have cached more than by the built-in rules.

    It had its turn in the plan before others lacked blocks, and its drafts are verified by the step
    in flight.
    """
    verifies = options.drafting is not None and options.async_scheduling and options.caching
    return verifies and bool(result.requests["num_preemptions"].any())


@pytest.mark.exact
@given(
    case=engines()
    | engines(drafts=None)
    | virtual_engines()
    | st.integers(0, 2**32).map(crowd)
    | st.integers(0, 2**32).map(above_tiers)
    | st.integers(0, 2**32).map(pipeline),
    predictor=st.sampled_from([AWKWARD, DYADIC, LINES]),
)
@examples(300)
def test_built_in_rules_as_plan_have_equal_bits(case, predictor):
    """Planned as steps begin or ahead, in pipelines and virtual engines, with all that there is."""
    assume(case.options.policy == "chunked")
    options, kind = as_plan(case.options)
    case = replace(case, options=options)
    try:
        expected = run_case(case, predictor)
    except ScenarioError:  # prompts take one another's blocks for ever
        return
    with patch.dict(POLICIES, chunked=(kind, POLICIES["chunked"][1])):
        found = run_case(case, predictor)
    if not caches_more(options, expected):
        assert_same_steps(found, expected)
    event(f"{kind.__name__}, preempted: {expected.requests['num_preemptions'].any()}")


@given(
    case=engines(longest=60), size=st.integers(2, 4), predictor=st.sampled_from([AWKWARD, LINES])
)
@examples(50)
def test_plans_in_lockstep_have_equal_bits(case, size, predictor):
    assume(case.options.policy == "chunked")
    options, kind = as_plan(replace(case.options, lockstep=True, data_parallel_size=size, tiers=()))
    case = replace(case, options=options)
    expected = run_case(case, predictor)
    with patch.dict(POLICIES, chunked=(kind, POLICIES["chunked"][1])):
        found = run_case(case, predictor)
    if not caches_more(options, expected):
        assert_same_steps(found, expected)


@given(case=roles() | flows(), predictor=st.sampled_from([AWKWARD, DYADIC, LINES]))
@examples(100)
def test_plans_of_clients_with_roles_have_equal_bits(case, predictor):
    """Entries come from other clients, and answers flow between them."""
    several = [as_plan(options) for options in case.clients]
    case = replace(case, clients=tuple(options for options, _ in several))
    kinds = {kind for _, kind in several}
    assume(len(kinds) == 1)
    try:
        expected = case.simulation(predictor).run()
    except ScenarioError:  # answers wait for one another's memory
        return
    with patch.dict(POLICIES, chunked=(kinds.pop(), POLICIES["chunked"][1])):
        found = case.simulation(predictor).run()
    if not any(caches_more(options, expected) for options in case.clients):
        assert_same_steps(found, expected)


class AdmitsAny(Planned):
    """Admits whoever may come in, in whatever order, and looks at the adapters of those inside."""

    def let_in(self, lane: LaneView) -> None:
        for each in reversed(lane.waiting):
            lane.admit(each)
        found = {each.request.adapter for each in lane.running} - {None}
        assert len(found) <= MOST[0]


MOST = [0]
"""The adapters that may run together, in the present test."""


@given(case=with_adapters(), predictor=st.just(TIMED), kind=st.sampled_from([Planned, AdmitsAny]))
@examples(100)
def test_plans_find_slots_of_adapters(case, predictor, kind):
    options, _ = as_plan(case.options)
    assume(options.policy == "chunked" and options.windows is None)
    case = replace(case, options=options)
    MOST[0] = options.lora.max_loras
    expected = run_case(case, predictor)
    with patch.dict(POLICIES, chunked=(kind, POLICIES["chunked"][1])):
        found = run_case(case, predictor)
    if kind is Planned:
        assert_same_steps(found, expected)


# --- other policies ---------------------------------------------------------------------------


class FewAtATime(ChunkedScheduler):
    """At most two answers go on in a step, the shortest first, and then prompts do.

    The last admitted gives way to them, or else to the first prompt.
    """

    def plan(self, lane: LaneView) -> None:
        decodes = [each for each in lane.running if each.is_decoding]
        decodes.sort(key=lambda each: each.num_tokens - each.num_prompt_tokens)
        has_preempted = False
        for each in decodes[:2] or lane.running[:1]:
            while each in lane.seated and lane.lacks(each):
                lane.preempt(lane.seated[-1])
                has_preempted = True
            if each in lane.seated:
                lane.run(each)
        for each in lane.running[0 if decodes else 1 :]:
            if not each.is_decoding:
                lane.run(each)
        while not has_preempted and (head := lane.head) is not None and lane.admit(head):
            pass


class StepwiseFewAtATime(StepwiseChunked):
    """The same, one step at a time."""

    def plan(self) -> Plan:
        self.is_held = self.carries = False
        self.begin_plan()
        self.is_alone = len(self.known) + len(self.running) == 1
        served: list[tuple[Live, int, int]] = []
        decodes = [live for live in self.active if live.decoding]
        decodes.sort(key=lambda live: live.num_known - live.job.num_prompt_tokens)
        before, prompts = list(self.running), self.active[:1]
        budget = self.max_num_batched_tokens
        for live in decodes[:2] or prompts:
            num_new = 1 if live.decoding else self.piece(live, budget)
            need = self.blocks_in_turn(live, num_new)
            while live in self.running and need + sum(n for *_, n in served) > self.num_free:
                victim = self.running[-1]
                self.preempt(victim, was_served=victim in [each for each, *_ in served])
                served = [entry for entry in served if entry[0] is not victim]
            if live in self.running:
                served.append((live, num_new, need))
        budget -= sum(num_new for _, num_new, _ in served)
        for live in self.active[0 if decodes else 1 :]:
            if not live.decoding and (num_new := self.piece(live, budget)):
                need = self.blocks_in_turn(live, num_new)
                if need + sum(n for *_, n in served) <= self.num_free:
                    served.append((live, num_new, need))
                    budget -= num_new
        chunks, found = self.take(served)
        disturbed = len(self.running) < len(before)
        self.sitting = [live for live in self.decodes if live not in found]
        if len(self.sitting) == len(self.decodes) and not chunks:
            self.sitting = []
        self.idle, self.pads = [], {}
        if not disturbed:
            self.admit_pieces(chunks, found, budget)
        return chunks, found

    def decode_need(self) -> int:
        """Blocks that nobody may take: none, as a plan gives them at once."""
        return 0


class PromptsFirst(ChunkedScheduler):
    """Prompts as long as any can be computed; answers go on in the steps between."""

    def plan(self, lane: LaneView) -> None:
        has_prompts = False
        for each in lane.running:
            if not each.is_decoding:
                has_prompts |= lane.run(each) > 0
        while (head := lane.head) is not None and lane.admit(head):
            has_prompts = True
        if has_prompts:
            return
        for each in lane.running:
            while each in lane.seated and lane.lacks(each):
                lane.preempt(lane.seated[-1])
            if each in lane.seated:
                lane.run(each)


class StepwisePromptsFirst(StepwiseFewAtATime):
    """The same, one step at a time."""

    def plan(self) -> Plan:
        self.is_held = self.carries = False
        self.begin_plan()
        self.is_alone = len(self.known) + len(self.running) == 1
        self.idle, self.pads, self.sitting = [], {}, []
        served: list[tuple[Live, int, int]] = []
        budget = self.max_num_batched_tokens
        for live in self.active:
            if not live.decoding and (num_new := self.piece(live, budget)):
                need = self.blocks_in_turn(live, num_new)
                if need + sum(n for *_, n in served) <= self.num_free:
                    served.append((live, num_new, need))
                    budget -= num_new
        chunks, _ = self.take(served)
        self.admit_pieces(chunks, [], budget)
        if chunks:
            self.sitting = list(self.decodes)
            return chunks, []
        served = []
        for live in list(self.active):
            if live not in self.running:
                continue
            budget = self.max_num_batched_tokens - sum(new for _, new, _ in served)
            num_new = 1 if live.decoding else self.piece(live, budget)
            need = self.next_blocks(live) if live.decoding else self.blocks_in_turn(live, num_new)
            while live in self.running and need + sum(n for *_, n in served) > self.num_free:
                victim = self.running[-1]
                self.preempt(victim, was_served=victim in [each for each, *_ in served])
                served = [entry for entry in served if entry[0] is not victim]
            if live in self.running and num_new:
                served.append((live, num_new, need))
        return self.take(served)


@given(
    case=engines(longest=60) | st.integers(0, 2**32).map(crowd),
    predictor=st.sampled_from([AWKWARD, DYADIC]),
    kinds=st.sampled_from([(FewAtATime, StepwiseFewAtATime), (PromptsFirst, StepwisePromptsFirst)]),
)
@examples(200)
def test_other_plans_are_as_in_the_reference(case, predictor, kinds):
    """Planned as steps begin or ahead, with prefix caches and time limits."""
    options, kind = as_plan(case.options)
    assume(options.policy == "chunked" and kind is Planned)
    options = replace(options, tiers=(), swap=None, drafting=None)
    with patch.dict(POLICIES, chunked=kinds):
        engine = assert_exact(replace(case, options=options), predictor)
    preempted = any(outcome.preempted_at for outcome in engine.outcomes)
    paused = any(outcome.num_sat_out for outcome in engine.outcomes)
    event(f"preempted: {preempted}, paused: {paused}")


@pytest.mark.parametrize("kind", [Planned, FewAtATime, PromptsFirst])
def test_the_check_passes_them(kind):
    check_scheduler(lambda: kind(max_num_seqs=16, max_num_batched_tokens=64))


# --- rules that a plan may break --------------------------------------------------------------


class RunsTwice(ChunkedScheduler):
    """Lets one take part twice."""

    def plan(self, lane: LaneView) -> None:
        for each in [*lane.running, *lane.running]:
            lane.run(each)
        if lane.head is not None:
            lane.admit(lane.head)


class RunsWhoWait(ChunkedScheduler):
    """Lets one take part that waits."""

    def plan(self, lane: LaneView) -> None:
        lane.run(lane.waiting[0])


class AdmitsTwice(ChunkedScheduler):
    """Admits one that runs."""

    def plan(self, lane: LaneView) -> None:
        lane.admit(lane.waiting[0] if lane.waiting else lane.seated[0])


class AdmitsThenPreempts(ChunkedScheduler):
    """Preempts when blocks are given."""

    def plan(self, lane: LaneView) -> None:
        for each in lane.running:
            lane.run(each)
        if lane.head is not None and lane.admit(lane.head) and len(lane.seated) > 1:
            lane.preempt(lane.seated[0])


class PreemptsWhoWait(ChunkedScheduler):
    """Preempts one that waits."""

    def plan(self, lane: LaneView) -> None:
        lane.preempt(lane.waiting[0])


class AsksForNothing(ChunkedScheduler):
    """Computes less than no tokens."""

    def plan(self, lane: LaneView) -> None:
        lane.admit(lane.waiting[0], -1)


class AdmitsNobody(ChunkedScheduler):
    """Takes a queue that is empty for one that is not."""

    def plan(self, lane: LaneView) -> None:
        for each in lane.running:
            lane.run(each)
        lane.admit(lane.head)


class Keeps(ChunkedScheduler):
    """Looks at one that has left."""

    def plan(self, lane: LaneView) -> None:
        for each in lane.running:
            lane.run(each)
        while lane.head is not None and lane.admit(lane.head):
            pass
        lane.notes.setdefault("first", lane.seated[0])
        assert lane.notes["first"].num_tokens


class Remembers(ChunkedScheduler):
    """Lets one take part that has left."""

    def plan(self, lane: LaneView) -> None:
        first = lane.notes.setdefault("first", lane.head)
        for each in lane.running:
            lane.run(each)
        while lane.head is not None and lane.admit(lane.head):
            pass
        if first not in lane.seated:
            lane.run(first)


class DoesNothing(ChunkedScheduler):
    """Admits, and lets nobody go on."""

    def plan(self, lane: LaneView) -> None:
        if lane.head is not None:
            lane.admit(lane.head)


@pytest.mark.parametrize("ahead", [False, True])
@pytest.mark.parametrize(
    ("kind", "message"),
    [
        (RunsTwice, "RunsTwice.plan calls lane.run at .* but request 0 takes part .* already"),
        (RunsWhoWait, "RunsWhoWait.plan calls lane.run at 0 s, but request 0 is not in lane.run"),
        (AdmitsTwice, "AdmitsTwice.plan calls lane.admit at .* request .* is not in lane.waiting"),
        (AdmitsThenPreempts, "lane.preempt .* can give way only before the first lane.admit"),
        (PreemptsWhoWait, "lane.preempt at 0 s, but request 0 is not in lane.seated"),
        (AsksForNothing, "lane.admit at 0 s, but request 0 gets -1 tokens; whole numbers"),
        (AdmitsNobody, "AdmitsNobody.plan calls lane.admit with None; it takes a request of lane"),
        (Remembers, "lane.run at .*, but request 0 (has left the lane|is not in lane.running)"),
        (
            DoesNothing,
            "DoesNothing.plan lets no request compute at .* with 3 running and 0 waiting",
        ),
    ],
)
@pytest.mark.parametrize("ranks", [1, 2])
def test_a_plan_that_breaks_rule_stops_with_sentence(kind, message, ahead, ranks):
    options = EngineOptions(
        "chunked",
        100,
        8,
        8,
        64,
        async_scheduling=ahead,
        batch_queue=ranks > 1,
        fills_queue=ranks > 1,
        pipeline_parallel_size=ranks,
    )
    case = Case(options, (Job(0.0, 8, 6), Job(0.0, 8, 30), Job(0.005, 8, 30)))
    with (
        patch.dict(POLICIES, chunked=(kind, StepwiseChunked)),
        pytest.raises(ScenarioError, match=message),
    ):
        run_case(case, DYADIC)


class BesideParts(Planned):
    """A plan beside a part of one."""

    def budget(self, lane: LaneView) -> int:
        return 8


def test_what_plan_says_is_left_out_beside_it():
    with pytest.raises(ValueError, match="BesideParts must not have budget beside `plan`"):
        BesideParts()
    with pytest.raises(ValueError, match="prefill_schedule_interval must be left out with Planned"):
        Planned(prefill_schedule_interval=2)
    with pytest.raises(ValueError, match="max_num_partial_prefills must be left out with Planned"):
        Planned(max_num_partial_prefills=2, long_prefill_token_threshold=8)
    with pytest.raises(ValueError, match="preemption must not be async_swap with Planned"):
        Planned(preemption="async_swap")


class DecidesInBudget(ChunkedScheduler):
    """Decides about a step outside of a plan."""

    def budget(self, lane: LaneView) -> int:
        if lane.running:
            lane.run(lane.running[0])
        return 64


def test_only_a_plan_decides():
    case = Case(EngineOptions("chunked", 100, 8, 8, 64), (Job(0.0, 8, 3),))
    with (
        patch.dict(POLICIES, chunked=(DecidesInBudget, StepwiseChunked)),
        pytest.raises(ScenarioError, match="lane.run decides about a step that is planned: call"),
    ):
        run_case(case, DYADIC)


def test_one_that_has_left_is_no_longer_looked_at():
    """Its place is another's."""
    case = Case(EngineOptions("chunked", 100, 8, 1, 64), (Job(0.0, 8, 6), Job(1.0, 8, 6)))
    with (
        patch.dict(POLICIES, chunked=(Keeps, StepwiseChunked)),
        pytest.raises(ScenarioError, match="Keeps.plan looks at request 0, which has left"),
    ):
        run_case(case, DYADIC)


def test_a_class_whose_options_or_methods_nobody_reads_is_told():
    class Undecorated(ChunkedScheduler):
        many: int = 4

        def plan(self, lane: LaneView) -> None:
            pass

    class Misspelt(ChunkedScheduler):
        def plans(self, lane: LaneView) -> None:
            pass

    with pytest.raises(ValueError, match="Undecorated must be decorated with @dataclass.* many"):
        Undecorated()
    with pytest.raises(ValueError, match="the engine asks no Misspelt.plans; did you mean 'plan'"):
        Misspelt()


class AsksTwice(ChunkedScheduler):
    """Asks what one lacks who takes part, or whom the step has no tokens for."""

    def plan(self, lane: LaneView) -> None:
        for each in lane.running:
            lane.run(each)
            assert lane.lacks(each) == 0
        while lane.head is not None and lane.admit(lane.head, lane.num_tokens_left):
            pass


def test_who_takes_part_lacks_nothing():
    case = Case(EngineOptions("chunked", 60, 8, 8, 16), tuple(Job(0.0, 8, 30) for _ in range(8)))
    with patch.dict(POLICIES, chunked=(AsksTwice, StepwiseChunked)):
        assert run_case(case, DYADIC).summary["completed"] == 8
