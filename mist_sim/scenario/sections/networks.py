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
from mist_sim.clients.traits import ClientTraits
from mist_sim.network import Connector, Fabric, Link, load_topology
from mist_sim.scenario.format import paths
from mist_sim.scenario.format.families import CONNECTOR, Marker
from mist_sim.scenario.format.parts import Part, part_type
from mist_sim.scenario.format.problems import Problem
from mist_sim.scenario.sections.clients import ClientPart

_KEY = "topology"


def _topology(text: str, info: ValidationInfo) -> str:
    return paths.spec(text, info, ".toml", load_topology)


_TOPOLOGY = Annotated[str, Field(max_length=TEXT_LENGTH), AfterValidator(_topology)]


@dataclass(frozen=True, eq=False)
class NetworkSettings(Marker):
    """Marks a `Part` that is a fabric if it names a topology, else a link."""

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


def has_topology(network: Part | None) -> bool:
    """Tell whether clients have places in a network."""
    return network is not None and network.plugin.has_topology


def is_shared(network: Part | None, clients: Iterable[ClientTraits], lives: Part | None) -> bool:
    """Tell whether a topology is used for more than hand-overs, or by steps across nodes."""
    if network is None or not has_topology(network):
        return False
    starts = getattr(lives, "start_up", None)
    loads = starts is not None and starts.parameters()["time"] is None
    uses_links = any(client.uses_links for client in clients)
    return loads or uses_links or network.parameters()["spans_nodes"]


def spanning(network: Part) -> str:
    """Return what gives a topology an effect on clients without roles; empty for others."""
    if not has_topology(network):
        return ""
    return "; spans_nodes: true times clients with GPUs on several nodes by it"


def places_of_nobody(network: Part | None, clients: Sequence[ClientPart]) -> Iterable[Problem]:
    """Yield keys that need a topology, such as places, if the network has none."""
    if has_topology(network):
        return
    for position, client in enumerate(clients):
        for problem in client.needing_topology():
            yield Problem(("clients", position, *problem.location), problem.text)
