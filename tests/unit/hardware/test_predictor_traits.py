"""What a predictor says about itself, and how it comes through wrappers and ranks to the engine."""

from dataclasses import replace
from typing import Any

import pytest

from mist_sim import (
    ChunkedScheduler,
    LlmClient,
    PipelinePredictor,
    PredictorTraits,
    ScenarioError,
    Simulation,
    SpeculativeConfig,
    Workload,
)
from mist_sim.core.batch import StepBatch, StepGrowth
from mist_sim.hardware import Cluster, load_gpu
from mist_sim.hardware.drafter import Drafter
from mist_sim.hardware.predictors import EngineOverhead, ranks_of, traits_of, with_drafting
from mist_sim.models import load_model
from tests.reference.engines import llm_engine
from tests.reference.predictors import AWKWARD, ConstantPredictor

NGRAM = SpeculativeConfig(method="ngram", num_speculative_tokens=2, acceptance_rate=0.5)


class Saying(ConstantPredictor):
    def __init__(self, **fields: Any) -> None:
        super().__init__(1.0)
        object.__setattr__(self, "traits", PredictorTraits(**fields))


def pipeline(*ranks: Any) -> PipelinePredictor:
    return PipelinePredictor(ranks, lambda num_tokens: 0.0)


def client(predictor: Any, **more: Any) -> LlmClient:
    return llm_engine(
        "llm", scheduler=ChunkedScheduler(), predictor=predictor, num_gpu_blocks=100, **more
    )


def served(engine: LlmClient) -> Any:
    workload = Workload.from_lists([20, 70, 9], [9, 5, 30], [0.0, 0.001, 0.02])
    return Simulation(clients=[engine], workload=workload).run()


# --- the record -------------------------------------------------------------------------------


def test_a_predictor_that_says_nothing_has_default_traits():
    assert traits_of(ConstantPredictor(1.0)) == PredictorTraits()
    assert client(ConstantPredictor(1.0)).traits.times.estimate == "custom"


def test_something_else_instead_of_traits_is_refused():
    class Wrong(ConstantPredictor):
        traits = "measured"

    with pytest.raises(TypeError, match="traits of Wrong must be a PredictorTraits, got 'mea"):
        client(Wrong(1.0))


@pytest.mark.parametrize("seconds", [(-1e-9, 0.0), (0.0, float("inf")), (float("nan"), 0.0)])
def test_overhead_that_no_engine_can_have_is_refused(seconds):
    with pytest.raises(ValueError, match="beyond_kernels must be finite times >= 0 s"):
        PredictorTraits(kernels_only=True, beyond_kernels=seconds)
    with pytest.raises(ValueError, match="beyond_kernels must be None without kernels_only"):
        PredictorTraits(beyond_kernels=seconds)


# --- wrappers ---------------------------------------------------------------------------------

EVERYTHING = {
    "estimate": "measured",
    "sums_over_links": True,
    "needs_longest_context": True,
    "times_drafts": True,
    "steps_inside": lambda batch, growth: 7,
}


def test_the_overhead_keeps_what_it_does_not_change():
    said = Saying(**EVERYTHING, kernels_only=True, beyond_kernels=(1.0, 1.0))
    around = EngineOverhead(step=0.25, sequence=0.0).around(said, overlapped=True)
    kept = traits_of(around)
    assert replace(kept, step_time_on_the_spot=None) == PredictorTraits(**EVERYTHING)
    assert kept.step_time_on_the_spot(StepBatch((), 1, 1)) == 1.25


def test_a_second_overhead_adds_no_default():
    """The first one has the default of a step in it."""
    once = EngineOverhead().around(Saying(kernels_only=True))
    assert once.step_time(StepBatch((), 1, 1)) > 1.0
    assert EngineOverhead().around(once) is once


def test_drafting_keeps_everything():
    said = Saying(**EVERYTHING, kernels_only=True, beyond_kernels=(1.0, 1.0))
    assert with_drafting(said, NGRAM, None).traits == said.traits


def test_drafting_asks_for_the_longest_context_if_either_model_does():
    cluster = Cluster(load_gpu("a100-80gb-sxm"))
    for groups in ("llama-2-7b", "llama-3.2-1b"):
        model = Drafter(load_model(groups), cluster)
        traits = with_drafting(Saying(times_drafts=True), NGRAM, model).traits
        assert traits.needs_longest_context == (groups == "llama-2-7b")


# --- ranks ------------------------------------------------------------------------------------


def test_a_pipeline_is_what_its_ranks_are_together():
    first = Saying(**EVERYTHING)
    other = Saying(steps_inside=lambda batch, growth: 3)
    traits = pipeline(first, other).traits
    asked = StepBatch((), 1, 1), StepGrowth(1)
    assert traits.steps_inside(*asked) == 3
    rest = replace(traits, steps_inside=None)
    assert rest == PredictorTraits(estimate="measured", needs_longest_context=True)
    assert pipeline(ConstantPredictor(1.0), first).traits.steps_inside(*asked) == 7
    assert pipeline(ConstantPredictor(1.0), ConstantPredictor(1.0)).traits == PredictorTraits()


def test_every_rank_must_time_drafts():
    with pytest.raises(ScenarioError, match="times drafts .*, got ConstantPredictor"):
        with_drafting(pipeline(ConstantPredictor(1.0), Saying(times_drafts=True)), NGRAM, None)


def test_a_pipeline_has_ranks():
    with pytest.raises(ValueError, match="ranks must have at least one predictor"):
        pipeline()


def test_ranks_of_a_pipeline_are_its_own():
    ranks = pipeline(AWKWARD, AWKWARD)
    assert ranks_of(ranks) is ranks
    assert ranks_of(AWKWARD).ranks == (AWKWARD,)
    assert ranks_of(AWKWARD).traits == AWKWARD.traits


@pytest.mark.parametrize("plans_ahead", [False, True])
def test_a_single_rank_is_no_pipeline(plans_ahead):
    alone = client(AWKWARD, async_scheduling=plans_ahead)
    ranked = client(pipeline(AWKWARD), async_scheduling=plans_ahead)
    expected, result = served(alone), served(ranked)
    assert ranked.predictor.ranks[0] is AWKWARD  # no call more for each step
    assert type(ranked.lanes[0]) is type(alone.lanes[0])
    assert result.requests.equals(expected.requests)
    assert result.steps.equals(expected.steps)
