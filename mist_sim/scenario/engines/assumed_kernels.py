"""The kernels of a GPU that was not timed: their effect on a step.

Without an `architecture` every kernel reaches the same share of the GPU's peaks and none takes time
to start, so steps come out too fast. With one, a GPU that is not in the catalog is taken to reach
the shares of the GPUs that were timed. Other architectures tell by how much either may be wrong.
"""

from __future__ import annotations

from dataclasses import replace

from mist_sim.core.batch import StepBatch
from mist_sim.errors import in_words, listed
from mist_sim.hardware import GpuSpec
from mist_sim.hardware.devices.device_loading import architecture_names, fitted_gpus, kernels_of
from mist_sim.hardware.predictors import PipelinePredictor, RooflinePredictor
from mist_sim.hardware.setting import figures_of_its_own

_DECODES = (1, 64)  # a step whose kernels start longer than they run, and a filled one
_CONTEXT = 1024  # tokens
_PROMPT = 2048  # tokens


def assumed_kernels(predictor: PipelinePredictor, gpu: GpuSpec) -> tuple[str, ...]:
    """Return what is assumed of the kernels of a GPU, with its effect; empty if they were timed.

    A GPU whose efficiencies were fitted or measured has the time to start kernels in them.
    """
    timed = predictor.ranks[0]
    if gpu.confidence != "spec-only" or not isinstance(timed, RooflinePredictor):
        return ()
    if gpu.kernels and not (gpu.architecture and figures_of_its_own(gpu)):
        return ()
    if gpu.kernels:
        steps = (*(_decoding(number) for number in _DECODES), StepBatch(((_PROMPT, 0),)))
        told = [f"{_as_others(timed, step)} {_of(step)}" for step in steps]
        return (f"kernels: {gpu.name} as {gpu.architecture}, {listed(told)}",)
    found = (f"{_ratios(timed, _decoding(number))} {_of(_decoding(number))}" for number in _DECODES)
    return (f"architecture: {' and '.join(found)}",)


def _decoding(number: int) -> StepBatch:
    return StepBatch((), number, number * _CONTEXT, longest_context=_CONTEXT)


def _of(step: StepBatch) -> str:
    decodes = step.num_decodes
    return f"with {in_words(decodes, 'decode')}" if decodes else f"with a prompt of {_PROMPT:,}"


def _as_others(timed: RooflinePredictor, step: StepBatch) -> str:
    """Return the time of a step if the GPU reached what other GPUs reach, as multiples.

    That is shares of its own peaks, by kernel and in all, and the latencies of links.
    """
    own, gpu = timed.step_time(step), timed.cluster.gpu
    times = {}
    for other in fitted_gpus():
        link = replace(
            gpu.interconnect,
            nccl_latency=other.interconnect.nccl_latency,
            kernel_latency=other.interconnect.kernel_latency,
        )
        like = replace(
            gpu,
            kernels=other.kernels,
            prefill=other.prefill,
            decode=other.decode,
            interconnect=link,
        )
        found = replace(timed, cluster=replace(timed.cluster, gpu=like))
        times[other.name] = found.step_time(step) / own
    low, high = min(times, key=times.__getitem__), max(times, key=times.__getitem__)
    return f"{times[low]:.2f} ({low}) to {times[high]:.2f} ({high})"


def _ratios(timed: RooflinePredictor, batch: StepBatch) -> str:
    """Return the time of a step by each architecture's kernels, as a range of multiples."""
    own, gpu = timed.step_time(batch), timed.cluster.gpu
    of_others = [
        replace(
            timed, cluster=replace(timed.cluster, gpu=replace(gpu, kernels=kernels_of(name)))
        ).step_time(batch)
        / own
        for name in architecture_names()
    ]
    return f"{min(of_others):.2f} to {max(of_others):.2f}"
