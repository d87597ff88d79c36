"""Step times of 0 s, less, NaN and infinity: no run goes on with them."""

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

import mist_sim as mist
from mist_sim import ScenarioError
from mist_sim.bestserve.oracle import Oracle
from mist_sim.hardware.afd import AfdCoefficients
from mist_sim.hardware.predictors.decode_line import DecodeLine
from mist_sim.hardware.predictors.ranks import PipelinePredictor, ranks_of

IMPOSSIBLE = [0.0, -1e-3, math.nan, math.inf, -math.inf]


@dataclass
class Wrong:
    """Steps of a millisecond, and wrong ones from so many tokens of context on."""

    seconds: float
    least: int = 0
    has_line: bool = False

    def step_time(self, batch: mist.StepBatch) -> float:
        return self.seconds if batch.context_sum >= self.least else 1e-3

    def run(self, batch: mist.StepBatch, growth: mist.StepGrowth, num_steps: int) -> Any:
        ahead = batch.context_sum + growth.contexts(np.arange(float(num_steps)))
        return np.where(ahead >= self.least, self.seconds, 1e-3)

    def decode_line(self, num_decodes: int) -> DecodeLine | None:
        return DecodeLine(0.0, self.seconds) if self.has_line else None


def served(predictor: Any, **options: Any) -> mist.Result:
    workload = mist.Workload.from_lists([40] * 6, [60] * 6, arrivals=mist.AllAtOnce())
    how = {"model": "llama-3.1-8b", "gpu": "h100-sxm"} | options
    client = mist.llm_client("llm", predictor=predictor, **how)
    return mist.Simulation(clients=[client], workload=workload).run()


LOOPS = {
    "planned ahead": {},
    "synchronous": {"async_scheduling": False},
    "whole prompts": {"scheduler": mist.ContinuousScheduler(), "async_scheduling": False},
    "a queue of batches": {"pipeline_parallel_size": 2},
    "virtual engines": {
        "pipeline_parallel_size": 2,
        "virtual_engines": True,
        "async_scheduling": False,
    },
    "replicas": {"data_parallel_size": 2},
    "replicas in lockstep": {
        "model": "mixtral-8x7b",
        "data_parallel_size": 2,
        "quantization": "fp8",
        "enable_expert_parallel": True,
    },
}


@pytest.mark.parametrize("options", LOOPS.values(), ids=LOOPS)
@pytest.mark.parametrize("least", [0, 280], ids=["at once", "in a run"])
@pytest.mark.parametrize("seconds", IMPOSSIBLE)
def test_every_loop_refuses_them(options, least, seconds):
    stages = options.get("pipeline_parallel_size", 1)
    wrong = Wrong(seconds, least)
    given = PipelinePredictor((wrong,) * stages, lambda tokens: 0.0) if stages > 1 else wrong
    with pytest.raises(ScenarioError, match=r"predictor Wrong: a step of .* would take "):
        served(given, **options)


@pytest.mark.parametrize("seconds", IMPOSSIBLE)
def test_a_line_of_decodes_is_refused(seconds):
    with pytest.raises(ScenarioError, match=r"predictor Wrong: a step of \d decodes with"):
        served(Wrong(seconds, least=1, has_line=True))


@pytest.mark.parametrize("seconds", IMPOSSIBLE)
def test_an_engines_own_time_does_not_hide_them(seconds):
    """Beside a host that takes longer, which the step would wait for."""
    overhead = mist.EngineOverhead(step=0.05)
    with pytest.raises(ScenarioError, match="predictor Wrong"):
        served(Wrong(seconds), overhead=overhead)


@pytest.mark.parametrize("seconds", IMPOSSIBLE)
def test_simulators_of_bestserve_refuse_them(seconds):
    oracle = Oracle(ranks_of(Wrong(seconds)))
    with pytest.raises(ScenarioError, match="predictor Wrong"):
        oracle.prefill((10, 20))
    with pytest.raises(ScenarioError, match="predictor Wrong"):
        oracle.decode(4, 100)


@pytest.mark.parametrize("seconds", IMPOSSIBLE)
def test_class_derived_from_sound_one_is_looked_at(seconds):
    class Own(mist.RooflinePredictor):
        def step_time(self, batch: mist.StepBatch) -> float:
            return seconds

    own = Own(mist.load_model("llama-3.1-8b"), mist.Cluster(mist.load_gpu("h100-sxm")))
    with pytest.raises(ScenarioError, match="predictor Own: a step of 10 prompt tokens would"):
        ranks_of(own).ranks[0].step_time(mist.StepBatch(chunks=((10, 0),)))


@pytest.mark.parametrize("seconds", IMPOSSIBLE[1:])
def test_bundles_have_no_such_coefficients(seconds):
    sound = dict.fromkeys(("alpha_a", "beta_a", "alpha_f", "beta_f", "alpha_c", "beta_c"), 1e-3)
    for name in sound:
        with pytest.raises(ValueError, match=f"{name} must be finite and >"):
            AfdCoefficients(**{**sound, name: seconds})
