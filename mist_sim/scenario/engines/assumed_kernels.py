"""The kernels of a GPU that was not timed: their effect on a step.

Without an `architecture` every kernel reaches the same share of the GPU's peaks and none takes time
to start, so steps come out too fast. With one, a GPU that is not in the catalog is taken to reach
the shares of the GPUs that were timed. Other architectures tell by how much either may be wrong.
"""

from __future__ import annotations

from dataclasses import replace

from mist_sim.core.batch import StepBatch
from mist_sim.errors import in_words
from mist_sim.hardware import GpuSpec
from mist_sim.hardware.devices.device_loading import architecture_names, kernels_of
from mist_sim.hardware.predictors import PipelinePredictor, RooflinePredictor
from mist_sim.hardware.setting import figures_of_its_own

_DECODES = (1, 64)  # a step whose kernels start longer than they run, and a filled one
_CONTEXT = 1024  # tokens


def assumed_kernels(predictor: PipelinePredictor, gpu: GpuSpec) -> tuple[str, ...]:
    """Return what is assumed of the kernels of a GPU, with its effect; empty if they were timed.

    A GPU whose efficiencies were fitted or measured has the time to start kernels in them.
    """
    timed = predictor.ranks[0]
    if gpu.confidence != "spec-only" or not isinstance(timed, RooflinePredictor):
        return ()
    if gpu.kernels and not (gpu.architecture and figures_of_its_own(gpu)):
        return ()
    found = (
        f"{_ratios(timed, decodes)} with {in_words(decodes, 'decode')}" for decodes in _DECODES
    )
    told = " and ".join(found)
    if gpu.kernels:
        return (f"kernels: {gpu.name} as {gpu.architecture}, {told}",)
    return (f"architecture: {told}",)


def _ratios(timed: RooflinePredictor, decodes: int) -> str:
    """Return the time of a step by each architecture's kernels, as a range of multiples."""
    batch = StepBatch((), decodes, decodes * _CONTEXT, longest_context=_CONTEXT)
    own, gpu = timed.step_time(batch), timed.cluster.gpu
    of_others = [
        replace(
            timed, cluster=replace(timed.cluster, gpu=replace(gpu, kernels=kernels_of(name)))
        ).step_time(batch)
        / own
        for name in architecture_names()
    ]
    return f"{min(of_others):.2f} to {max(of_others):.2f}"
