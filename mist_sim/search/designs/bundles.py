"""Bundles of attention and FFN workers that decode in place of engines, on the same GPUs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

import numpy as np

from mist_sim.errors import ScenarioError
from mist_sim.hardware import GpuSpec, load_gpu
from mist_sim.hardware.afd import AfdCoefficients, FfnCards, derive_coefficients
from mist_sim.scenario import Scenario
from mist_sim.search.afd.joint import BundleChoice, best_bundles
from mist_sim.search.afd.slot_load import SlotLoad
from mist_sim.search.designs.design_fleet import Client, Fleet, Side
from mist_sim.search.designs.hybrids import ratios_to_try
from mist_sim.search.designs.lengths import lengths_of
from mist_sim.search.designs.proposal import Proposal, impossible
from mist_sim.search.designs.pure import prefill_side

_SLOTS = (8, 16, 32, 64, 128, 256)
"""Requests of an attention worker in a batch: those of the AFD paper's evaluation (figure 4a has
128 to 512), and fewer for memories that hold fewer, each twice the one before."""

_BATCHES = (2, 3)  # batches in flight, as in the paper, whose figure 2 has three


def bundles(fleet: Fleet) -> Iterator[Proposal]:
    """Yield some ratios of engines for prompts, each with the best bundle on the remaining GPUs.

    Raises ScenarioError for a scenario whose model or whose options allow no bundle.
    """
    planner = _Planner(fleet)
    for num_p in ratios_to_try(fleet.num_clients):
        try:
            gpus = _Gpus.of(fleet, num_p)
            bundle = planner.best(gpus)
        except ScenarioError as error:
            yield impossible(f"{num_p} prefill + a bundle", error)
            continue
        name = f"{num_p} prefill + {bundle.attention}A {bundle.ffn}F"
        yield Proposal(name, partial(_with_bundle, fleet, num_p, gpus, bundle))


def with_best_bundle(fleet: Fleet, num_p: int) -> Scenario:
    """Return `num_p` engines for prompts, and the best bundle on the remaining GPUs.

    Raises ScenarioError if no bundle is possible.
    """
    gpus = _Gpus.of(fleet, num_p)
    return _with_bundle(fleet, num_p, gpus, _Planner(fleet).best(gpus))


def _with_bundle(fleet: Fleet, num_p: int, gpus: _Gpus, bundle: _Bundle) -> Scenario:
    clients = fleet.divided(num_p, prefill_side(fleet), Side("decode"))
    is_left = [each.get("role") == "decode" for each in clients]
    rest = [client for client, gone in zip(clients, is_left, strict=True) if not gone]
    rest.insert(is_left.index(True), _client(fleet, gpus, bundle))
    network = fleet.network
    if not fleet.has_network and "nodes" in network:  # workers of one bundle need not be together
        network["spans_nodes"] = True
    return fleet.having(rest, network=network, hand_over=fleet.hand_over)


def _client(fleet: Fleet, gpus: _Gpus, bundle: _Bundle) -> Client:
    """Return the bundle as in a scenario file."""
    said, times = gpus.said, asdict(bundle.times)
    is_placed = "topology" in fleet.network
    if is_placed:  # its links determine the communication time
        times["alpha_c"] = None
    longest = said["max_model_len"]
    return {
        "name": "bundle",
        "type": "afd",
        "model": said["model"] or fleet.scenario.model,
        "attention_workers": bundle.attention,
        "slots": bundle.choice.prediction.slots,
        "batches": bundle.choice.batches,
        **times,
        "cycle_s": "1 s",
        "communication": "topology" if is_placed else "coefficients",
        "gpu": said["gpu"],
        "ffn_gpus": bundle.ffn,
        "gpu_price": said["gpu_price"],
        "max_model_len": longest if isinstance(longest, int) and longest > 1 else None,
        "kv_cache_dtype": said["kv_cache"]["kv_cache_dtype"],
    }


@dataclass(frozen=True)
class _Gpus:
    """The GPUs that answers have. said: of an engine there. number: of all these engines."""

    said: Mapping[str, Any]
    number: int

    @classmethod
    def of(cls, fleet: Fleet, num_p: int) -> _Gpus:
        """Return the GPUs left for the bundle when `num_p` engines compute prompts.

        Raises ScenarioError for GPUs of several kinds.
        """
        left = [
            (group, group.count - number)
            for group, number in fleet.taken(num_p).values()
            if number < group.count
        ]
        kinds = sorted({load_gpu(group.said["gpu"]).name for group, _ in left})
        if len(kinds) > 1:
            raise ScenarioError(f"gpu must be the same for all answers, got {', '.join(kinds)}")
        return cls(left[0][0].said, sum(number * group.num_gpus for group, number in left))

    @property
    def gpu(self) -> GpuSpec:
        """The GPU that the bundle's workers are."""
        return load_gpu(self.said["gpu"])

    @property
    def memory(self) -> float:
        """Bytes of each GPU that may be used."""
        return self.gpu.memory * float(self.said["kv_cache"]["gpu_memory_utilization"])


@dataclass(frozen=True)
class _Bundle:
    """The best bundle on some GPUs. ffn: GPUs of its FFN worker. times: of a step, seconds."""

    ffn: int
    times: AfdCoefficients
    choice: BundleChoice

    @property
    def attention(self) -> int:
        """Its attention workers, each one GPU."""
        return self.choice.prediction.attention_workers

    def worth(self, max_tpot: float | None) -> tuple[bool, float]:
        """Return the sort key of a choice: tokens per second within the limit, else TPOT."""
        found = self.choice.prediction
        if max_tpot is None or found.tpot <= max_tpot:
            return True, found.throughput
        return False, -found.tpot


class _Planner:
    """Chooses bundles by the theory of docs/background/afd.md.

    Raises ScenarioError for a fleet without possible bundles.
    """

    def __init__(self, fleet: Fleet) -> None:
        said = fleet.groups[-1].said
        if fleet.model.moe is None:
            raise ScenarioError(
                f"the model must have experts, whose sizes determine the time of the FFN; "
                f"{fleet.model.name} has none"
            )
        if any(each.said["quantization"] is not None for each in fleet.groups):
            raise ScenarioError(
                "quantization must be left out, since bundles take weights as the model has them; "
                f"got {said['quantization']}"
            )
        if any(each.said["step_time_scale"] is not None for each in fleet.groups):
            raise ScenarioError(
                "step_time_scale must be left out, since bundles are timed by coefficients, which "
                "have no such factor"
            )
        self._model = fleet.model.with_dtypes(kv_cache=said["kv_cache"]["kv_cache_dtype"])
        self._max_tpot = fleet.scenario.slo.make().tpot
        self._load = _slot_load(fleet.scenario)

    def best(self, gpus: _Gpus) -> _Bundle:
        """Return the best bundle on some GPUs, with one FFN worker.

        It has most tokens per second within the limit on TPOT, with all slots full; if none keeps
        the limit, the closest one. Raises ScenarioError if none fits.
        """
        found: list[_Bundle] = []
        problem = ScenarioError(f"a bundle takes two GPUs at least, got {gpus.number}")
        for ffn in range(1, gpus.number):
            try:
                found += self._bundles(gpus, ffn)
            except ScenarioError as error:
                problem = error
        if not found:
            raise problem
        return max(found, key=lambda each: each.worth(self._max_tpot))

    def _bundles(self, gpus: _Gpus, ffn: int) -> list[_Bundle]:
        """Return the bundles with that many GPUs for the FFN: all slots and batches that fit."""
        model, link = self._model, gpus.gpu.interconnect
        cards = FfnCards(
            gpu=gpus.gpu, num_cards=ffn, network_bandwidth=link.bandwidth * link.efficiency
        )
        times = derive_coefficients(model, gpus.gpu, cards).times(model.num_layers)
        room = gpus.memory - model.attention_weight_bytes_per_rank(1)
        choices = best_bundles(
            times,
            self._load,
            slots=_SLOTS,
            batches=_BATCHES,
            attention_workers=[gpus.number - ffn],
            max_kv_tokens=room / model.kv_bytes_per_token,
            ffn_weight=ffn,
        )
        return [_Bundle(ffn, times, choice) for choice in choices]


def _slot_load(scenario: Scenario) -> SlotLoad:
    """Return a slot's load: theta and nu^2 of the first requests of a workload (15, 16)."""
    lengths = lengths_of(scenario)
    prompts, steps = lengths[:, 0], np.maximum(lengths[:, 1] - 1, 0)  # prefill emits the first one
    if not steps.sum():
        raise ScenarioError("the answers must have at least 2 tokens, so that a bundle decodes one")
    tokens = steps * prompts + steps * (steps - 1) / 2
    squares = steps * prompts**2 + steps * (steps - 1) * (prompts + (2 * steps - 1) / 6)
    theta = float(tokens.sum() / steps.sum())
    return SlotLoad(theta, max(float(squares.sum() / steps.sum()) - theta**2, 0.0))
