"""An engine's own time around the kernels: what is said, what the GPU's entry says, what nobody."""

from __future__ import annotations

from mist_sim.hardware import GpuSpec, device_of
from mist_sim.hardware.predictors import EngineOverhead, PipelinePredictor, Predictor
from mist_sim.hardware.predictors.overhead import FITTED_ON


def own_time(
    overhead: EngineOverhead | None, predictor: Predictor | PipelinePredictor, gpu: GpuSpec
) -> EngineOverhead:
    """Return the engine's own time; the GPU's entry says what is left open beside kernels alone."""
    overhead = overhead or EngineOverhead()
    return overhead.or_else(gpu.overhead) if _times_kernels(predictor) else overhead


def assumed_times(
    overhead: EngineOverhead, predictor: Predictor | PipelinePredictor, gpu: GpuSpec
) -> tuple[str, ...]:
    """Return the options of which nobody said a value, on a GPU where the default is assumed.

    overhead: with what the GPU's entry says.
    """
    if not _times_kernels(predictor) or device_of(gpu).name == FITTED_ON:
        return ()
    said = {"overhead.step": overhead.step, "overhead.sequence": overhead.sequence}
    return tuple(name for name, seconds in said.items() if seconds is None)


def _times_kernels(predictor: Predictor | PipelinePredictor) -> bool:
    """Tell whether an engine's own time comes on top of what is predicted."""
    first = predictor.ranks[0] if isinstance(predictor, PipelinePredictor) else predictor
    return bool(getattr(first, "kernels_only", False))
