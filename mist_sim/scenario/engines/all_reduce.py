"""The option `all_reduce` of a client, which replaces the GPU entry's algorithm."""

from __future__ import annotations

from dataclasses import replace

from mist_sim.errors import ScenarioError
from mist_sim.hardware import GpuSpec
from mist_sim.hardware.devices import AllReduce
from mist_sim.hardware.predictors import PipelinePredictor


def with_all_reduce(
    gpu: GpuSpec, all_reduce: AllReduce | None, tensor_parallel_size: int
) -> GpuSpec:
    """Return a GPU whose links use this all-reduce; the same GPU for None.

    Raises ScenarioError if it could change nothing.
    """
    if all_reduce is None:
        return gpu
    if tensor_parallel_size == 1:
        raise ScenarioError(
            f"all_reduce must be null with tensor_parallel_size 1, where nothing is summed, "
            f"got {all_reduce}"
        )
    link = gpu.interconnect
    if link.bus_bandwidth and all_reduce != "bestserve":
        raise ScenarioError(
            f"all_reduce must be null with {gpu.name}, whose collectives were measured "
            f"(bus_bandwidth in its entry), got {all_reduce}"
        )
    try:
        return replace(gpu, interconnect=replace(link, all_reduce=all_reduce))
    except ValueError as error:
        raise ScenarioError(f"{error} (the links of {gpu.name})") from None


def check_sums_over_links(predictor: PipelinePredictor) -> None:
    """Raise ScenarioError if a predictor ignores the all-reduce."""
    if not predictor.traits.sums_over_links:
        raise ScenarioError(
            "all_reduce must be null with a predictor whose times have the collectives in them"
        )
