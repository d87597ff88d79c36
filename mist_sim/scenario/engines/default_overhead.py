"""An engine's own time around the kernels. Precedence: scenario, GPU entry, version, default."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from mist_sim.core.front_end import FRONT_END
from mist_sim.hardware import GpuSpec, device_of
from mist_sim.hardware.predictors import EngineOverhead, PipelinePredictor
from mist_sim.hardware.predictors.overhead import EXPOSED, FITTED_ON
from mist_sim.scenario.engines.engine_version import EngineVersion


def own_time(
    overhead: EngineOverhead | None, predictor: PipelinePredictor, gpu: GpuSpec
) -> EngineOverhead:
    """Return the engine's own time; around kernels alone, the GPU's entry fills what is not set."""
    overhead = overhead or EngineOverhead()
    return overhead.or_else(gpu.overhead) if predictor.traits.kernels_only else overhead


def with_exposed_time(
    overhead: EngineOverhead, predictor: PipelinePredictor, version: EngineVersion
) -> EngineOverhead:
    """Return the engine's own time with what asynchronous scheduling does not hide in a version.

    Step times that were measured whole have it in them, as those of a plug-in are taken to.
    """
    return replace(overhead, **_exposed(overhead, predictor, version))


def _exposed(
    overhead: EngineOverhead, predictor: PipelinePredictor, version: EngineVersion
) -> dict[str, Any]:
    """Return what a version does not hide, as far as nobody says it."""
    traits = predictor.traits
    if not (traits.kernels_only or traits.beyond_prompts):
        return {}
    unsaid = (name for name in EXPOSED if getattr(overhead, name) is None)
    return {name: version.default(f"overhead.{name}") for name in unsaid}


def assumed_times(
    overhead: EngineOverhead,
    predictor: PipelinePredictor,
    gpu: GpuSpec,
    planned_ahead: EngineVersion | None = None,
) -> tuple[str, ...]:
    """Return the options that are not set, on a GPU for which their default is an assumption.

    The front end of vLLM is among them around kernels and layers, unless `overhead.request` says
    how requests get to the engine; the scenario may still set it.

    overhead: with what the GPU's entry says.
    planned_ahead: the version of an engine that schedules asynchronously; None: it does not.
    """
    said: dict[str, float | None] = {}
    elsewhere = device_of(gpu).name != FITTED_ON
    if predictor.traits.kernels_only and elsewhere:
        said = {"overhead.step": overhead.step, "overhead.sequence": overhead.sequence}
    if planned_ahead and elsewhere:
        exposed = _exposed(overhead, predictor, planned_ahead)
        said |= {f"overhead.{name}": None for name, seconds in exposed.items() if seconds}
    if predictor.traits.beyond_prompts:
        said["overhead.prefill_step"] = overhead.prefill_step
    found = tuple(name for name, seconds in said.items() if seconds is None)
    has_server = predictor.traits.kernels_only or predictor.traits.beyond_prompts
    return (*found, FRONT_END) if has_server and overhead.request is None else found
