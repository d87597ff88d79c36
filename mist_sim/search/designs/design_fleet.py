"""The engines of a scenario whose roles may change, and its unchanged rest."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass
from math import prod
from typing import Any

from mist_sim.errors import ScenarioError
from mist_sim.hardware import load_gpu
from mist_sim.models import ModelSpec, load_model
from mist_sim.scenario import Scenario
from mist_sim.scenario.loading import as_data
from mist_sim.scenario.startable import startable
from mist_sim.search.designs.assumed_fabric import assumed_network, whose_nodes

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
    def has_network(self) -> bool:
        """Whether the scenario names a network."""
        return self._data["network"] is not None

    @property
    def network(self) -> dict[str, Any]:
        """The network between sides: the scenario's, or the assumed one."""
        if self.has_network:
            return dict(self._data["network"])
        return assumed_network(self._gpus)

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
        return startable(self.scenario if data == self._data else Scenario.from_dict(data))
