"""The checks of `mist_sim.testing` notice plugins that break their contract, and say how."""

from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

import numpy as np
import pytest

from mist_sim.clients.scheduling import ChunkedScheduler, ContinuousScheduler
from mist_sim.clients.scheduling.order import Ranked
from mist_sim.core.request import Stage
from mist_sim.eviction import CachedBlocks, Eviction
from mist_sim.hardware.predictors import PipelinePredictor, Predictor, PredictorTraits
from mist_sim.hardware.predictors.drafting import _WithDrafting
from mist_sim.hardware.predictors.overhead import _WithOverhead
from mist_sim.testing import (
    check_duration_law,
    check_eviction,
    check_predictor,
    check_router,
    check_scheduler,
    check_stage,
    check_trace_reader,
)
from mist_sim.traces import TraceRow
from tests.reference.predictors import (
    AWKWARD,
    LINES,
    AffinePredictor,
    ConstantPredictor,
    KeysPredictor,
)
from tests.refusals import refused

# --- routers ----------------------------------------------------------------------------------


class First:
    """A sound router; the others break it."""

    def choose(self, request, stage, candidates):
        return candidates[0].client_id


class PositionInsteadOfId(First):
    def choose(self, request, stage, candidates):
        return 0


class NeedsTwo(First):
    def choose(self, request, stage, candidates):
        return candidates[1].client_id


class ReadsOutputLength(First):
    def choose(self, request, stage, candidates):
        return candidates[request.num_output_tokens % len(candidates)].client_id


class ReadsDecodeStage(First):
    def choose(self, request, stage, candidates):
        return candidates[request.stages[1].num_tokens % len(candidates)].client_id


class DrawsElsewhere(First):
    def choose(self, request, stage, candidates):
        rng = np.random.Generator(np.random.PCG64())
        return candidates[rng.integers(len(candidates))].client_id


@dataclass
class RemembersEarlierRuns:
    turns: list[int] = field(default_factory=list)

    def choose(self, request, stage, candidates):
        self.turns.append(1)
        return candidates[len(self.turns) % 7 % len(candidates)].client_id


class SortsCandidates(First):
    def choose(self, request, stage, candidates):
        candidates.sort(key=lambda view: -view.client_id)
        return candidates[0].client_id


class ChangesRequest(First):
    def choose(self, request, stage, candidates):
        request.session_id = 7
        return candidates[0].client_id


class ReadsWhatNoRunOffers(First):
    def choose(self, request, stage, candidates):
        return min(candidates, key=lambda view: view.num_cached).client_id


class ChangesView(First):
    def choose(self, request, stage, candidates):
        candidates[0].num_waiting += 1
        return candidates[0].client_id


def test_a_sound_router_passes():
    check_router(First)


test_a_broken_router_is_caught = refused(
    check_router,
    (object, "needs choose"),
    (PositionInsteadOfId, "must return the client_id of a candidate"),
    (NeedsTwo, "raised IndexError.* with 1 candidates for"),
    (ReadsOutputLength, "output lengths"),
    (ReadsDecodeStage, "output lengths"),
    (DrawsElsewhere, "use only the stream"),
    (RemembersEarlierRuns, "forget earlier runs"),
    (SortsCandidates, "raised AttributeError"),
    (ChangesRequest, "must not change the request"),
    (ChangesView, "raised FrozenInstanceError"),
    (ReadsWhatNoRunOffers, "num_cached.* in a run"),
    error=AssertionError,
)


# --- schedulers -------------------------------------------------------------------------------


class Sound(ChunkedScheduler):
    """A sound scheduler with little memory and few slots; the others break it."""

    def __init__(self):
        super().__init__(max_num_seqs=6, max_num_batched_tokens=32)


class ShortestAnswerFirst(ContinuousScheduler):
    """Whole prompts, in an order of its own."""

    def __init__(self):
        super().__init__(max_num_seqs=6)

    def new_queue(self):
        return Ranked(lambda sequence: sequence.num_final_tokens)


class TakesTurns(Sound):
    """Asked by the core; every third budget is smaller, whichever engine asks."""

    turn = 0

    def budget(self, lane):
        self.turn += 1
        return 32 if self.turn % 3 else 8


class LongestAnswerFirst(Sound):
    def new_queue(self):
        return Ranked(lambda sequence: -sequence.num_final_tokens)

    def admits(self, lane, prompt, num_new):
        return True


class AdmitsNobody(Sound):
    def admits(self, lane, prompt, num_new):
        return False


class Planned(Sound):
    """A sound plan; the others break it."""

    def plan(self, lane):
        for each in lane.running:
            while each in lane.seated and lane.lacks(each):
                lane.preempt(lane.seated[-1])
            if each in lane.seated:
                lane.run(each)
        while (head := self.next_one(lane)) is not None and lane.admit(head):
            pass

    def next_one(self, lane):
        return lane.head


class PlansNoLongPrompts(Planned):
    def next_one(self, lane):
        head = lane.head
        return None if head is None or head.num_tokens > 50 else head


class PlansByAnswers(Planned):
    def new_queue(self):
        return Ranked(lambda sequence: -sequence.num_final_tokens)


class NobodyGivesWay(Planned):
    def plan(self, lane):
        for each in lane.running:
            lane.run(each)
        while (head := lane.head) is not None and lane.admit(head):
            pass


class TakesTurnsInItself(Planned):
    turn = 0

    def plan(self, lane):
        self.turn += 1
        if self.turn % 3 or len(lane.running) < 2:
            super().plan(lane)
        else:
            lane.run(lane.running[0])


class RunsWhoGaveWay(Planned):
    def plan(self, lane):
        running = lane.running
        for each in running:
            if lane.lacks(each):
                lane.preempt(lane.seated[-1])
        for each in running:
            lane.run(each)
        super().plan(lane)


@pytest.mark.parametrize("scheduler", [Sound, Planned])
def test_a_sound_scheduler_passes(scheduler):
    check_scheduler(scheduler)


test_a_broken_scheduler_is_caught = refused(
    check_scheduler,
    (object, "must extend Scheduler"),
    (ShortestAnswerFirst, "decisions depend on output lengths"),
    (TakesTurns, "runs that share it disturb one another"),
    (LongestAnswerFirst, "decisions depend on output lengths"),
    (AdmitsNobody, "AdmitsNobody: .* waiting"),
    (PlansNoLongPrompts, "PlansNoLongPrompts.plan lets no request compute at"),
    (PlansByAnswers, "decisions depend on output lengths"),
    (NobodyGivesWay, "NobodyGivesWay.plan lets no request compute at"),
    (TakesTurnsInItself, "runs that share it disturb one another"),
    (RunsWhoGaveWay, "RunsWhoGaveWay.plan calls lane.run at .* (not in lane.running|already)"),
    error=AssertionError,
)


# --- predictors -------------------------------------------------------------------------------


class OtherOrderOfAddition(AffinePredictor):
    def run(self, batch, growth, num_steps):
        contexts = batch.context_sum + growth.context_sum * np.arange(num_steps)
        decode = self.per_context_token * contexts + self.per_decode * batch.num_decodes
        return self.step_time(type(batch)(batch.chunks)) + decode


class IgnoresGrowth(AffinePredictor):
    def run(self, batch, growth, num_steps):
        return np.full(num_steps, self.step_time(batch))


class LendsItsArray(AffinePredictor):
    arrays: ClassVar[dict] = {}

    def run(self, batch, growth, num_steps):
        key = (batch.chunks, batch.num_decodes, batch.context_sum, num_steps)
        if key not in self.arrays:
            self.arrays[key] = super().run(batch, growth, num_steps)
        return self.arrays[key]


class ReturnsNumpyIntegers(AffinePredictor):
    def step_time(self, batch):
        return 1

    def run(self, batch, growth, num_steps):
        return np.ones(num_steps)


class TellsALineTooLow(KeysPredictor):
    def decode_line(self, num_decodes):
        return super().decode_line(num_decodes)._replace(least=0.0)


class NegativeForNoPrompts(AffinePredictor):
    def step_time(self, batch):
        return super().step_time(batch) if batch.chunks else -1.0

    def run(self, batch, growth, num_steps):
        return super().run(batch, growth, num_steps) if batch.chunks else -np.ones(num_steps)


class ReturnsAList(AffinePredictor):
    def run(self, batch, growth, num_steps):
        return super().run(batch, growth, num_steps).tolist()


def noisy() -> Predictor:
    return AffinePredictor(base=1.0 + np.random.Generator(np.random.PCG64()).random())


@pytest.mark.parametrize("predictor", [AWKWARD, LINES])
def test_a_sound_predictor_passes(predictor):
    check_predictor(lambda: predictor)


test_a_broken_predictor_is_caught = refused(
    check_predictor,
    (object, "needs step_time"),
    (OtherOrderOfAddition, "must agree to the bit"),
    (IgnoresGrowth, "must agree to the bit"),
    (LendsItsArray, "an array of its own"),
    (ReturnsNumpyIntegers, "finite floats > 0 s, got 1 for"),
    (TellsALineTooLow, "decode_line must have the times"),
    (NegativeForNoPrompts, "finite floats > 0 s, got -1.0 for"),
    (ReturnsAList, "must return float64 of shape"),
    (noisy, "two predictors from the factory differ"),
    error=AssertionError,
)


class SaysNothing(ConstantPredictor):
    """A sound predictor without traits; the others break a rule of theirs."""


class SaysAllItHas(ConstantPredictor):
    """A sound one that uses every field."""

    @property
    def traits(self):
        return PredictorTraits(
            estimate="measured",
            kernels_only=True,
            beyond_kernels=(1e-3, 0),
            sums_over_links=True,
            needs_longest_context=True,
            times_drafts=True,
            steps_inside=self.steps_inside,
            step_time_on_the_spot=lambda batch: 2 * self.step_time(batch),
        )

    def steps_inside(self, batch, growth):
        return 5


@pytest.mark.parametrize("predictor", [SaysNothing, SaysAllItHas])
def test_sound_traits_pass(predictor):
    check_predictor(lambda: predictor(1.0))


class SaysItInAnAttribute(ConstantPredictor):
    kernels_only = True


class KeepsStepsInsideToItself(ConstantPredictor):
    traits = PredictorTraits(estimate="measured")

    def steps_inside(self, batch, growth):
        return 5


def saying(**fields: Any) -> Predictor:
    predictor = ConstantPredictor(1.0)
    object.__setattr__(predictor, "traits", PredictorTraits(**fields))
    return predictor


def with_other_traits() -> Predictor:
    predictor = ConstantPredictor(1.0)
    object.__setattr__(predictor, "traits", {"kernels_only": True})
    return predictor


test_bad_traits_are_caught = refused(
    check_predictor,
    (with_other_traits, "must be a PredictorTraits, got"),
    (lambda: SaysItInAnAttribute(1.0), "kernels_only is not seen by engines"),
    (lambda: KeepsStepsInsideToItself(1.0), "steps_inside is not seen by engines"),
    (lambda: replace(AWKWARD, needs_longest_context=False), "reads longest_context"),
    (lambda: saying(estimate=""), "estimate must be a word"),
    (lambda: saying(estimate=None), "estimate must be a word"),
    (lambda: saying(times_drafts=1), "times_drafts must be a bool, got 1"),
    (lambda: saying(kernels_only="no"), "kernels_only must be a bool"),
    (lambda: saying(sums_over_links=None), "sums_over_links must be a bool"),
    (lambda: saying(needs_longest_context=0), "needs_longest_context must be a bool"),
    (lambda: saying(kernels_only=True, beyond_kernels=(1.0,)), "None or two numbers"),
    (lambda: saying(kernels_only=True, beyond_kernels=[1.0, 1.0]), "None or two numbers"),
    (lambda: saying(steps_inside=5), "steps_inside must be None or callable"),
    (lambda: saying(steps_inside=lambda batch, growth: -1), "an int >= 0, got -1"),
    (lambda: saying(steps_inside=lambda batch, growth: 2.0), "an int >= 0, got 2.0"),
    (lambda: saying(step_time_on_the_spot=1.0), "step_time_on_the_spot must be None or cal"),
    (lambda: saying(step_time_on_the_spot=lambda batch: 0.5), ">= step_time, 1.0, got 0.5"),
    error=AssertionError,
)


@pytest.mark.parametrize("wrapper", [_WithOverhead, _WithDrafting])
@pytest.mark.parametrize("trait", ["estimate", "sums_over_links", "steps_inside"])
def test_a_wrapper_that_drops_a_trait_is_caught(wrapper, trait, monkeypatch):
    keeps, default = wrapper.traits.fget, getattr(PredictorTraits(), trait)
    drops = property(lambda wrapped: replace(keeps(wrapped), **{trait: default}))
    monkeypatch.setattr(wrapper, "traits", drops)
    with pytest.raises(AssertionError, match=r"must keep the traits|steps_inside must be 5"):
        check_predictor(lambda: SaysAllItHas(1.0))


@pytest.mark.parametrize("trait", ["estimate", "sums_over_links", "steps_inside"])
def test_ranks_that_drop_a_trait_are_caught(trait, monkeypatch):
    keeps, default = PipelinePredictor._traits, getattr(PredictorTraits(), trait)
    drops = lambda ranks: replace(keeps(ranks), **{trait: default})  # noqa: E731
    monkeypatch.setattr(PipelinePredictor, "_traits", drops)
    with pytest.raises(AssertionError, match=r"must keep the traits|steps_inside must be 5"):
        check_predictor(lambda: SaysAllItHas(1.0))


# --- stages -----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Translate(Stage):
    """A sound stage; the others break it."""

    kind: ClassVar[str] = "translate"
    num_tokens: int
    languages: tuple[str, ...]

    def __post_init__(self) -> None:
        if self.num_tokens < 0:
            raise ValueError(f"num_tokens must be >= 0, got {self.num_tokens}")


@dataclass(frozen=True, slots=True, kw_only=True)
class NoKind(Stage):
    num_tokens: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class TakenKind(Stage):
    kind: ClassVar[str] = "decode"


@dataclass(frozen=True, slots=True, kw_only=True)
class TakesNonsense(Stage):
    kind: ClassVar[str] = "takes_nonsense"
    num_tokens: int


@dataclass(frozen=True, slots=True, kw_only=True)
class VagueError(Stage):
    kind: ClassVar[str] = "vague_error"
    num_tokens: int

    def __post_init__(self) -> None:
        if self.num_tokens < 0:
            raise ValueError("wrong value")


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class NoValue(Stage):
    kind: ClassVar[str] = "no_value"
    num_tokens: int


class NoStage:
    kind = "no_stage"


def test_a_sound_stage_passes():
    check_stage(Translate, languages=("en", "de"))


test_a_broken_stage_is_caught = refused(
    check_stage,
    (NoStage, "must be a subclass of Stage"),
    (Stage, "must be a frozen dataclass"),
    (NoKind, "kind must be a word of its own"),
    (TakenKind, "'decode', which already names Decode"),
    (TakesNonsense, "must refuse num_tokens=-1"),
    (VagueError, "must name num_tokens"),
    (NoValue, "must differ when num_tokens differs"),
    error=AssertionError,
)


# --- trace readers ----------------------------------------------------------------------------


@dataclass
class GivenRows:
    """A sound reader; the others break it."""

    items: list
    num_requests: int | None = None

    def rows(self):
        return iter(self.items[: self.num_requests])


@dataclass
class ReadsOnce(GivenRows):
    def rows(self):
        while self.items:
            yield self.items.pop(0)


@dataclass
class ReturnsAListOfRows(GivenRows):
    def rows(self):
        return self.items


@dataclass
class IgnoresNumRequests(GivenRows):
    def rows(self):
        return iter(self.items)


def rows(*times: float | None, prompt: object = 5) -> list[TraceRow]:
    return [TraceRow(prompt, 3, time) for time in times]


@pytest.mark.parametrize("times", [(0.0, 0.0, 2.5), (None, None)])
def test_a_sound_reader_passes(times):
    check_trace_reader(lambda: GivenRows(rows(*times)))


test_a_broken_reader_is_caught = refused(
    check_trace_reader,
    (object, "needs rows"),
    (lambda: ReadsOnce(rows(0.0, 1.0)), "must start anew"),
    (lambda: ReturnsAListOfRows(rows(0.0, 1.0)), "must return an iterator"),
    (lambda: IgnoresNumRequests(rows(0.0, 1.0)), "num_requests=1"),
    (lambda: GivenRows(rows(0.0)), "2 rows or more"),
    (lambda: GivenRows(rows(0.0, 2.0, 1.0)), "row 2: times .* never decrease"),
    (lambda: GivenRows(rows(0.0, float("nan"))), "row 1: times must be finite"),
    (lambda: GivenRows(rows(0, 1)), "row 0: times must be finite floats"),
    (lambda: GivenRows(rows(3.0, 4.0)), "times from 0 s on"),
    (lambda: GivenRows(rows(0.0, None)), "or none has a time"),
    (lambda: GivenRows(rows(0.0, 1.0, prompt=0)), "num_prompt_tokens must be an int >= 1"),
    (lambda: GivenRows(rows(0.0, 1.0, prompt=np.int64(4))), "must be an int >= 1"),
    (lambda: GivenRows([(5, 3, 0.0), (5, 3, 1.0)]), "must be a TraceRow"),
    error=AssertionError,
)


# --- laws of times ----------------------------------------------------------------------------


class Weibull:
    """A sound law; the others break it."""

    def sample(self, rng, n):
        return 2.0 * rng.weibull(1.5, n)


class OneMore(Weibull):
    def sample(self, rng, n):
        return super().sample(rng, n + 1)


class AList(Weibull):
    def sample(self, rng, n):
        return super().sample(rng, n).tolist()


class Milliseconds(Weibull):
    def sample(self, rng, n):
        return np.rint(1e3 * super().sample(rng, n)).astype(int)


class SometimesNothing(Weibull):
    def sample(self, rng, n):
        return np.maximum(super().sample(rng, n) - 1, 0)


class NeverEnds(Weibull):
    def sample(self, rng, n):
        return np.full(n, np.inf)


class GoesOn(Weibull):
    """Draws from the generator that it was given first."""

    rng = None

    def sample(self, rng, n):
        self.rng = self.rng or rng
        return super().sample(self.rng, n)


class ItsOwnNumbers(Weibull):
    """Equal for the same object, and not for another one."""

    def __init__(self):
        self.scale = np.random.Generator(np.random.PCG64()).random()

    def sample(self, rng, n):
        return self.scale * super().sample(rng, n)


def test_a_sound_law_passes():
    check_duration_law(Weibull)


test_a_broken_law_is_caught = refused(
    check_duration_law,
    (object, "needs sample"),
    (OneMore, r"must return float64 of shape \(1,\)"),
    (AList, r"must return float64 of shape \(1,\)"),
    (Milliseconds, "must return float64"),
    (SometimesNothing, r"finite times > 0 s, got \[0.\]"),
    (NeverEnds, r"finite times > 0 s, got \[inf\]"),
    (GoesOn, "answers otherwise when it is asked again"),
    (ItsOwnNumbers, "answers otherwise in another one of its kind"),
    error=AssertionError,
)


class LargestFirst(Eviction):
    def rank(self, blocks: CachedBlocks) -> tuple[int, int]:
        return -blocks.num_blocks, blocks.used


class NumberOrText(Eviction):
    def rank(self, blocks: CachedBlocks) -> object:
        return blocks.used if blocks.start else "none"


class DrawsByItself(Eviction):
    draws = iter(range(10**6))

    def rank(self, blocks: CachedBlocks) -> int:
        return next(self.draws) * 7919 % 1000


class Undefined(Eviction):
    def rank(self, blocks: CachedBlocks) -> float:
        return float("nan")


def test_a_sound_order_of_eviction_passes():
    check_eviction(LargestFirst)


test_a_broken_order_of_eviction_is_caught = refused(
    check_eviction,
    (object, "must be a child of mist_sim.Eviction"),
    (NumberOrText, "'<' not supported"),
    (DrawsByItself, "answers otherwise when it is asked again"),
    (Undefined, "one must be smaller, or both equal"),
    error=AssertionError,
)
