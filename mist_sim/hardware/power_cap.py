"""A power cap (`nvidia-smi -pl`): how much slower a GPU computes that may draw less.

Under a cap the cores' clock falls until the watts fit. Watts above idle go with the cube of the
clock (frequency times the square of a voltage that follows it), so arithmetic runs at

    clock = ((limit - idle) / (full - idle)) ^ (1/3)

of its rate, in every data type and kernel, where `full` is the power of prompts without a cap.
Memory keeps its own clock: steps that wait for it are not slower. The table of splitwise-sim has
H100s under a cap (`h100-80gb-pcap` in `data/perf_model.csv`): in every row prompts take 1.3 times
as long and tokens are unchanged, so its authors set a figure rather than measure each row. At half
of the power it is 1.37 here. Lower caps have no such figure to compare with and are refused.

So no slowdown was measured, least of all of steps that wait for memory and would draw more than the
cap: these count at the cap in their usual time. Results say that all of this is assumed.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from mist_sim.core.result_warnings import POWER_CAP, ResultWarning
from mist_sim.errors import ScenarioError
from mist_sim.hardware.devices import GpuSpec
from mist_sim.hardware.power import Demand, Load, step_watts
from mist_sim.hardware.predictors import PipelinePredictor, RooflinePredictor

_LOWEST = 0.5  # of the design power


def with_power_limit(gpu: GpuSpec, limit: float | None) -> GpuSpec:
    """Return a GPU with its clock under a cap of so many watts; unchanged for None.

    A cap at the design power, the card's own limit, changes nothing; one from what prompts draw up
    to it slows nothing. Raises ScenarioError for a cap above the design power, and for one too low
    to be validated.
    """
    if limit is None or limit == gpu.power:
        return gpu
    if gpu.power is None:
        raise ScenarioError(
            f"power_limit must be null with {gpu.name}, whose power is not known, got {limit:g} W"
        )
    if limit > gpu.power:
        raise ScenarioError(
            f"power_limit must be <= {gpu.power:g} W, the design power of {gpu.name}, got "
            f"{limit:g} W"
        )
    if limit < _LOWEST * gpu.power:
        raise ScenarioError(
            f"power_limit must be >= {_LOWEST * gpu.power:g} W, half of the design power of "
            f"{gpu.name}: there is no figure of step times below, got {limit:g} W"
        )
    full, idle = _prompt_watts(gpu), gpu.draw.idle * gpu.power
    clock = min(((limit - idle) / (full - idle)) ** (1 / 3), 1.0)
    known = gpu.confidence if gpu.confidence == "spec-only" else "analytic"
    return replace(gpu, clock=clock, confidence=known)


def cap_warnings(gpu: GpuSpec, limit: float | None) -> Iterator[ResultWarning]:
    """Yield what is not known of steps under a cap. gpu: as capped."""
    if limit is None or limit >= gpu.watts:
        return
    yield ResultWarning(
        POWER_CAP,
        f"Step times and joules under power_limit {limit:g} W are assumed: {gpu.name} computes at "
        f"{gpu.clock:.2f} of its rate, by the cube of the clock; steps that wait for memory take "
        "no longer, and those that would draw more than the cap count at the cap. No slowdown was "
        "measured: joules saved may be time lost.",
    )


def check_follows_clock(predictor: PipelinePredictor) -> None:
    """Raise ScenarioError when step times do not follow the rates of the GPU."""
    if not all(isinstance(rank, RooflinePredictor) for rank in predictor.ranks):
        raise ScenarioError(
            "power_limit must be null with a predictor other than roofline: measured times are "
            "those of the clock at which they were measured"
        )


def _prompt_watts(gpu: GpuSpec) -> float:
    """Return the watts of a prompt that reaches the rate of its phase."""
    demand = Demand(np.array([gpu.prefill.mfu]), np.zeros(1))
    return float(step_watts(gpu.draw, gpu.watts, demand, np.ones(1), Load())[0])
