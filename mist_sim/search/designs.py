"""Designs for a scenario's GPUs: together, apart, hybrid, attention and FFN apart."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import asdict, dataclass, field, replace
from itertools import islice, zip_longest
from math import prod
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from mist_sim.clients.traits import FLOWING_ROLES
from mist_sim.core.sliders import Sliders
from mist_sim.errors import ScenarioError
from mist_sim.hardware import GpuSpec, device_of, load_gpu
from mist_sim.hardware.afd import AfdCoefficients, FfnCards, step_coefficients
from mist_sim.hardware.resharding import device_of as resharding_device_of
from mist_sim.models import ModelSpec, load_model
from mist_sim.rng import Streams
from mist_sim.scenario import Scenario
from mist_sim.scenario.build import build
from mist_sim.scenario.engines.links import host_of
from mist_sim.scenario.loading import as_data
from mist_sim.scenario.schema import Splittable
from mist_sim.scenario.startable import startable
from mist_sim.search.afd import BundleSpec, Prediction, SlotLoad, best_bundles, predict
from mist_sim.search.resharding import Lengths, PairOptions, PairTimes, rank_pairs
from mist_sim.traces import TraceReader, TraceRow

__all__ = ["Designs", "Slidable", "designs_of"]


_NODES = {
    "a100-80gb-sxm": "hgx-a100",
    "b200": "hgx-b200",
    "gb200": "nvl72-gb200",
    "gb300": "nvl72-gb300",
    "h100-sxm": "hgx-h100",
    "h200": "hgx-h200",
    "a10": "pcie-a10",
    "a10g": "pcie-a10",
    "l4": "pcie-l4",
    "l40s": "pcie-l40s",
}
"""The nodes in which GPUs of the catalog are sold, among the topologies that come along."""

_SWITCHED, _PLAIN = "hgx-h100", "pcie-l40s"  # the topology assumed for nodes of other GPUs
_SLOTS = 8  # GPUs of a node of these, and of any whose links join none
_GB = 1e9


def assumed_network(clients: Iterable[tuple[str, int]]) -> dict[str, Any]:
    """Return the network of the nodes that these clients fill, as in a scenario file.

    clients: the GPU of each, and how many of it. It is the node in which the GPU is sold, and else
    one with the GPU's own links: an NVSwitch of eight or more where they join as many, and PCIe
    where not. Of several kinds of GPUs, the slowest link counts. A client that is wider than a node
    has GPUs of several.
    """
    asked = [(load_gpu(name), number) for name, number in clients]
    slowest = _slowest(gpu for gpu, _ in asked)
    widths = [number for _, number in asked]
    network, room = _node(slowest, sum(widths))
    if max(widths) > room:
        return network | {"nodes": -(-sum(widths) // room), "spans_nodes": True}
    nodes = _num_nodes(widths, room)
    return network | ({"nodes": nodes} if nodes > 1 else {})


def whose_nodes(clients: Iterable[tuple[str, int]]) -> str:
    """Return of which GPUs the assumed nodes are, and for which others they are assumed."""
    gpus = {gpu.name: gpu for name, _ in clients for gpu in [load_gpu(name)]}
    slowest = _slowest(gpus.values())
    node = _node(slowest, 0)
    others = [name for name, gpu in gpus.items() if _node(gpu, 0) != node]
    if not others:
        return "the GPUs' own nodes"
    return (
        f"the nodes of {slowest.name}, which has the slowest links, also for {' and '.join(others)}"
    )


def _slowest(gpus: Iterable[GpuSpec]) -> GpuSpec:
    return min(gpus, key=lambda gpu: gpu.interconnect.bandwidth)


def _node(gpu: GpuSpec, num_gpus: int) -> tuple[dict[str, Any], int]:
    """Return a node, and how many GPUs it has. num_gpus: that there are in all."""
    device = device_of(gpu)
    if device.name in _NODES and device.interconnect == gpu.interconnect:
        return {"topology": _NODES[device.name]}, device.interconnect.domain or _SLOTS
    link, host = gpu.interconnect, _rate(gpu.from_host)
    if link.domain is None or link.domain < _SLOTS:
        pcie = _rate(link.bandwidth) if link.kind == "pcie" else host
        return {"topology": _PLAIN, "pcie": pcie}, _SLOTS
    room = min(link.domain, max(_SLOTS, num_gpus))
    node = {"topology": _SWITCHED, "nvlink": _rate(link.bandwidth), "pcie": host}
    return node | ({"gpus": room} if room > _SLOTS else {}), room


def _rate(bytes_per_second: float) -> str:
    return f"{bytes_per_second / _GB!r} GB/s"


def _num_nodes(widths: Sequence[int], room: int) -> int:
    """Return the nodes that clients fill, each in the first one with room."""
    left: list[int] = []
    for width in widths:
        place = next((k for k, free in enumerate(left) if free >= width), None)
        if place is None:
            left.append(room - width)
        else:
            left[place] -= width
    return len(left)


Client = dict[str, Any]
"""A client's entry in a scenario file."""

_SIZES = ("tensor_parallel_size", "pipeline_parallel_size", "data_parallel_size")
_CHUNK = "max_num_batched_tokens"
_ORDER = {"prefill": 0, None: 1, "decode": 2}  # order of the engines that take prompts


@dataclass(frozen=True, slots=True)
class Side:
    """The engines on one side of a design.

    role: None: they do both. chunk: tokens of a step; None: as they have.
    """

    role: str | None
    chunk: int | None = None


@dataclass(frozen=True, slots=True)
class Group:
    """Equal engines: a client of a scenario file, with its copies. position: in its list."""

    position: int
    said: Mapping[str, Any]

    @property
    def count(self) -> int:
        """Copies of the client, which change sides one by one."""
        return int(self.said["count"])

    @property
    def num_gpus(self) -> int:
        """GPUs of each copy."""
        return prod(self.said[size] for size in _SIZES)

    @property
    def layout(self) -> tuple[int, int]:
        """Its tensor and its pipeline parallel size."""
        return self.said["tensor_parallel_size"], self.said["pipeline_parallel_size"]

    @property
    def gpus_of_a_replica(self) -> int:
        """GPUs that share the model; two at least have several layouts."""
        return self.num_gpus // int(self.said["data_parallel_size"])

    @property
    def chunk(self) -> int | None:
        """Tokens of a step; None where prompts are not cut."""
        scheduler = self.said["scheduler"]
        return scheduler[_CHUNK] if scheduler["type"] == "chunked" else None

    @property
    def rank(self) -> tuple[int, float]:
        """Order in which engines take prompts: those with that role, then the fastest GPUs.

        Source: Splitwise-HA (arXiv:2311.18677), where H100s compute prompts and A100s answers.
        """
        flops = load_gpu(self.said["gpu"]).flops
        return _ORDER[self.said["role"]], -flops.get("bf16", max(flops.values()))

    def copies(self, start: int, end: int, side: Side) -> Iterator[Client]:
        """Yield the client with the copies from `start` to `end` on one side; nothing if equal."""
        if start == end:
            return
        client = deepcopy(dict(self.said)) | {"count": end - start, "role": side.role}
        is_whole = end - start == self.count
        if side.role is not None and not is_whole and side.role != self.said["role"]:
            client["name"] = f"{self.said['name']}-{side.role.replace('_', '-')}"
        if isinstance(client["place"], list):
            client["place"] = client["place"][start:end]
        if side.chunk is not None and self.chunk is not None:
            scheduler = client["scheduler"]
            scheduler[_CHUNK] = side.chunk
            scheduler["max_num_seqs"] = min(scheduler["max_num_seqs"], side.chunk)
        yield client


class Fleet:
    """The engines of a scenario, which keep their GPUs, their layout and all but their sides.

    Raises ScenarioError for a scenario without engines, with several models, or with clients of
    other types that compute prompts or answers, which cannot change sides.
    """

    def __init__(self, scenario: Scenario) -> None:
        self.scenario = scenario
        self._data = as_data(scenario)
        clients = self._data["clients"]
        self.groups = [Group(k, each) for k, each in enumerate(clients) if each["type"] == "llm"]
        self._check()

    def _check(self) -> None:
        if not self.groups:
            raise ScenarioError("clients must have one of type llm to find designs for, got none")
        for position, part in enumerate(self.scenario.clients):
            traits = part.describe(self.scenario.model)
            is_fixed = part.type_ != "llm" and {"prefill", "decode"}.intersection(traits.serves)
            if is_fixed:
                raise ScenarioError(
                    f"clients.{position}.type must be llm to find designs for, since others do "
                    f"not change sides, got {part.type_}"
                )
        models = {each.said["model"] or self.scenario.model for each in self.groups}
        if len(models) > 1:
            raise ScenarioError(
                "clients must serve one model to find designs for, got "
                f"{', '.join(sorted(map(str, models)))}; make a scenario of each"
            )

    @property
    def num_clients(self) -> int:
        """Engines that change sides."""
        return sum(each.count for each in self.groups)

    @property
    def model(self) -> ModelSpec:
        """Name of the model that all serve."""
        name = self.groups[0].said["model"] or self.scenario.model
        return load_model(str(name))

    @property
    def ranked(self) -> list[Group]:
        """The groups, in the order in which they take prompts."""
        return sorted(self.groups, key=lambda each: each.rank)

    @property
    def chunks(self) -> list[int]:
        """Chunks of the engines that may compute prompts; empty if some do not cut them."""
        asked = [each for each in self.groups if each.said["role"] != "decode"] or self.groups
        found = [each.chunk for each in asked]
        return [] if None in found else [chunk for chunk in found if chunk is not None]

    @property
    def has_roles(self) -> bool:
        """Whether some of the engines are on a side already."""
        return any(each.said["role"] is not None for each in self.groups)

    @property
    def can_re_shard(self) -> bool:
        """Whether some engine has GPUs enough for two layouts."""
        return any(group.gpus_of_a_replica > 1 for group in self.groups)

    @property
    def has_network(self) -> bool:
        """Whether the scenario names a network."""
        return self._data["network"] is not None

    @property
    def network(self) -> dict[str, Any]:
        """The network between sides: the scenario's, or the assumed one."""
        return dict(self._data["network"] or assumed_network(self._gpus))

    @property
    def whose_nodes(self) -> str:
        """The GPUs of the assumed network's nodes, in words."""
        return whose_nodes(self._gpus)

    @property
    def _gpus(self) -> list[tuple[str, int]]:
        """The GPU of each engine, and how many it has."""
        return [
            (each.said["gpu"], each.num_gpus) for each in self.groups for _ in range(each.count)
        ]

    @property
    def hand_over(self) -> dict[str, Any]:
        """Hand-overs from one side to the other, without a policy."""
        return {**self._data["hand_over"], "policy": None}

    def divided(self, num_first: int, first: Side, second: Side) -> list[Client]:
        """Return all clients, with `num_first` of the engines on one side, the rest on another."""
        taken = self.taken(num_first)
        found: list[Client] = []
        for position, client in enumerate(self._data["clients"]):
            if position not in taken:
                found.append(deepcopy(client))
                continue
            group, number = taken[position]
            found += group.copies(0, number, first)
            found += group.copies(number, group.count, second)
        return found

    def taken(self, num_first: int) -> dict[int, tuple[Group, int]]:
        """Return how many engines of each group are the first ones, by its position."""
        found, left = {}, num_first
        for group in self.ranked:
            number = min(left, group.count)
            found[group.position] = (group, number)
            left -= number
        return found

    def having(self, clients: Sequence[Client], **changes: Any) -> Scenario:
        """Return the scenario with other clients, and other sections; its servers start.

        The scenario itself if nothing changes and they do. Raises ScenarioError as
        `Scenario.from_dict` does.
        """
        data = {**self._data, "clients": list(clients), **changes}
        same = data == self._data and not isinstance(self.scenario, Splittable)
        return startable(self.scenario if same else Scenario.from_dict(data))


USUAL = (512, 2048, 8192)
"""Chunks that matter. 512 and 2,048 are those of Sarathi-Serve's evaluation, for strict and for
relaxed limits (arXiv:2403.02310, section 5); 8,192 is what vLLM's server takes on GPUs of 70 GiB
and more (`get_batch_defaults` in vllm/engine/arg_utils.py), and what its guide on optimization
recommends for throughput, as it does 2,048 for even gaps."""

MOST = 3
"""Chunks to try in all, so that a table stays short."""


def chunks_to_try(own: Iterable[int]) -> tuple[int, ...]:
    """Return the chunks to try: the scenario's own first, then `USUAL` ones, three in all.

    own: chunks of the scenario's engines; ignored if they differ.
    """
    sizes = sorted(set(own))
    first = sizes if len(sizes) == 1 else []
    return (*first, *[size for size in USUAL if size not in first])[:MOST]


Proposal = tuple[str, Scenario | ScenarioError]
"""A design by name; the error says why it cannot be."""


def _tried(name: str, make: Callable[..., Scenario], *arguments: Any) -> Proposal:
    try:
        return name, make(*arguments)
    except ScenarioError as error:
        return name, error


def ratios_to_try(num_clients: int) -> list[int]:
    """Return the numbers of clients for prompts to try: the fewest, half, and the most."""
    return sorted({1, num_clients // 2, num_clients - 1} - {0, num_clients})


def hybrids(fleet: Fleet) -> Iterator[Proposal]:
    """Yield hybrids: D-heavy engines have the smallest chunk tried, P-heavy ones a larger one.

    Raises ScenarioError if the scenario lacks an option that all of them need.
    """
    if not fleet.chunks:
        raise ScenarioError("scheduler must be chunked on all engines, whose chunks they share out")
    limits = fleet.scenario.slo.make()
    if limits.ttft is None or limits.tpot is None:
        raise ScenarioError(
            "slo.ttft and slo.tpot must be given, since their router and their policy of "
            "hand-overs keep them; such as --set slo.ttft='1 s' --set slo.tpot='50 ms'"
        )
    smallest, *larger = sorted(chunks_to_try(fleet.chunks))
    for num_p in ratios_to_try(fleet.num_clients):
        for chunk in larger:
            num_d = fleet.num_clients - num_p
            name = f"hybrid {num_p} x {chunk} + {num_d} x {smallest}"
            yield _tried(name, hybrid, fleet, num_p, chunk, smallest)


def hybrid(fleet: Fleet, num_p: int, s_p: int, s_d: int) -> Scenario:
    """Return a hybrid with TaiChi's router and policy, with the preset's options.

    Two options differ: late prompts go where they are ready first (`if_none: soonest`), not
    anywhere, and the client of the first token stays as in the scenario, so that TTFT means the
    same in all designs.
    """
    limits = fleet.scenario.slo.make()
    clients = fleet.divided(num_p, Side("p_heavy", s_p), Side("d_heavy", s_d))
    policy = {"type": "flowing", "tpot": f"{limits.tpot!r} s", "counts_seats": True}
    return fleet.having(
        clients,
        network=fleet.network,
        hand_over=fleet.hand_over | {"policy": policy},
        router={"type": "length_aware", "ttft": f"{limits.ttft!r} s", "if_none": "soonest"},
        routers={},
    )


class Slidable:
    """A hybrid scenario whose sliders can be set.

    It has one client of role p_heavy and one of role d_heavy, with any `count`. Everything else is
    kept: model, hardware, router, limits, seed. `max_num_seqs` is lowered to chunks that are
    smaller. An aggregation is made of the p_heavy client, and has no network; nor does a
    disaggregation have a policy of hand-overs.

    Raises ScenarioError for a scenario without such clients, with another scheduler, or whose
    sliders move.
    """

    def __init__(self, scenario: Scenario) -> None:
        self.scenario = scenario
        self._data = as_data(scenario)
        if scenario.reconfigure is not None:
            raise ScenarioError(
                "reconfigure must be left out to search sliders, since it moves them during a run"
            )
        clients = self._data["clients"]
        roles = [client.get("role") for client in clients]
        for role in ("p_heavy", "d_heavy"):
            if roles.count(role) != 1:
                raise ScenarioError(
                    f"clients must have one with role {role}, whose sliders are searched, got "
                    f"{roles.count(role)}; `count` says how many there are of it"
                )
        if not (self._data.get("hand_over") or {}).get("policy"):
            raise ScenarioError(
                "hand_over.policy must be given to search sliders, such as "
                "{type: flowing, tpot: 100 ms}, got none"
            )
        self._p, self._d = roles.index("p_heavy"), roles.index("d_heavy")
        self.num_clients: int = sum(clients[k]["count"] for k in (self._p, self._d))

    @property
    def sliders(self) -> Sliders:
        """Where the sliders of the scenario are.

        Raises ScenarioError unless D-heavy clients have the smaller chunks.
        """
        (num_p, s_p), (num_d, s_d) = (
            (client["count"], client["scheduler"]["max_num_batched_tokens"])
            for client in (self._data["clients"][k] for k in (self._p, self._d))
        )
        if s_d >= s_p:
            raise ScenarioError(
                "scheduler.max_num_batched_tokens of the client with role d_heavy must be < that "
                f"of the p_heavy one ({s_p}) for a hybrid, got {s_d}; lower it"
            )
        return Sliders(num_p=num_p, num_d=num_d, s_p=s_p, s_d=s_d)

    def at(self, sliders: Sliders) -> Scenario:
        """Return the scenario with the sliders there."""
        data = deepcopy(self._data)
        p, d = data["clients"][self._p], data["clients"][self._d]
        p["count"], d["count"] = sliders.num_p, sliders.num_d
        if sliders.design == "hybrid":
            _set_chunk(p, sliders.s_p)
            _set_chunk(d, sliders.s_d)
            if sliders.watermark is not None:
                data["hand_over"]["policy"]["watermark"] = sliders.watermark
        elif sliders.design == "disaggregation":
            p["role"], d["role"] = "prefill", "decode"
            _set_chunk(p, self._longest(p))
            data["hand_over"]["policy"] = None
        else:
            p["role"], p["count"] = None, sliders.num_p + sliders.num_d
            _set_chunk(p, sliders.s_p)
            del data["clients"][self._d], data["network"], data["hand_over"]
        return startable(Scenario.from_dict(data))

    def _longest(self, client: Mapping[str, Any]) -> int:
        """Return the tokens of the longest prompt, so that no prompt is cut."""
        said = client["max_model_len"]
        if said is not None and said > 0:
            return int(said)
        return load_model(client["model"] or self._data["model"]).max_position_embeddings


def _set_chunk(client: dict[str, Any], num_tokens: int) -> None:
    scheduler = client["scheduler"]
    scheduler["max_num_batched_tokens"] = num_tokens
    scheduler["max_num_seqs"] = min(scheduler["max_num_seqs"], num_tokens)


def around_hybrid(scenario: Scenario) -> dict[str, Scenario]:
    """Return a hybrid between aggregations and disaggregations on as many clients, by name.

    Aggregations have the chunks of its P-heavy or of its D-heavy clients; disaggregations every
    ratio of prefill and decode clients. Everything else is as in `Slidable`.

    Raises ScenarioError for a scenario that is no hybrid.
    """
    slidable = Slidable(scenario)
    own, num_clients = slidable.sliders, slidable.num_clients
    together = [
        Sliders(num_p=1, num_d=num_clients - 1, s_p=chunk, s_d=chunk)
        for chunk in (own.s_p, own.s_d)
    ]
    apart = [
        Sliders(num_p=num_p, num_d=num_clients - num_p, s_p=own.s_p, s_d=0)
        for num_p in range(1, num_clients)
    ]
    pure = {each.name: slidable.at(each) for each in (*together, *apart)} | {own.name: scenario}
    return {name.replace(", ", " + "): each for name, each in pure.items()}  # names have no commas


_ROWS = 10_000  # of a workload: the requests a worker of the AFD paper's runs


def lengths_of(scenario: Scenario) -> NDArray[np.float64]:
    """Return tokens of prompts and of answers of the first requests, shape (n, 2)."""
    rows = rows_of(scenario.workload.source.make(), scenario.seed, _ROWS)
    return np.array([row[:2] for row in rows], dtype=float).reshape(-1, 2)


def rows_of(source: Any, seed: int, most: int | None = None) -> list[TraceRow]:
    """Return the first rows of a trace, or those that a scenario's seed draws; None: all."""
    if isinstance(source, TraceReader):
        return list(islice(source.rows(), most))
    return list(islice(source.sample_rows(Streams(seed).generator("lengths")), most))


_NOTHING_HANDED_OVER = {
    "first_token": "prefill",
    "transfer": "pull",
    "pools": "global",
    "policy": None,
}


def together(fleet: Fleet) -> Iterator[Proposal]:
    """Yield the engines without roles: as given, and with other chunk sizes."""
    own = set(fleet.chunks)
    if len(own) != 1:
        yield _tried("together", without_sides, fleet, None)
    for chunk in chunks_to_try(own) if own else ():
        is_own = {chunk} == own and not fleet.has_roles
        yield _tried(f"together {chunk}", without_sides, fleet, None if is_own else chunk)


def without_sides(fleet: Fleet, chunk: int | None) -> Scenario:
    """Return the scenario without roles, and without a network if it is then unused.

    chunk: tokens of a step; None: as the engines have.
    """
    both = Side(None, chunk)
    clients = fleet.divided(fleet.num_clients, both, both)
    if not fleet.has_network:
        return fleet.having(clients)
    try:
        return fleet.having(clients, hand_over=_NOTHING_HANDED_OVER)
    except ScenarioError:  # the network is unused, and then no client has a place in it
        return fleet.having(_unplaced(clients), hand_over=_NOTHING_HANDED_OVER, network=None)


def _without_idle_network(scenario: Scenario) -> Scenario:
    """Return a scenario without the network that only its designs would use."""
    if not isinstance(scenario, Splittable):
        return scenario
    data = as_data(scenario)
    try:
        return Scenario.from_dict(data)
    except ScenarioError:
        alone = {"network": None, "clients": _unplaced(data["clients"])}
        return Scenario.from_dict(data | alone)


def _unplaced(clients: Iterable[Client]) -> list[Client]:
    return [each | {"place": None} if "place" in each else each for each in clients]


def apart(fleet: Fleet) -> Iterator[Proposal]:
    """Yield every ratio of engines for prompts and for answers."""
    for num_p in range(1, fleet.num_clients):
        name = f"{num_p} prefill + {fleet.num_clients - num_p} decode"
        yield _tried(name, in_two, fleet, num_p)


def in_two(fleet: Fleet, num_p: int, chunk: int | None = None) -> Scenario:
    """Return the engines with a given number for prompts and the rest for answers.

    chunk: tokens of a step of those for prompts; None: as `prefill_side`.
    """
    side = prefill_side(fleet) if chunk is None else Side("prefill", chunk)
    clients = fleet.divided(num_p, side, Side("decode"))
    return fleet.having(clients, network=fleet.network, hand_over=fleet.hand_over)


def prefill_side(fleet: Fleet) -> Side:
    """Return the engines for prompts.

    They have the chunk of the scenario's prompt engines, or else the largest one tried, since no
    decode waits there.
    """
    own = set(fleet.chunks)
    if not own:
        return Side("prefill")
    if fleet.has_roles:
        return Side("prefill", own.pop() if len(own) == 1 else None)
    return Side("prefill", max(*own, *chunks_to_try(own)))


_SLOT_COUNTS = range(8, 257, 8)
"""Requests of an attention worker in a batch: up to some of the AFD paper's evaluation (figure 4a
has 128 to 512), by eights, since graphs of a batch are captured for those."""

_SPARE = 0.02
"""Share of the limit on TPOT left to what the theory lacks: hand-overs, and worse than mean
requests."""

_BATCHES = (2, 3)  # batches in flight, as in the paper, whose figure 2 has three

_BUNDLE = "bundle"  # name of its client


def bundles(fleet: Fleet) -> Iterator[Proposal]:
    """Yield some ratios of engines for prompts, each with the best bundle on the remaining GPUs.

    Raises ScenarioError for a scenario whose model or whose options allow no bundle.
    """
    planner = _Planner(fleet)
    for num_p in ratios_to_try(fleet.num_clients):
        try:
            gpus = _left(fleet, num_p)
            bundle = planner.best(gpus, num_p)
        except ScenarioError as error:
            yield f"{num_p} prefill + a bundle", error
            continue
        name = f"{num_p} prefill + {bundle.title}"
        yield _tried(name, _with_bundle, fleet, num_p, gpus, bundle)


def with_best_bundle(fleet: Fleet, num_p: int) -> Scenario:
    """Return `num_p` engines for prompts, and the best bundle on the remaining GPUs.

    Raises ScenarioError if no bundle is possible.
    """
    gpus = _left(fleet, num_p)
    return _with_bundle(fleet, num_p, gpus, _Planner(fleet).best(gpus, num_p))


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
        "name": _BUNDLE,
        "type": "afd",
        "model": said["model"] or fleet.scenario.model,
        "attention_workers": bundle.found.attention_workers,
        "slots": bundle.found.slots,
        "batches": bundle.batches,
        **times,
        "cycle_s": "1 s",
        "communication": "topology" if is_placed else "coefficients",
        "gpu": said["gpu"],
        "ffn_gpus": bundle.ffn,
        "gpu_price": said["gpu_price"],
        "max_model_len": longest if isinstance(longest, int) and longest > 1 else None,
        "kv_cache_dtype": said["kv_cache"]["kv_cache_dtype"],
    }


class _Gpus(NamedTuple):
    """The GPUs that answers have. said: of an engine there. number: of all these engines."""

    said: Mapping[str, Any]
    number: int
    gpu: GpuSpec


def _left(fleet: Fleet, num_p: int) -> _Gpus:
    """Return the GPUs left for the bundle when `num_p` engines compute prompts.

    Raises ScenarioError for GPUs of several kinds.
    """
    left = [(each, each.count - n) for each, n in fleet.taken(num_p).values() if n < each.count]
    gpus = {gpu.name: gpu for group, _ in left for gpu in [load_gpu(group.said["gpu"])]}
    if len(gpus) > 1:
        raise ScenarioError(f"gpu must be the same for all answers, got {', '.join(sorted(gpus))}")
    number = sum(number * group.num_gpus for group, number in left)
    return _Gpus(left[0][0].said, number, next(iter(gpus.values())))


@dataclass(frozen=True)
class _Bundle:
    """A bundle on some GPUs.

    ffn: GPUs of its FFN worker. times: of a step, seconds, without those of links that a topology
    determines. found: what it does with all slots full, over its links. batches: in flight.
    """

    ffn: int
    times: AfdCoefficients
    found: Prediction
    batches: int

    @property
    def title(self) -> str:
        """The GPUs of both kinds of workers, and the batches and slots of attention workers."""
        found = self.found
        return f"{found.attention_workers}A {self.ffn}F {self.batches} x {found.slots}"

    def worth(self, max_tpot: float | None) -> tuple[bool, float]:
        """Return the sort key of a choice: tokens per second within the limit, else TPOT."""
        found = self.found
        if max_tpot is None or found.tpot <= (1 - _SPARE) * max_tpot:
            return True, found.throughput
        return False, -found.tpot


class _Planner:
    """Chooses bundles by the theory of docs/background/afd.md.

    Raises ScenarioError for a fleet without possible bundles.
    """

    def __init__(self, fleet: Fleet) -> None:
        self._fleet, said = fleet, fleet.groups[-1].said
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

    def best(self, gpus: _Gpus, num_p: int) -> _Bundle:
        """Return the best bundle on the GPUs that `num_p` engines leave, with one FFN worker.

        It has most tokens per second within the limit on TPOT, with all slots full; if none keeps
        the limit, the closest one. Raises ScenarioError if none fits.
        """
        found: list[_Bundle] = []
        problem = ScenarioError(f"a bundle takes two GPUs at least, got {gpus.number}")
        num_experts = self._model.moe.num_experts if self._model.moe else 0
        for ffn in range(1, gpus.number):
            if num_experts % ffn:  # the card with one expert more would keep the others waiting
                continue
            try:
                found += self._bundles(gpus, num_p, ffn)
            except ScenarioError as error:
                problem = error
        if not found:
            even = "; only FFN workers with as many experts on every GPU are tried"
            raise ScenarioError(f"{problem}{even if gpus.number > 1 else ''}")
        return max(found, key=lambda each: each.worth(self._max_tpot))

    def _bundles(self, gpus: _Gpus, num_p: int, ffn: int) -> list[_Bundle]:
        """Return the bundles with that many GPUs for the FFN: all slots and batches that fit."""
        model = self._model
        memory = gpus.gpu.memory * float(gpus.said["kv_cache"]["gpu_memory_utilization"])
        room = memory - model.attention_weight_bytes_per_rank(1)
        found: list[_Bundle] = []
        workers = gpus.number - ffn
        links = self._links(gpus, num_p, ffn)
        for slots in _SLOT_COUNTS:
            times = self._times(gpus, ffn, slots)
            try:
                choices = best_bundles(
                    replace(times, **links),
                    self._load,
                    slots=[slots],
                    batches=_BATCHES,
                    attention_workers=[workers],
                    max_kv_tokens=room / model.kv_bytes_per_token,
                    ffn_weight=ffn,
                )
            except ScenarioError:
                if not found:
                    raise
                break  # more slots fit no better
            found += [_Bundle(ffn, times, each.prediction, each.batches) for each in choices]
        return found

    def _times(self, gpus: _Gpus, ffn: int, slots: int) -> AfdCoefficients:
        """Return the coefficients of a step with full slots, in seconds.

        Empty slots cost as much. Fewer attention workers than FFN cards take as long as these to
        send, since each has one link.
        """
        link, workers = gpus.gpu.interconnect, gpus.number - ffn
        bandwidth = link.bandwidth * link.efficiency
        cards = FfnCards(gpu=gpus.gpu, num_cards=ffn, network_bandwidth=bandwidth)
        times = step_coefficients(self._model, gpus.gpu, cards, num_requests=slots * workers)
        return replace(times, alpha_c=times.alpha_c * max(1.0, ffn / workers))

    def _links(self, gpus: _Gpus, num_p: int, ffn: int) -> dict[str, float]:
        """Return the coefficients of communication that the links of a topology determine."""
        if "topology" not in self._fleet.network:
            return {}
        slots, batches = _SLOT_COUNTS[0], _BATCHES[0]
        times = self._times(gpus, ffn, slots)
        guess = predict(BundleSpec(times, self._load, slots, batches), gpus.number - ffn)
        made = build(_with_bundle(self._fleet, num_p, gpus, _Bundle(ffn, times, guess, batches)))
        bundle: Any = next(each for each in made.clients if each.name == _BUNDLE)
        found = bundle.on_links(made.network).coefficients
        return {"alpha_c": found.alpha_c, "beta_c": found.beta_c}


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


NUM_PAIRS = 2
"""Pairs of layouts to simulate, of all that fit: those that appendix A of Seesaw likes best, as in
the comparison with its figure 10."""


def resharded(fleet: Fleet, num_pairs: int = NUM_PAIRS) -> Iterator[Proposal]:
    """Yield the engines without roles, each with the best pairs of layouts on its GPUs.

    And with every other layout of one engine that fits and stays, so that pairs stand beside the
    best of these. Both are ranked by equation 1 of Seesaw for the mean lengths of the workload;
    what does not fit in memory is left out. Engines with one GPU stay unchanged. Raises
    ScenarioError if no engine has two layouts, and for models outside equation 1.
    """
    if not fleet.can_re_shard:
        raise ScenarioError(
            "takes an engine of two GPUs at least, got 1; raise clients."
            f"{fleet.groups[0].position}.tensor_parallel_size"
        )
    prompt, answer = lengths_of(fleet.scenario).mean(axis=0)
    lengths = Lengths(max(float(prompt), 1.0), max(float(answer), 1.0))
    ranked = [_pairs(fleet, group, lengths) for group in fleet.groups]
    changing = [[pair for pair in pairs if not pair.is_static][:num_pairs] for pairs in ranked]
    fixed = [
        [pair for pair in pairs if pair.is_static and pair.decode_layout[:2] != group.layout]
        for group, pairs in zip(fleet.groups, ranked, strict=True)
    ]
    for kind, of_groups in (("re-shard", changing), ("fixed", fixed)):
        for several in zip_longest(*of_groups):
            chosen = [
                pair if pair is not None else pairs[-1] if pairs else None
                for pair, pairs in zip(several, of_groups, strict=True)
            ]
            labels = (each.label.replace("->", "to") for each in chosen if each is not None)
            names = dict.fromkeys(labels)
            yield _tried(f"{kind} " + " + ".join(names), _with_pairs, fleet, chosen)


def with_best_pair(fleet: Fleet) -> Scenario:
    """Return the engines with the pair of layouts ranked first by equation 1.

    Raises ScenarioError without such a pair.
    """
    _, found = next(resharded(fleet, 1))
    if isinstance(found, ScenarioError):
        raise found
    return found


def _pairs(fleet: Fleet, group: Group, lengths: Lengths) -> Sequence[PairTimes]:
    """Return an engine's pairs of layouts, equal ones too, the best first; empty for one GPU."""
    if group.gpus_of_a_replica == 1:
        return ()
    said = group.said
    if said["quantization"] is not None:
        raise ScenarioError(
            f"clients.{group.position}.quantization must be left out, since equation 1 of Seesaw "
            f"is of weights in 16 bits, got {said['quantization']}"
        )
    gpu = load_gpu(said["gpu"])
    if said["all_reduce"] is not None:
        gpu = replace(gpu, interconnect=replace(gpu.interconnect, all_reduce=said["all_reduce"]))
    choices = rank_pairs(
        load_model(str(said["model"] or fleet.scenario.model)),
        resharding_device_of(
            gpu,
            gpu_memory_utilization=float(said["kv_cache"]["gpu_memory_utilization"]),
            host=host_of(said["host"]) if said["host"] is not None else None,
        ),
        group.num_gpus,
        lengths,
        PairOptions(
            data_parallel_sizes=(int(said["data_parallel_size"]),),
            max_num_seqs=int(said["scheduler"]["max_num_seqs"]),
        ),
    )
    if choices.best_resharding is None:
        stays = choices.best.label
        raise ScenarioError(f"takes two layouts that fit, but of {choices.title} only {stays} does")
    return choices.pairs


def _with_pairs(fleet: Fleet, pairs: Sequence[PairTimes | None]) -> Scenario:
    """Return the engines without sides, each with its pair; None: it stays in its layout."""
    chosen = dict(zip((group.position for group in fleet.groups), pairs, strict=True))
    data = as_data(without_sides(fleet, None))
    longest = 1
    if any(pair is not None and not pair.is_static for pair in pairs):
        source = fleet.scenario.workload.source.make()
        longest = max((int(row[0]) for row in rows_of(source, fleet.scenario.seed)), default=1)
    clients = [
        client if (pair := chosen.get(position)) is None else _laid_out(client, pair, longest)
        for position, client in enumerate(data["clients"])
    ]
    return fleet.having(clients, hand_over=data["hand_over"], network=data["network"])


def _laid_out(client: Client, pair: PairTimes, longest: int) -> Client:
    """Return an engine with a pair of layouts, without options not simulated with them.

    Its steps keep the engine's token budget: without one, a step takes all the prompts that memory
    holds, and a pipeline stands empty but for a few batches. longest: tokens of the longest prompt,
    which are the least, since prompts are not cut.
    """
    before, after = pair.prefill_layout, pair.decode_layout
    client = client | {
        "tensor_parallel_size": after.tensor,
        "pipeline_parallel_size": after.pipeline,
        "all_reduce": client["all_reduce"] if after.tensor > 1 else None,
    }
    if pair.is_static:
        if client["async_scheduling"]:
            del client["async_scheduling"]  # the version's default, which depends on the layout
        return client | {"virtual_engines": client["virtual_engines"] and after.pipeline > 1}
    own = client["scheduler"]
    seats = {"max_num_seqs": own["max_num_seqs"]}
    if (budget := own.get(_CHUNK)) is not None:
        seats[_CHUNK] = max(budget, longest)
    return client | {
        "async_scheduling": False,
        "virtual_engines": False,  # a pipeline of a layout that changes has them anyway
        "scheduler": {"type": "continuous", **seats},
        "kv_cache": client["kv_cache"] | {"enable_prefix_caching": False},
        "resharding": {
            "tensor_parallel_size": before.tensor,
            "pipeline_parallel_size": before.pipeline,
        },
    }


_PROPOSE: Mapping[str, Callable[[Fleet], Iterator[Proposal]]] = {
    "together": together,
    "apart": apart,
    "hybrid": hybrids,
    "afd": bundles,
    "reshard": resharded,
}
DESIGNS = tuple(_PROPOSE)
"""Engines that do both; prompts and answers apart; TaiChi's in between; bundles of attention and
FFN workers for the answers; engines that re-shard between prompts and answers (Seesaw). In this
order where they cost the same."""


def proposed(kind: str, fleet: Fleet) -> list[Proposal]:
    """Return the designs of a kind of `DESIGNS`; if there are none, why."""
    try:
        return list(_PROPOSE[kind](fleet))
    except ScenarioError as error:
        return [(kind, error)]


_AS_IT_STANDS = "as it stands"
_HYBRIDS, _BUNDLES = "hybrids", "bundles of attention and FFN workers"
_RE_SHARDED = "re-sharding"
_TITLES = {"hybrid": _HYBRIDS, "afd": _BUNDLES, "reshard": _RE_SHARDED}
_ROUTER = "length_aware"  # of hybrids
_RANKS = ("data_parallel_size", "tensor_parallel_size", "pipeline_parallel_size")  # in that order


@dataclass(frozen=True)
class Designs:
    """Scenarios to compare, by name.

    left_out: impossible designs, or kinds of designs, with the reason. assumed: values that the
        designs need and the scenario lacks, and differences between the designs. uneven: kinds of
        designs whose step times have another origin, so that comparing their throughput is not
        conclusive.
    """

    scenarios: Mapping[str, Scenario]
    left_out: Mapping[str, str] = field(default_factory=dict)
    assumed: Mapping[str, str] = field(default_factory=dict)
    uneven: tuple[str, ...] = ()


def designs_of(scenario: Scenario) -> Designs:
    """Return the designs that the GPUs of a scenario allow; workload, limits and seed stay.

    From engines with or without roles prefill and decode: together, as they are and with other
    chunks (`chunks_to_try`); every ratio of engines for prompts and for answers; some of TaiChi's
    hybrids; bundles of attention and FFN workers in place of the engines for answers, where the
    model has experts; and engines of several GPUs that re-shard between prompts and answers, beside
    every layout that stays. Engines keep their GPUs and, but for these two, their layout. From a
    hybrid: aggregations with either chunk, and every ratio. Designs are as valid as scenario files
    are; whether they fit into memory shows when they are built.

    Raises ScenarioError for a scenario whose clients cannot change sides, and where there are
    fewer than two designs.
    """
    roles = {part.describe(scenario.model).role for part in scenario.clients}
    if FLOWING_ROLES.intersection(roles):
        return Designs(around_hybrid(scenario))
    fleet = Fleet(scenario)
    found, left_out = _made(fleet)
    stands = _without_idle_network(scenario)
    is_new = stands is not scenario
    if not any(each is stands or (is_new and each == stands) for each in found.values()):
        found = {_AS_IT_STANDS: stands, **found}
    if len(found) < 2:
        reasons = "; ".join(f"{name}: {reason}" for name, reason in left_out.items())
        raise ScenarioError(f"there is no other design for these clients; {reasons}")
    assumed = _assumed(fleet, found)
    uneven = tuple(kind for kind in (_BUNDLES, _RE_SHARDED) if kind in assumed)
    return Designs(found, left_out, assumed, uneven)


def _made(fleet: Fleet) -> tuple[dict[str, Scenario], dict[str, str]]:
    """Return the possible designs, and why other designs are impossible."""
    found: dict[str, Scenario] = {}
    left_out: dict[str, str] = {}
    several = ("apart", "hybrid", "afd")
    if is_one := fleet.num_clients < 2:
        group = fleet.groups[0]
        client = f"clients.{group.position}"
        even = [size for size in _RANKS if (group.said.get(size) or 1) % 2 == 0]
        halved = f", or halve {client}.{even[0]} and double the count" if even else ""
        left_out["prompts and answers apart, hybrids, and bundles"] = (
            f"take two clients at least, got 1; raise {client}.count{halved}"
        )
    for kind in DESIGNS:
        if (is_one and kind in several) or (kind == "reshard" and not fleet.can_re_shard):
            continue
        for name, design in proposed(kind, fleet):
            if isinstance(design, Scenario):
                found[name] = design
            else:
                title = _TITLES.get(kind, kind) if name == kind else name
                left_out[title] = str(design).splitlines()[0]  # of many problems the first
    return found, left_out


def _assumed(fleet: Fleet, found: Mapping[str, Scenario]) -> dict[str, str]:
    """Return the assumptions of the designs beyond the scenario."""
    assumed: dict[str, str] = {}
    if not fleet.has_network and any(each.network for each in found.values()):
        said = [
            f"{key}: {str(value).lower() if isinstance(value, bool) else value}"
            for key, value in fleet.network.items()
        ]
        assumed["network"] = (
            f"{{{', '.join(said)}}}, {fleet.whose_nodes}, for all designs that hand over; to "
            "say another, give clients the roles prefill and decode, and a network"
        )
    own_router = as_data(fleet.scenario)["router"]["type"]
    if own_router != _ROUTER and _some(found, "role", "p_heavy"):
        assumed[_HYBRIDS] = (
            f"router: {_ROUTER}, which knows the limits and the tokens of prompts; the others keep "
            "the scenario's, so that a hybrid may win by its router alone; to give it to all, "
            f"--set router='{{type: {_ROUTER}, ttft: {fleet.scenario.slo.make().ttft!r} s, "
            "if_none: soonest}'"
        )
    if _some(found, "type_", "afd"):
        assumed[_BUNDLES] = (
            "times follow from the figures of the GPUs and their kernels, and from the model's "
            "sizes, without an engine's own time a step; such bundles were never measured; "
            "8A 8F 2 x 96: 8 attention GPUs, 8 FFN GPUs, 2 batches of 96 slots on each attention "
            "GPU; the most, by eights up to 256, with which full slots keep the limit on TPOT by "
            "theory, and 2 % to spare; --vary clients.N.slots has others"
        )
    new = [part for each in found.values() if each is not fleet.scenario for part in each.clients]
    if any(getattr(part, "resharding", None) is not None for part in new):
        assumed[_RE_SHARDED] = (
            "scheduler: continuous, with the engine's token budget, or the longest prompt if that "
            "is more; without prefix caches and async_scheduling, which are not simulated with it; "
            "80 GiB of host memory a GPU"
        )
    return assumed


def _some(found: Mapping[str, Scenario], key: str, value: str) -> bool:
    """Tell whether a client of some design says that."""
    parts = (part for each in found.values() for part in each.clients)
    return any(getattr(part, key, None) == value for part in parts)
