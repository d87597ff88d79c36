"""The same scenario with more of one resource.

A GPU gets other rates and keeps all measurements: the shares of its rates that kernels reach, their
tables, its name. So relaxing by 0 changes nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, replace
from math import ceil
from typing import Any

from mist_sim.clients.kv_cache import KvCacheConfig
from mist_sim.hardware import GpuSpec, HostSpec, load_gpu
from mist_sim.hardware.devices.hosts import default_host
from mist_sim.hardware.predictors.overhead import own_time_in
from mist_sim.scenario import Scenario
from mist_sim.scenario.engines.engine_hosts import host_of
from mist_sim.scenario.format.parts import Part
from mist_sim.scenario.sections.clients import ClientPart

_ROUNDING = 1e-9  # 1.1 x 10 seats are 11 in spite of rounding
_BY_FIGURES = ("roofline", "bestserve", "genz")  # predictors whose times follow the GPU's rates
_OF_A_TOPOLOGY = ("nvlink", "pcie", "nic", "uplink", "storage", "remote_storage")


def relaxed(scenario: Scenario, resource: str, by: float) -> Scenario | None:
    """Return a scenario with more of a resource; None if it cannot be relaxed.

    resource: one of `RESOURCES`. by: share, 0.1 for a tenth. Whole numbers are rounded up, so small
        numbers of seats grow by more. The result can be built, but not written as a file.
    """
    if resource == "transfer":
        return _with_network(scenario, 1 + by)
    relax = _OF_CLIENTS[resource]
    parts = [(part, relax(part, scenario, 1 + by)) for part in scenario.clients]
    if not any(found for _, found in parts):
        return None
    clients = tuple(part.model_copy(update=found) if found else part for part, found in parts)
    return scenario.model_copy(update={"clients": clients})


def _with_network(scenario: Scenario, factor: float) -> Scenario | None:
    network = scenario.network
    if network is None:
        return None
    made = network.make()
    if made.has_topology:
        rates = {name: getattr(made.resolved, name) for name in _OF_A_TOPOLOGY}
        faster = {name: rate * factor for name, rate in rates.items() if rate is not None}
    else:
        faster = {"bandwidth": made.bandwidth * factor, "latency": made.latency / factor}
    return scenario.model_copy(update={"network": network.model_copy(update=faster)})


_Update = dict[str, Any]  # of the keys of a client


def _gpu_of(part: Any) -> GpuSpec | None:
    """Return the GPU of a client whose step times follow its rates."""
    predictor = getattr(part, "predictor", None)
    if getattr(predictor, "type_", None) not in _BY_FIGURES:
        return None
    return load_gpu(part.gpu)


def _compute(part: Any, _: Scenario, factor: float) -> _Update:
    gpu = _gpu_of(part)
    return {"gpu": replace(gpu, flops=_times(gpu.flops, factor))} if gpu else {}


def _memory_bandwidth(part: Any, _: Scenario, factor: float) -> _Update:
    gpu = _gpu_of(part)
    return {"gpu": replace(gpu, memory_bandwidth=gpu.memory_bandwidth * factor)} if gpu else {}


def _links(part: Any, _: Scenario, factor: float) -> _Update:
    gpu = _gpu_of(part)
    if gpu is None or part.tensor_parallel_size * part.pipeline_parallel_size == 1:
        return {}
    link = gpu.interconnect
    faster = replace(
        link,
        bandwidth=link.bandwidth * factor,
        bus_bandwidth=_times(link.bus_bandwidth, factor),
        nccl_latency=link.nccl_latency / factor,
        kernel_latency=link.kernel_latency / factor,
    )
    if link.kind != "pcie":
        return {"gpu": replace(gpu, interconnect=faster)}
    if part.host is not None:
        return {"gpu": replace(gpu, interconnect=faster), "host": _faster_host(part.host, factor)}
    host = _faster_host(link.host or default_host(link), factor)
    return {"gpu": replace(gpu, interconnect=replace(faster, host=host))}


def _faster_host(said: str | Mapping[str, Any] | HostSpec, factor: float) -> HostSpec:
    """Return a host with faster measured rates; without any, its cards' rates count."""
    host = host_of(said)
    return replace(host, bus_bandwidth=_times(host.bus_bandwidth, factor))


def _times(figures: Mapping[str, float], factor: float) -> dict[str, float]:
    return {name: figure * factor for name, figure in figures.items()}


def _clients(part: ClientPart, scenario: Scenario) -> Iterator[Any]:
    """Yield the first engine of a client, for unset keys; nothing for other clients."""
    if hasattr(part, "kv_cache"):
        yield next(iter(part.clients(scenario.model)))


def _kv_memory(part: Any, scenario: Scenario, factor: float) -> _Update:
    for client in _clients(part, scenario):
        num = client.num_gpu_blocks // client.data_parallel_size
        null = 1  # `num_gpu_blocks_override` counts vLLM's null block
        unsaid = KvCacheConfig()
        more = {
            "num_gpu_blocks_override": _more(num, factor) + null,
            "gpu_memory_utilization": unsaid.gpu_memory_utilization,  # said how many before
            "context_memory": unsaid.context_memory,
        }
        return {"kv_cache": part.kv_cache.model_copy(update=more)}
    return {}


def _host(part: Any, scenario: Scenario, factor: float) -> _Update:
    for client in _clients(part, scenario):
        times = asdict(own_time_in(client.predictor.ranks[0]))
        times |= {"request": client.request_overhead, "prompt_token": client.prompt_token_overhead}
        faster = {name: seconds / factor for name, seconds in times.items() if seconds}
        found = {"overhead": part.overhead.model_copy(update=faster)} if faster else {}
        gpu = _gpu_of(part)
        if gpu is not None and gpu.dispatch:
            found["gpu"] = replace(gpu, dispatch=_times(gpu.dispatch, 1 / factor))
        return found
    return {}


def _seats(part: Any, _: Scenario, factor: float) -> _Update:
    return _of_scheduler(part, "max_num_seqs", lambda seats: _more(seats, factor))


def _token_budget(part: Any, _: Scenario, factor: float) -> _Update:
    return _of_scheduler(part, "max_num_batched_tokens", lambda tokens: _more(tokens, factor))


def _chunks(part: Any, _: Scenario, factor: float) -> _Update:
    def fewer(tokens: int) -> int:
        seats: int = part.scheduler.max_num_seqs
        return min(tokens, max(int(tokens / factor + _ROUNDING), seats))

    return _of_scheduler(part, "max_num_batched_tokens", fewer)


def _of_scheduler(part: Any, name: str, change: Callable[[int], int]) -> _Update:
    scheduler: Part | None = getattr(part, "scheduler", None)
    value = getattr(scheduler, name, None)
    if scheduler is None or not value:
        return {}
    return {"scheduler": scheduler.model_copy(update={name: change(value)})}


def _more(number: int, factor: float) -> int:
    return ceil(number * factor - _ROUNDING)


_OF_CLIENTS: Mapping[str, Callable[[Any, Scenario, float], _Update]] = {
    "compute": _compute,
    "memory_bandwidth": _memory_bandwidth,
    "kv_memory": _kv_memory,
    "links": _links,
    "host": _host,
    "seats": _seats,
    "token_budget": _token_budget,
    "chunks": _chunks,
}
RESOURCES = (*_OF_CLIENTS, "transfer")
"""What can be relaxed: FLOP/s and memory bandwidth of GPUs; room for KV entries; links between
the GPUs of an engine; the engine's own time; max_num_seqs; max_num_batched_tokens, once more of it
and once (chunks) less, so that a long prompt holds up a step for less long; the network."""
