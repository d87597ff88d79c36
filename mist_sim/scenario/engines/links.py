"""Options about the links of a client's GPUs, `all_reduce` and `host`, and the default host."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from mist_sim.clients import EngineConfig
from mist_sim.errors import ScenarioError
from mist_sim.hardware import Cluster, GpuSpec, HostSpec, host_from_table, load_host
from mist_sim.hardware.collectives import all_gather, all_reduce, send
from mist_sim.hardware.devices import AllReduce, default_host
from mist_sim.hardware.predictors import PipelinePredictor
from mist_sim.models import ModelSpec


def with_all_reduce(gpu: GpuSpec, way: AllReduce | None, tensor_parallel_size: int) -> GpuSpec:
    """Return a GPU whose links use this all-reduce; the same GPU for None.

    Raises ScenarioError if it could change nothing.
    """
    if way is None:
        return gpu
    if tensor_parallel_size == 1:
        raise ScenarioError(
            f"all_reduce must be null with tensor_parallel_size 1, where nothing is summed, "
            f"got {way}"
        )
    link = gpu.interconnect
    if link.bus_bandwidth and way != "bestserve":
        raise ScenarioError(
            f"all_reduce must be null with {gpu.name}, whose collectives were measured "
            f"(bus_bandwidth in its entry), got {way}"
        )
    try:
        return replace(gpu, interconnect=replace(link, all_reduce=way))
    except ValueError as error:
        raise ScenarioError(f"{error} (the links of {gpu.name})") from None


_WITH_PEERS, _WITHOUT = "pcie-peer", "host-memory"


def host_of(said: str | Mapping[str, Any] | HostSpec) -> HostSpec:
    """Return the host that a scenario names or describes. Raises ScenarioError if unknown."""
    if isinstance(said, HostSpec):
        return said
    if isinstance(said, str):
        return load_host(said)
    return host_from_table(said, name="host", source="host")


def with_host(gpu: GpuSpec, config: EngineConfig) -> GpuSpec:
    """Return a GPU in the host that a client names; the same GPU if it names none.

    Raises ScenarioError if the host could change nothing or is impossible.
    """
    if config.host is None:
        return gpu
    link = gpu.interconnect
    host = host_of(config.host)
    if problem := _no_effect(gpu, config):
        raise ScenarioError(f"host must be null {problem}, got {host.name}")
    try:
        return replace(gpu, interconnect=replace(link, host=host, all_reduce="host"))
    except ValueError as error:
        raise ScenarioError(f"{error}; these are of {gpu.name}") from None


def _no_effect(gpu: GpuSpec, config: EngineConfig) -> str:
    """Return the reason why a host has no effect; empty if it has one."""
    link = gpu.interconnect
    if link.kind != "pcie":
        return f"with {gpu.name}, whose links ({link.kind}) are its own"
    if link.bus_bandwidth:
        return f"with {gpu.name}, whose collectives were measured (bus_bandwidth in its entry)"
    if config.all_reduce is not None:
        return f"with all_reduce {config.all_reduce}, which sets how GPUs sum"
    if not _in_contact(config):
        return "with GPUs that send nothing to one another"
    return ""


def _in_contact(config: EngineConfig) -> bool:
    return in_contact(
        config.tensor_parallel_size,
        config.pipeline_parallel_size,
        config.data_parallel_size if config.enable_expert_parallel else 1,
    )


def in_contact(*sizes: int) -> bool:
    """Tell whether the GPUs of a client send to one another. sizes: of the groups that send."""
    return max(sizes) > 1


def goes_by_host(gpu: GpuSpec, all_reduce: str | None) -> bool:
    """Tell whether sends between GPUs depend on their host. all_reduce: the client's option."""
    link = gpu.interconnect
    way = all_reduce or link.all_reduce
    return link.kind == "pcie" and way in ("host", "hierarchical") and not link.bus_bandwidth


def check_links(predictor: PipelinePredictor, config: EngineConfig) -> None:
    """Raise ScenarioError for options about links where the predictor's times ignore these."""
    ignored = {
        "all_reduce": config.all_reduce is not None and not predictor.traits.sums_over_links,
        "host": config.host is not None and not _times_links(predictor, config),
    }
    for option, is_ignored in ignored.items():
        if is_ignored:
            raise ScenarioError(
                f"{option} must be null with a predictor whose times have the collectives in them"
            )


def _times_links(predictor: PipelinePredictor, config: EngineConfig) -> bool:
    return predictor.traits.sums_over_links or config.pipeline_parallel_size > 1


def assumed_host(
    predictor: PipelinePredictor,
    config: EngineConfig,
    model: ModelSpec,
    cluster: Cluster,
    num_tokens: int,
) -> Mapping[str, Any]:
    """Return the effect of the default host on a step; empty if one is named or none matters.

    num_tokens: of the largest step.
    """
    link = cluster.gpu.interconnect
    if config.host is not None or link.host is not None or not _in_contact(config):
        return {}
    if not goes_by_host(cluster.gpu, config.all_reduce) or not _times_links(predictor, config):
        return {}
    host, other = default_host(link), _WITH_PEERS if link.peer_access else _WITHOUT
    here, there = (
        1e3 * _communication(_in_host(cluster, each), model, num_tokens)
        for each in (host, load_host(other))
    )
    groups = cluster.pipeline_parallel_size * config.data_parallel_size
    return {
        "num_groups": groups if cluster.tensor_parallel_size > 1 else 1,
        "host": host.name,
        "measured_with": host.measured_with,
        "num_tokens": num_tokens,
        "communication_ms": here,
        "other_host": other,
        "other_communication_ms": there,
    }


def _in_host(cluster: Cluster, host: HostSpec) -> Cluster:
    link = replace(cluster.gpu.interconnect, host=host)
    return replace(cluster, gpu=replace(cluster.gpu, interconnect=link))


def _communication(cluster: Cluster, model: ModelSpec, num_tokens: int) -> float:
    """Return the seconds that a step of so many tokens spends between GPUs."""
    link, size = cluster.gpu.interconnect, num_tokens * model.hidden_size * model.dtype_bytes
    replicas = cluster.num_sharing_replicas
    seconds = 2 * model.num_layers * all_reduce(link, cluster.tensor_parallel_size)(size)
    if replicas > 1:
        seconds += 2 * model.num_moe_layers * all_gather(link, replicas)(size * replicas)
    return seconds + (cluster.pipeline_parallel_size - 1) * send(link)(2 * size)
