"""The network of a scenario file: one link for all, or a topology in which clients have places."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any

from pydantic import (
    AfterValidator,
    Field,
    GetJsonSchemaHandler,
    ValidationInfo,
)
from pydantic.json_schema import JsonSchemaValue

from mist_sim.bounds import TEXT_LENGTH
from mist_sim.network import Fabric, Link, load_topology
from mist_sim.scenario.format import paths
from mist_sim.scenario.format.fields import Marker
from mist_sim.scenario.format.parts import Part, part_type, written

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

    def write(self, value: Any) -> object:
        """Return it with every default."""
        return written(value)

    def schema(self, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        """Return the choice of both."""
        models = (self.link, self.fabric)
        return {"anyOf": [handler(model.__pydantic_core_schema__) for model in models]}


NETWORK = NetworkSettings(part_type(Link), part_type(Fabric, meanings={_KEY: _TOPOLOGY}))


def has_topology(network: Part | None) -> bool:
    """Tell whether clients have places in a network."""
    return network is not None and network.plugin.has_topology
