"""Proved upper bounds of what engines serve, by which candidates are excluded without a run.

A demand is the lengths of a workload's requests, and when they are due.

In a roofline a step takes at least

- the arithmetic of its tokens over the FLOP/s that its best kernel reaches, and at least the time
  of reading the matrices once, whichever is longer; and on top of it
- the time of reading the KV entries of the sequences that decode.

All three hold for each step, and an engine does one step at a time, so they hold for sums over all
steps. The first and the third are sums over tokens, independent of the batches. The second counts
once per step; a step gives each sequence one token (with drafts, one more each), and has at most
`max_num_seqs` sequences, so answers of n tokens in all take at least n / max_num_seqs steps. Times
not covered by a bound (vocabulary, norms, attention of prompts, collectives, the host) only add. So
`fewest` is a bound for every router and every batch, and the bound of `alone` for one request holds
whatever else runs.

The bounds hold only for roofline times: other predictors, such as tables, need not respect data
sheets, and then no candidate is excluded. Nor is any for pipelines with other stages, and bundles
(AFD).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import islice
from math import ceil, inf, sqrt
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from mist_sim.errors import ScenarioError
from mist_sim.hardware import GpuSpec
from mist_sim.hardware.devices import DIFFERING, Kernel
from mist_sim.hardware.gpu_group import num_gpus as group_gpus
from mist_sim.hardware.machine import Machine
from mist_sim.hardware.predictors import RooflinePredictor
from mist_sim.hardware.predictors.scaled import unscaled
from mist_sim.metrics.goodput import Limits
from mist_sim.models import ModelSpec
from mist_sim.scenario import Scenario
from mist_sim.search.designs import rows_of
from mist_sim.search.planning.candidates import Engine
from mist_sim.search.planning.question import Question
from mist_sim.studies.built import Built
from mist_sim.studies.verdicts.request_times import Target
from mist_sim.studies.verdicts.trials import lengthened
from mist_sim.traces import ClosedLoop, TraceArrivals

Array = NDArray[np.float64]

_ROWS = 20_000  # of a workload that is drawn
_ERRORS = 4.0  # standard errors of a mean of drawn rows that are left as room: one in 30,000 is off


@dataclass(frozen=True)
class Demand:
    """The requests of a workload.

    prompts, answers: tokens of each (of a drawn workload, of its first ones). rate: requests per
        second; of users, those that they send when a mean request takes just its limits. share:
        required share of good requests. limits: limits of a good request. is_steady: whether it is
        judged in steady state rather than as it stands. span: seconds from the first
        arrival to the last of a workload as it stands; infinite if unknown. cached: whether a
        prefix cache may have parts of prompts. is_plain: whether each request is just a prompt and
        its answer. think: seconds that users do on average between two requests; None: requests
        come whatever became of others. No bound on the work of users is proved, since those with a
        late answer send less.
    """

    prompts: Array
    answers: Array
    rate: float
    share: float
    limits: Limits
    is_steady: bool = True
    span: float = inf
    cached: bool = False
    is_plain: bool = True
    think: float | None = None

    @property
    def mean_prompt(self) -> float:
        """Tokens."""
        return float(self.prompts.mean())

    @property
    def mean_answer(self) -> float:
        """Tokens."""
        return float(self.answers.mean())

    @property
    def turn(self) -> float:
        """Seconds from one request of a user to the next, if a mean request takes its limits."""
        limits = self.limits
        found = (limits.ttft or 0.0) + (limits.tpot or 0.0) * max(self.mean_answer - 1, 0.0)
        return (self.think or 0.0) + (found if limits.e2el is None else limits.e2el)

    def engines_for(self, work: Array) -> float:
        """Return the least number of engines for good requests, if each works without a pause.

        work: least engine seconds of each request. The required share of requests must be served
            whole, and the least demanding ones bound it from below. In steady state as many are
            served as arrive, since seats limit those under way.
        For a workload as it stands, all are served between the first arrival and the last deadline.
        """
        number = int(self.share * len(work))
        least = np.partition(work, number - 1)[:number] if number else work[:0]
        if not self.is_steady:
            return float(least.sum()) / (self.span + self._latest)
        return self.rate * self._each_takes(work, least)

    def most_rate(self, work: Array, num_engines: int) -> float:
        """Return the rate (requests per second) at which that many engines never pause.

        work: as in `engines_for`. Infinite if no bound is proved.
        """
        number = int(self.share * len(work))
        least = np.partition(work, number - 1)[:number] if number else work[:0]
        if self.is_steady:
            each = self._each_takes(work, least)
            return num_engines / each if each > 0 else inf
        span = float(least.sum()) / num_engines - self._latest if num_engines else inf
        if self.span == inf or span <= 0:
            return inf
        return self.rate * self.span / span

    def _each_takes(self, work: Array, least: Array) -> float:
        """Return the seconds that a request takes at least on average in steady state."""
        number = len(least)
        capped = np.minimum(work, least.max()) if number else work
        room = _ERRORS * float(capped.std()) / sqrt(len(work))
        return max(float(least.sum()) / len(work) - room, 0.0)

    @property
    def _latest(self) -> float:
        """Seconds after its arrival by which any good request has ended; infinite: any time."""
        limits, found = self.limits, [inf]
        if limits.e2el is not None:
            found.append(limits.e2el)
        if limits.ttft is not None and limits.tpot is not None:
            found.append(limits.ttft + limits.tpot * float(self.answers.max() - 1))
        return min(found)


def demand_of(question: Question, engine: Engine) -> Demand:
    """Return the demand of a question. engine: any one, with which the workload is built.

    Raises ScenarioError for a workload without requests.
    """
    as_is = question.options.as_is
    return demand_on(engine.built, question.target, question.rate, as_is=as_is)


def demand_on(built: Built, target: Target, rate: float, *, as_is: bool = False) -> Demand:
    """Return the demand on a scenario at a rate (requests per second), or of a closed loop's users.

    target: the condition to attain. as_is: for the workload as it stands, not in steady state.
    Raises ScenarioError for a workload without requests.
    """
    workload: Any = built.simulation.workload
    longer = None if as_is else lengthened(built.simulation, target, _ROWS)
    if longer is not None:
        found = _demand(built, longer.source, rate, _ROWS)
    else:
        found = replace(_demand(built, workload.source, rate), is_steady=False)
        if isinstance(workload.arrivals, TraceArrivals):
            found = replace(found, span=(len(found.prompts) - 1) / rate)
    found = replace(found, share=target.least_asked, limits=target.slo.loosest)
    if not isinstance(workload.arrivals, ClosedLoop):
        return found
    pauses = workload.arrivals.think_times(built.simulation.streams.generator("think_time"))
    found = replace(found, think=float(np.mean([*islice(pauses, _ROWS)])))
    return replace(found, rate=rate / found.turn if found.turn > 0 else inf)


def own_demand(built: Built, rate: float) -> Demand:
    """Return the demand of all requests of a scenario, whenever they end, at their rate (1/s)."""
    return _demand(built, built.workload.source, rate)


def _demand(built: Built, source: Any, rate: float, most: int | None = None) -> Demand:
    """Return the demand of all rows of a source, or the first ones, without limits.

    Raises ScenarioError where there are none.
    """
    rows = rows_of(source, built.simulation.streams.seed, most)
    if not rows:
        raise ScenarioError("workload must have a request, got none")
    lengths = np.array([row[:2] for row in rows], dtype=float)
    return Demand(
        lengths[:, 0],
        lengths[:, 1],
        rate,
        share=1.0,
        limits=Limits(),
        cached=any(row.content for row in rows),
        is_plain=built.scenario.workload.pipeline == ("prefill", "decode"),
    )


_ROUNDING = 1e-9
_ATTENTION = "attention"


@dataclass(frozen=True)
class Least:
    """Least times of an engine, in seconds.

    token: of arithmetic, for each token. matrices: of reading them, for each step. key: of reading
    the KV entries of a token, for each step that decodes after it. seats: sequences of a step.
    per_step: tokens that a sequence may get in a step.
    """

    token: float
    matrices: float
    key: float
    seats: int
    per_step: int = 1

    def step(self, tokens: float, keys: float) -> float:
        """Return the seconds that a step takes at least."""
        return max(tokens * self.token, self.matrices) + keys * self.key


def least_of(engine: Engine) -> Least | None:
    """Return the least times of an engine; None if no bound is proved."""
    return least_of_client(engine.client, engine.machine)


def least_of_client(client: Any, machine: Machine) -> Least | None:
    """Return the least times of a client with an engine; None if no bound is proved."""
    predictor = getattr(client, "predictor", None)
    if predictor is None:
        return None
    ranks, scales = zip(*map(unscaled, predictor.ranks), strict=True)
    if not all(map(_is_roofline, ranks)):
        return None
    scale = min(min(each.prompts, each.decodes) for each in scales)
    model, gpu, num_gpus = machine.model, machine.cluster.gpu, group_gpus(machine)
    if model.layers:
        return None
    flops, bandwidth = _flops(gpu), _bandwidth(gpu)
    is_one = machine.cluster.tensor_parallel_size == num_gpus  # no pipeline, no replicas
    keys = 0 if model.window_layers else model.kv_bytes_per_token
    drafts = 1 + machine.num_drafts
    return Least(
        token=scale * 2 * _matrix_params(model) / (flops * num_gpus),
        matrices=scale * _matrix_bytes(model) / (bandwidth * num_gpus) if is_one else 0.0,
        key=scale * keys / (bandwidth * num_gpus),
        seats=client.scheduler.max_num_seqs,
        per_step=drafts,
    )


class Needs(NamedTuple):
    """Least numbers of engines for a demand: engines for both, for prompts, for answers."""

    together: int
    prompts: int
    answers: int


class Load(NamedTuple):
    """Requests per second that arrive, and that the engines serve at most (infinite: no bound)."""

    arriving: float
    most: float


def proved_load(scenario: Scenario) -> Load | None:
    """Return the arrival rate at a scenario's engines, and a proved bound of the rate they serve.

    None where nothing is proved: without a rate (closed loops), where clients fail, start or change
    during the run, and of engines without a bound.
    """
    built = Built(scenario)
    simulation = built.simulation
    if simulation.lifecycle is not None or simulation.reconfigure is not None:
        return None
    engines = engines_of(built)
    if engines is None:
        return None
    try:
        rate = built.rates.own
    except ScenarioError:
        return None
    least, numbers = engines
    return Load(rate, most(least, own_demand(built, rate), numbers))


def engines_of(built: Built) -> tuple[Least, Needs] | None:
    """Return bounds of a scenario's engines, and their numbers by role.

    Engines of several kinds count as one kind with the best of each. None if one of them has no
    proved bound.
    """
    found: list[tuple[Least, str | None]] = []
    for client in built.simulation.clients:
        machine = client.traits.machine
        if machine is None and client.traits.times is None:
            continue
        if not isinstance(machine, Machine):
            return None
        least = least_of_client(client, machine)
        if least is None:
            return None
        found.append((least, client.traits.role))
    if not found:
        return None
    kinds = [least for least, _ in found]
    best = Least(
        token=min(each.token for each in kinds),
        matrices=min(each.matrices for each in kinds),
        key=min(each.key for each in kinds),
        seats=max(each.seats for each in kinds),
        per_step=max(each.per_step for each in kinds),
    )
    prompts = sum(role != "decode" for _, role in found)
    answers = sum(role != "prefill" for _, role in found)
    return best, Needs(len(found), prompts, answers)


def fewest(least: Least, demand: Demand) -> Needs:
    """Return a lower bound of the number of engines, for every design (see above)."""
    if not demand.is_plain or demand.think is not None:
        return Needs(1, 1, 1)
    work = _work(least, demand)
    together, prompts, answers = (max(map(demand.engines_for, each)) for each in work)
    return Needs(_whole(together), _whole(prompts), _whole(answers))


def most(least: Least, demand: Demand, engines: Needs) -> float:
    """Return a rate (requests per second) that no such engines exceed, whatever the design.

    engines: how many there are in all, that may compute prompts, and that may compute answers.
    """
    if not demand.is_plain:
        return inf
    pairs = zip(_work(least, demand), engines, strict=True)
    return min(demand.most_rate(work, number) for works, number in pairs for work in works)


def _work(least: Least, demand: Demand) -> tuple[list[Array], list[Array], list[Array]]:
    """Return bounds of the seconds that requests take: whole, their prompts, their answers."""
    steps = np.maximum(demand.answers - 1, 0)
    keys = _keys(demand) / least.per_step * least.key
    prompts = demand.prompts * (0.0 if demand.cached else least.token)
    answers = steps * least.token
    reading = steps / least.per_step / least.seats * least.matrices
    of_answers = [answers + keys, reading + keys]
    return [prompts + answers + keys, reading + keys], [prompts], of_answers


def alone(least: Least, demand: Demand) -> dict[str, float]:
    """Return the share of the requests that can keep each limit at best, each by itself.

    Under "all" is the share that can keep all of them.
    """
    if not demand.is_plain or demand.cached:
        return {}
    prompt = np.maximum(demand.prompts * least.token, least.matrices)
    gap = (least.matrices + demand.prompts * least.key) / least.per_step
    gaps = np.maximum(demand.answers - 1, 0)
    times = {"ttft": prompt, "tpot": np.where(gaps > 0, gap, 0.0), "e2el": prompt + gaps * gap}
    if not demand.limits.is_set:
        return {}
    kept = {name: times[name] <= limit for name, limit in demand.limits.limits.items()}
    found = {name: float(each.mean()) for name, each in kept.items()}
    every: NDArray[np.bool_] = np.logical_and.reduce(list(kept.values()))
    return found | {"all": float(every.mean())}


def _keys(demand: Demand) -> Array:
    """Return the KV entries that the steps of each answer read, in tokens."""
    steps = np.maximum(demand.answers - 1, 0)
    found: Array = steps * demand.prompts + steps * np.maximum(steps - 1, 0) / 2
    return found


def _whole(number: float) -> int:
    return max(ceil(number - _ROUNDING), 1)


def _is_roofline(predictor: object) -> bool:
    """Tell whether step times are a roofline, perhaps plus an engine's own time."""
    inner = getattr(predictor, "predictor", predictor)
    return type(inner) is RooflinePredictor


def _flops(gpu: GpuSpec) -> float:
    """Return the FLOP/s that the best kernel for products reaches, in any data type."""
    reached = [kernel.mfu for kind, kernel in _kernels(gpu) if _ATTENTION not in kind]
    mfu = max(gpu.prefill.mfu, gpu.decode.mfu, *(each for each in reached if each is not None))
    return max(gpu.flops.values()) * mfu


def _bandwidth(gpu: GpuSpec) -> float:
    """Return the bytes/s that the best kernel reads with."""
    reached = [kernel.mbu for _, kernel in _kernels(gpu)]
    mbu = max(gpu.prefill.mbu, gpu.decode.mbu, *(each for each in reached if each is not None))
    return gpu.memory_bandwidth * mbu


def _kernels(gpu: GpuSpec) -> Iterator[tuple[str, Kernel]]:
    """Yield the kernels that models with equal layers use; others have no bounds."""
    yield from ((kind, kernel) for kind, kernel in gpu.kernels.items() if kind not in DIFFERING)


def _matrix_params(model: ModelSpec) -> int:
    """Return the parameters of the matrices by which every token is multiplied.

    Latent attention is left out: decodes and prompts use its matrices in different ways.
    """
    attention = 0 if model.mla else model.num_layers * model.attention_params_per_layer
    found = attention + model.num_dense_layers * model.mlp_params_per_layer
    if model.moe:
        inner = (
            model.moe.num_experts_per_token * model.moe.intermediate_size
            + model.moe.shared_intermediate_size
        )
        found += model.num_moe_layers * model.mlp_params(inner)
    return found


def _matrix_bytes(model: ModelSpec) -> float:
    """Return the bytes of the matrices that every step reads, without routed experts."""
    size = min(model.bytes_per_param("attention"), model.bytes_per_param("attention_output"))
    attention = 0 if model.mla else model.num_layers * model.attention_params_per_layer
    mlp = model.num_dense_layers * model.mlp_params_per_layer
    return attention * size + mlp * model.bytes_per_param("mlp")
