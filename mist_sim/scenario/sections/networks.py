"""The network of a scenario file: one link for all, or a topology in which clients have places."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Annotated

from pydantic import (
    AfterValidator,
    Field,
    GetJsonSchemaHandler,
    ValidationInfo,
)
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema

from mist_sim.bounds import TEXT_LENGTH
from mist_sim.network import Connector, Fabric, Link, load_topology
from mist_sim.scenario.format import paths
from mist_sim.scenario.format.families import CONNECTOR, Marker
from mist_sim.scenario.format.parts import Part, part_type
from mist_sim.scenario.format.problems import Problem
from mist_sim.scenario.sections.clients import AfdPart, ClientPart, LlmPart

_KEY = "topology"


def _topology(text: str, info: ValidationInfo) -> str:
    return paths.spec(text, info, ".toml", load_topology)


_TOPOLOGY = Annotated[str, Field(max_length=TEXT_LENGTH), AfterValidator(_topology)]


@dataclass(frozen=True, eq=False)
class NetworkSettings(Marker):
    """Marks a `Part` that is a fabric where it names a topology, and else a link."""

    link: type[Part]
    fabric: type[Part]

    def read(self, value: object, info: ValidationInfo) -> Part:
        """Return the part that a value in a file describes."""
        if isinstance(value, Part):
            return value
        model = self.fabric if isinstance(value, dict) and _KEY in value else self.link
        return model.model_validate(value, context=info.context)

    def __get_pydantic_json_schema__(
        self, schema: CoreSchema, handler: GetJsonSchemaHandler
    ) -> JsonSchemaValue:
        models = (self.link, self.fabric)
        return {"anyOf": [handler(model.__pydantic_core_schema__) for model in models]}


_CONNECTOR = {Connector: Annotated[Part, CONNECTOR]}
NETWORK = NetworkSettings(
    part_type(Link, meanings=_CONNECTOR),
    part_type(Fabric, meanings={_KEY: _TOPOLOGY, **_CONNECTOR}),
)


def is_shared(network: Part | None, clients: Sequence[ClientPart], lives: Part | None) -> bool:
    """Whether the links of a topology carry something beside hand-overs, or steps cross nodes."""
    if network is None or network.plugin is not Fabric:
        return False
    starts = getattr(lives, "start_up", None)
    loads = starts is not None and starts.parameters()["time"] is None
    has_tiers = any(client.engine.kv_cache.tiers for client in clients if client.engine)
    fetches = any(getattr(client, "fetch", None) is not None for client in clients)
    return loads or has_tiers or fetches or network.parameters()["spans_nodes"]


_UNPLACED = {"place": None, "ffn_place": None, "attention_gpus": 1, "ffn_gpus": 1}
"""Keys of a client that only a topology gives a meaning, and their values without one."""


def places_of_nobody(network: Part | None, clients: Sequence[ClientPart]) -> Iterable[Problem]:
    """Yield places of clients, and GPUs that take them, where the network has none."""
    if network is not None and network.plugin is Fabric:
        return
    for position, client in enumerate(clients):
        for number, tier in enumerate(client.engine.kv_cache.tiers if client.engine else ()):
            if tier.at is not None:
                place = ("clients", position, "kv_cache", "tiers", number, "at")
                yield Problem(place, "has no effect: the network has no topology")
        if getattr(client, "fetch", None) is not None:
            text = "must be left out, since the network has no topology"
            yield Problem(("clients", position, "fetch"), text)
        if not isinstance(client, LlmPart | AfdPart):
            continue
        for key, unsaid in _UNPLACED.items():
            if getattr(client, key, unsaid) != unsaid:
                yield Problem(
                    ("clients", position, key), "has no effect: the network has no topology"
                )
        if getattr(client, "communication", None) == "topology":
            text = "must be coefficients, since the network has no topology, got topology"
            yield Problem(("clients", position, "communication"), text)
