"""Bundles of attention and FFN workers in a scenario file."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from mist_sim.clients import AfdClient, Client
from mist_sim.scenario.format.parts import Part, part_type
from mist_sim.scenario.format.problems import Problem, said_by
from mist_sim.scenario.sections.clients.base import ClientPart
from mist_sim.scenario.sections.clients.keys import ModelName
from mist_sim.stages import Decode

_ANY_MODEL = "llama-3.1-8b"  # where the scenario's is not known yet


class AfdPart(ClientPart):
    """A client of type afd, which decodes what clients with role prefill began."""

    if TYPE_CHECKING:
        model: str | None
        kv_cache_dtype: str

    @property
    def stages(self) -> Sequence[str]:
        """Decode alone."""
        return [Decode.kind]

    @property
    def part(self) -> str:
        """Decode."""
        return Decode.kind

    def clients(self, model: str | None) -> Iterable[Client]:
        """Return the client and its copies. model: the scenario's."""
        said = self.parameters()
        said["model"] = self.model or model
        return [self.plugin(name=name, **said) for name in self.names]

    def problems(self) -> Iterable[Problem]:
        """Return what the class refuses."""
        said = self.parameters()
        try:
            self.plugin(name=self.name, **(said | {"model": self.model or _ANY_MODEL}))
        except ValueError as error:
            return [said_by(error, type(self))]
        return ()


def afd_part(name: str) -> type[Part]:
    """Return the schema of a bundle."""
    return part_type(
        AfdClient,
        name,
        needs=("name",),
        meanings={"model": ModelName | None},
        defaults={"model": None},
        base=AfdPart,
    )
