"""An engine's own time around the kernels. Precedence: scenario, GPU entry, default."""

from __future__ import annotations

import math
from dataclasses import replace

from mist_sim.clients import EngineConfig
from mist_sim.core.front_end import FRONT_END
from mist_sim.hardware import GpuSpec, device_of
from mist_sim.hardware.predictors import EngineOverhead, PipelinePredictor, Predictor
from mist_sim.hardware.predictors.overhead import EXPOSED, FITTED_ON
from mist_sim.metrics.assumptions import RELEASE
from mist_sim.models import ModelSpec
from mist_sim.scenario.engines.engine_version import FIRST_PATCH, HIDES, PARSES, TEMPLATES, Hidden
from mist_sim.scenario.engines.version_names import version_of

_WITHOUT_TEMPLATE = frozenset({"gpt_oss"})  # whose prompts openai_harmony writes


def own_time(
    overhead: EngineOverhead | None, predictor: PipelinePredictor, gpu: GpuSpec
) -> EngineOverhead:
    """Return the engine's own time; around kernels alone, the GPU's entry fills what is not set."""
    overhead = overhead or EngineOverhead()
    return overhead.or_else(gpu.overhead) if predictor.traits.kernels_only else overhead


def hides_host(config: EngineConfig) -> bool:
    """Whether host time hides behind the GPU's: with async scheduling, in versions that do so.

    Where a scenario says how much it does not hide, it hides the rest in any version.
    """
    is_said = any(getattr(config.overhead, name) is not None for name in EXPOSED)
    return bool(config.async_scheduling) and (is_said or _hidden(config).step > 0)


def exposed(overhead: EngineOverhead, config: EngineConfig, predictor: Predictor) -> EngineOverhead:
    """Return the engine's own time with what async scheduling does not hide of it in a release."""
    hidden = _hidden(config)
    is_said = any(getattr(overhead, name) is not None for name in EXPOSED)
    if is_said or not config.async_scheduling or not 0 < hidden.step < math.inf:
        return overhead
    step, sequence = overhead.of_a_step(predictor)
    return replace(
        overhead,
        exposed_step=max(0.0, step - hidden.step),
        exposed_sequence=max(0.0, sequence - hidden.sequence),
    )


def _hidden(config: EngineConfig) -> Hidden:
    found: Hidden = version_of(config.engine).default(HIDES)
    return found


def between_releases(config: EngineConfig) -> tuple[str, ...]:
    """Return what is assumed of a release: what lies between two others, and its packages."""
    version = version_of(config.engine)
    told = [each for each in version.interpolated if config.async_scheduling or each != HIDES]
    found = [f"{RELEASE}{version.title}: {', '.join(told)}"] if told else []
    says_sampler = config.sampling is not None and config.sampling.sampler is not None
    if version.minor <= FIRST_PATCH and not says_sampler:
        found.append("FlashInfer as in vLLM's images (else sampling.sampler: pytorch)")
    return tuple(found)


def parse_time(config: EngineConfig, model: ModelSpec) -> float:
    """Return the seconds of an HTTP server for a request before any that waits is tokenized."""
    version = version_of(config.engine)
    has_template = model.architecture not in _WITHOUT_TEMPLATE
    seconds: float = version.default(PARSES) + version.default(TEMPLATES) * has_template
    return seconds


def assumed_times(
    overhead: EngineOverhead, predictor: PipelinePredictor, gpu: GpuSpec
) -> tuple[str, ...]:
    """Return the options that are not set and whose default is an assumption on this GPU.

    vLLM's front end is among them around kernels and layers, unless `overhead.request` is set; the
    scenario may still set it.

    overhead: with the values of the GPU's entry.
    """
    said: dict[str, float | None] = {}
    elsewhere = device_of(gpu).name != FITTED_ON
    if predictor.traits.kernels_only and elsewhere:
        said = {"overhead.step": overhead.step, "overhead.sequence": overhead.sequence}
    if predictor.traits.beyond_prompts:
        said["overhead.prefill_step"] = overhead.prefill_step
    found = tuple(name for name, seconds in said.items() if seconds is None)
    found += predictor.traits.assumed
    has_server = predictor.traits.kernels_only or predictor.traits.beyond_prompts
    return (*found, FRONT_END) if has_server and overhead.request is None else found
