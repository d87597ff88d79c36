"""Proved upper bounds of engines, by which candidates are excluded without a run.

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
from dataclasses import dataclass
from math import ceil, inf
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from mist_sim.hardware import GpuSpec
from mist_sim.hardware.devices import DIFFERING, Kernel
from mist_sim.hardware.gpu_group import num_gpus as group_gpus
from mist_sim.hardware.machine import Machine
from mist_sim.hardware.predictors import RooflinePredictor
from mist_sim.hardware.predictors.scaled import unscaled
from mist_sim.models import ModelSpec
from mist_sim.search.planning.demand import Array, Demand
from mist_sim.search.planning.engines import Engine

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


def fewest(least: Least, demand: Demand) -> Needs:
    """Return a lower bound of the number of engines, for every design (see above)."""
    if not demand.is_plain:
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
