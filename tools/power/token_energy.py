"""Joules of an output token, from modelled power and modelled step times, beside measured ones."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from mist_sim.core.batch import StepBatch
from mist_sim.hardware.power import step_watts
from mist_sim.hardware.predictors import EngineOverhead, RooflinePredictor
from mist_sim.hardware.predictors.base import sustained_rates
from mist_sim.hardware.sampling import Sampling, SamplingTimes
from tools.power.power_runs import PowerRun

ASKED = Sampling(temperature=0.8, top_p=0.95)
"""What ML.ENERGY's client asks for (ml-energy/benchmark)."""


class TokenEnergy(NamedTuple):
    """Modelled over measured figures of a run, less 1.

    step: seconds of a step, with the prompts that join. watts: with that step. joules: of a token.
    """

    step: float
    watts: float
    joules: float


def token_energy(run: PowerRun) -> TokenEnergy:
    """Return the errors of a run in steady state (ML.ENERGY's), timed by the roofline.

    The kernels are those that the engine took, as far as there are figures. Its own time and that
    of top-p, for which it sorts, come on top of them, as in vLLM before 0.14.
    """
    seconds = modelled_step(run)
    measured = float(run.seconds[0])
    gpu = run.cluster.gpu
    watts = float(step_watts(gpu.draw, gpu.watts, run.demand, np.array([seconds]), run.load)[0])
    joules = watts * seconds / (run.watts * measured)
    return TokenEnergy(seconds / measured - 1, watts / run.watts - 1, joules - 1)


def modelled_step(run: PowerRun) -> float:
    """Return the seconds of a step of a run, with its share of the prompts that join."""
    cluster = run.kernels.timed(run.spec, run.cluster)
    number = max(1, round(run.batch / cluster.data_parallel_size))
    context = round(number * run.context)
    overhead = EngineOverhead().or_else(cluster.gpu.overhead)
    predictor = overhead.around(RooflinePredictor(run.spec, cluster))
    _, bytes_per_s = sustained_rates(cluster.gpu, cluster.gpu.decode)
    sampling = SamplingTimes(ASKED, run.spec.vocab_size, "pytorch", bytes_per_s)[number]
    alone = predictor.step_time(StepBatch((), number, context))
    prompt = ((round(run.prompt), 0),)
    with_prompt = predictor.step_time(StepBatch(prompt, number, context))
    return alone + sampling + run.joining * max(with_prompt - alone, 0.0)
