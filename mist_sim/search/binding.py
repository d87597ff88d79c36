"""What binds a deployment at its goodput: the resource whose relaxation by a tenth helps most.

A relaxed GPU has other rates and keeps all measurements: the shares of its rates that kernels
reach, their tables, its name. So relaxing by 0 changes nothing.

All runs use one rate a little above the goodput, with the same requests and random streams (common
random numbers), so that they differ only by the relaxed resource. A resource moves goodput if
relaxing it lowers the deciding quantile (see `steady_state`). The gain in goodput is read off runs
at lower rates with no resource relaxed: a resource is worth the reduction in load with the same
effect.

A fall counts where it is more than noise. Its error is that of the mean of the differences between
the batches of two runs, in order, around their own line, since where a queue grows the difference
does as well; their correlation is taken into account, and the chance of a wrong word, 5 %, is
shared out among the resources.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from math import ceil, exp, inf, log, log1p, nan, sqrt
from typing import Any, Unpack

import numpy as np

from mist_sim.clients.kv_cache import KvCacheConfig
from mist_sim.core.recorder import Recorder
from mist_sim.errors import ScenarioError
from mist_sim.hardware import GpuSpec, HostSpec, load_gpu
from mist_sim.hardware.devices import default_host
from mist_sim.hardware.predictors.overhead import own_time_in
from mist_sim.metrics.latency import is_of_gaps
from mist_sim.scenario import Scenario, build
from mist_sim.scenario.engines.links import host_of
from mist_sim.scenario.format.parts import Part
from mist_sim.scenario.loading import as_data
from mist_sim.scenario.sections.clients.base import ClientPart
from mist_sim.search.binding_result import MOST_TOLD, Binding
from mist_sim.search.goodput_result import Goodput
from mist_sim.studies.built import Built
from mist_sim.studies.driver import Driver, How, studying
from mist_sim.studies.subjects import one_run
from mist_sim.studies.task import Key, Task
from mist_sim.studies.verdicts.request_times import Array, RequestTimes, Target, none_counts
from mist_sim.studies.verdicts.steady_state import inflation, log_ratios, quantile
from mist_sim.studies.verdicts.trials import lengthened

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


def _of_gpu(part: Any, change: Callable[[GpuSpec], dict[str, Any]]) -> _Update:
    gpu = _gpu_of(part)
    return {"gpu": replace(gpu, **change(gpu))} if gpu else {}


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


def _adapters(part: Any, _: Scenario, factor: float) -> _Update:
    lora = getattr(part, "lora", None)
    if lora is None:
        return {}
    slots = _more(lora.max_loras, factor)
    more = {"max_loras": slots}
    if lora.max_cpu_loras is not None:
        more["max_cpu_loras"] = max(lora.max_cpu_loras, slots)
    return {"lora": lora.model_copy(update=more)}


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
    "compute": lambda part, _, by: _of_gpu(part, lambda gpu: {"flops": _times(gpu.flops, by)}),
    "memory_bandwidth": lambda part, _, by: _of_gpu(
        part, lambda gpu: {"memory_bandwidth": gpu.memory_bandwidth * by}
    ),
    "kv_memory": _kv_memory,
    "links": _links,
    "host": _host,
    "seats": lambda part, _, by: _of_scheduler(part, "max_num_seqs", lambda n: _more(n, by)),
    "token_budget": lambda part, _, by: _of_scheduler(
        part, "max_num_batched_tokens", lambda n: _more(n, by)
    ),
    "chunks": _chunks,
    "adapters": _adapters,
}
RESOURCES = (*_OF_CLIENTS, "transfer")
"""What can be relaxed: FLOP/s and memory bandwidth of GPUs; room for KV entries; links between
the GPUs of an engine; the engine's own time; max_num_seqs; max_num_batched_tokens, once more of it
and once (chunks) less, so that a long prompt holds up a step for less long; max_loras of LoRA
adapters; the network."""


BATCHES = 20
_RAMP = 0.2  # of the requests, as in a run whose verdict is looked for


def relaxed_run(
    data: dict[str, Any],
    changes: dict[str, Any],
    seed: int,
    rate: float,
    target: Target,
    resource: str | None,
    by: float,
    num_requests: int | None,
) -> dict[str, Any]:
    """Return a run's deciding quantile, as a task of a study.

    data, changes: as in `try_rate`. resource, by: the resource to relax, as in `relaxed`; None:
        none. num_requests: for a workload that can be longer or shorter; others, and all with None,
        keep their length.

    Of each row of `Target.shares`, after the ramp: `names`, `quantile` of the logarithms of time
    over limit, and `batches`, those of 20 equal parts of the requests. By limit of the slo:
    `missed`, the share of the requests that do not keep it, and `alone`, the quantile of that limit
    alone.
    Raises ScenarioError where the resource cannot be relaxed, and where no request counts.
    """
    scenario = one_run(data, seed, changes)
    if resource is not None:
        found = relaxed(scenario, resource, by)
        if found is None:
            raise ScenarioError(f"the scenario has no {resource} that can be relaxed")
        scenario = found
    simulation = build(scenario)
    longer = lengthened(simulation, target, num_requests, spare=1) if num_requests else None
    simulation.workload = longer or simulation.workload
    recorder = Recorder()
    simulation.run(recorder=recorder)
    times = RequestTimes.of(recorder, simulation.warmup)
    if not len(times):
        raise none_counts(simulation.warmup, rate)
    rows = _rows(target, times)
    by_limit = _rows(replace(target, each=True, percentiles=()), times)
    return {
        "names": list(rows),
        "quantile": [quantile(row, share) for row, share in rows.values()],
        "batches": [
            [quantile(part, share) for part in np.array_split(row, min(BATCHES, len(row)))]
            for row, share in rows.values()
        ],
        "missed": {name: float((row > 0).mean()) for name, (row, _) in by_limit.items()},
        "alone": {name: quantile(row, share) for name, (row, share) in by_limit.items()},
    }


def _rows(target: Target, times: RequestTimes) -> dict[str, tuple[Array, float]]:
    """Return (logarithms of time over limit after the ramp, share asked for), by name."""
    ramp = int(_RAMP * len(times))
    found = {}
    for name, (share, mine) in target.shares_in(times).items():
        row = log_ratios(share.ratios(times))[ramp:][mine[ramp:]]
        if len(row):
            found[name] = row, share.asked
    return found


_NUMBER = 200  # requests, where the workload may have any number


def lone_run(key: Key, built: Built, target: Target, *, as_is: bool) -> Task:
    """Return the run that tells, as a task of a study. as_is: with all requests of the workload."""
    load = built.load
    arguments = built.data, load.at(load.lone), built.scenario.seed, load.lone, target
    return Task(key, relaxed_run, (*arguments, None, 0.0, None if as_is else _NUMBER))


_ABOVE = 1.05  # times the goodput: about half of the gain from a tenth more of a binding resource
_LOWER = (1.05, 1.1, 1.3)  # that rate divided by those of the runs without relaxation
_REQUESTS = 3000
_WRONG = 0.05  # chance of naming a resource without effect
_LEAST = 1e-3  # fall of a logarithm that anybody would name


def what_binds(
    scenario: Scenario,
    goodput: Goodput,
    *,
    by: float = 0.1,
    num_requests: int = _REQUESTS,
    **how: Unpack[How],
) -> Binding:
    """Return the resource that binds a scenario at the goodput that `find_goodput` found.

    by: share by which resources are relaxed. num_requests: per run, if the workload is drawn.
    how: see `How`.
    Raises ScenarioError if there is no goodput, and all errors of `find_goodput`.
    """
    if not goodput.rate > 0:
        raise ScenarioError(f"what binds is not known without a goodput, got {goodput.status}")
    if not 0 < by <= 1:
        raise ScenarioError(f"by must be in (0, 1], got {by:g}")
    if num_requests < 1000:
        raise ScenarioError(f"num_requests must be >= 1000, got {num_requests}")
    options = {"rate": goodput.rate, "target": goodput.target, "by": by, "requests": num_requests}
    with studying("binding", {"0": as_data(scenario)}, options, **how) as driver:
        return search_binding(Built(scenario), goodput, driver, by, num_requests)


def search_binding(
    built: Built,
    goodput: Goodput,
    driver: Driver,
    by: float = 0.1,
    num_requests: int = _REQUESTS,
) -> Binding:
    """Return the binding resource, with the runs as tasks of a study; see `what_binds`."""
    first, slo = goodput.first_limit or "", goodput.target.slo
    if not first and not slo.judges_requests:
        first = next(iter(slo.figures))
    if is_of_gaps(first):  # no resource's run is compared by them
        return Binding(goodput.rate * _ABOVE, first, None, gains={}, by=by)
    seed = goodput.searches[0].seed
    rate = goodput.rate * _ABOVE
    is_steady = any(trial.is_steady for search in goodput.searches for trial in search.trials)
    most = num_requests if is_steady else None

    def task(at: float, resource: str | None) -> Task:
        arguments = built.data, built.rates.at(at), seed, at, goodput.target, resource, by, most
        return Task(("binding", resource or "", at), relaxed_run, arguments)

    names = [name for name in RESOURCES if relaxed(built.scenario, name, by) is not None]
    plain = [task(rate, None), *(task(rate / lower, None) for lower in _LOWER)]
    base, *slower = driver.results(plain)
    rows = driver.run([task(rate, name) for name in names], keep_errors=True)
    failed = {n: str(row.failure) for n, row in zip(names, rows, strict=True) if row.failure}
    runs = {n: row.result for n, row in zip(names, rows, strict=True) if not row.failure}
    found = _ranked(base, slower, runs, rate)
    return replace(found, failed=failed, by=by, num_requests=most or goodput.num_requests)


def _ranked(
    base: Mapping[str, Any],
    slower: Sequence[Mapping[str, Any]],
    runs: Mapping[str, Mapping[str, Any]],
    rate: float,
) -> Binding:
    """Return the binding resource found by the runs."""
    decides = int(np.argmax(base["quantile"]))
    found = {name: _fall(base, run, decides, len(runs)) for name, run in runs.items()}
    gains = {name: gain for name, (gain, _) in found.items()}
    lower = [_fall(base, run, decides, 1)[0] for run in slower]
    more, stopped = dict[str, float](), dict[str, str]()
    for name, (gain, error) in found.items():
        if gain > max(error, _LEAST):
            most, limit = _allowed(base, slower, runs[name], decides)
            if most > 0:
                more[name] = min(_worth(gain, lower), most)
            if most < _worth(gain, lower):
                stopped[name] = limit
    best = max(more, key=lambda name: (more[name], gains[name]), default=None)
    return Binding(
        rate,
        limit=_limit_of(base, decides),
        resource=best,
        gains=gains,
        errors={name: error for name, (_, error) in found.items()},
        more=more,
        stopped=stopped,
        rivals=_rivals(best, gains, runs, decides) if best else (),
    )


def _limit_of(run: Mapping[str, Any], place: int) -> str:
    """Return the limit of a row; of several, the one that most requests miss."""
    row: str = run["names"][place]
    missed, alone = run["missed"], run["alone"]
    among = [name for name in missed if name.rpartition(".")[0] == row]
    return max(among, key=lambda name: (missed[name], alone[name]), default=row)


def _allowed(
    base: Mapping[str, Any],
    slower: Sequence[Mapping[str, Any]],
    relaxed_: Mapping[str, Any],
    decides: int,
) -> tuple[float, str]:
    """Return the gain in goodput that the other rows allow once a resource is relaxed.

    More seats serve a queue sooner, and make every step longer. The name is that of the limit that
    allows the least. Each row's rate is where its quantile meets the limit, on a line along the
    rates tried.
    """

    def end(run: Mapping[str, Any], row: int) -> float:
        """Return log(rate tried / rate at which the row meets its limit)."""
        falls = [base["quantile"][row] - each["quantile"][row] for each in slower]
        return log1p(_worth(run["quantile"][row], falls))

    before = end(base, decides)
    others = [row for row in range(len(base["names"])) if row != decides]
    found = [(exp(before - end(relaxed_, row)) - 1, _limit_of(relaxed_, row)) for row in others]
    return min(found, default=(inf, ""))


def _rivals(
    best: str,
    gains: Mapping[str, float],
    runs: Mapping[str, Mapping[str, Any]],
    row: int,
) -> tuple[str, ...]:
    """Return the resources that may be as good as the best: the gap is within noise.

    This includes resources with a gain too small to tell from noise.
    """
    behind = {name: _fall(runs[name], runs[best], row, len(runs)) for name in gains if name != best}
    return tuple(
        name for name, (by, error) in behind.items() if gains[name] > _LEAST and by <= error
    )


def _fall(
    base: Mapping[str, Any], run: Mapping[str, Any], row: int, num_said: int
) -> tuple[float, float]:
    """Return how far the quantile falls in a run with a relaxed resource, with its error.

    num_said: number of such falls that are judged together.
    """
    from scipy.special import stdtrit

    falls = np.array(base["batches"][row]) - np.array(run["batches"][row])
    if len(falls) < 4:
        return float(falls.mean()), nan
    order = np.arange(len(falls)) - (len(falls) - 1) / 2
    slope = float(order @ falls) / float(order @ order)
    rest = falls - slope * order
    free = len(falls) - 2
    variance = float(rest.var()) * len(falls) / free / len(falls) * inflation(rest)
    return float(falls.mean()), float(stdtrit(free, 1 - _WRONG / 2 / num_said)) * sqrt(variance)


def _worth(gain: float, lower: Sequence[float]) -> float:
    """Return the gain in goodput, interpolated between the rates that were tried.

    lower: gains of the rates of `_LOWER`. The last line is extrapolated, up to a limit, and the
    first one for a loss.
    """
    before = (0.0, 0.0)
    points = [(log(factor), fall) for factor, fall in zip(_LOWER, lower, strict=True)]
    if gain < 0:
        distance, fall = points[0]
        return max(exp(distance * gain / fall) - 1, -MOST_TOLD) if fall > 0 else -MOST_TOLD
    for distance, fall in points:
        if fall >= gain and fall > before[1]:
            share = (gain - before[1]) / (fall - before[1])
            return exp(before[0] + (distance - before[0]) * share) - 1
        before = (distance, max(fall, before[1]))
    distance, fall = points[-1][0], before[1]
    return min(exp(distance * gain / fall) - 1, MOST_TOLD) if fall > 0 else MOST_TOLD
