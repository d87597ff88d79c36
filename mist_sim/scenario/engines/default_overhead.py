"""An engine's own time around the kernels. Precedence: scenario, GPU entry, default."""

from __future__ import annotations

from mist_sim.hardware import GpuSpec, device_of
from mist_sim.hardware.predictors import EngineOverhead, PipelinePredictor
from mist_sim.hardware.predictors.overhead import FITTED_ON


def own_time(
    overhead: EngineOverhead | None, predictor: PipelinePredictor, gpu: GpuSpec
) -> EngineOverhead:
    """Return the engine's own time; around kernels alone, the GPU's entry fills what is not set."""
    overhead = overhead or EngineOverhead()
    return overhead.or_else(gpu.overhead) if predictor.traits.kernels_only else overhead


def assumed_times(
    overhead: EngineOverhead, predictor: PipelinePredictor, gpu: GpuSpec
) -> tuple[str, ...]:
    """Return the options that are not set, on a GPU for which their default is an assumption.

    overhead: with what the GPU's entry says.
    """
    if not predictor.traits.kernels_only or device_of(gpu).name == FITTED_ON:
        return ()
    said = {"overhead.step": overhead.step, "overhead.sequence": overhead.sequence}
    return tuple(name for name, seconds in said.items() if seconds is None)
