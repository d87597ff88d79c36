"""What all clients of a scenario file have."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from pydantic import Field

from mist_sim.bounds import COPIES
from mist_sim.clients import Client, EngineConfig
from mist_sim.scenario.format.parts import Part
from mist_sim.scenario.format.problems import Problem, said_by
from mist_sim.scenario.sections.clients.keys import Name


class ClientPart(Part):
    """What all clients have: a name, a type, and how many copies there are.

    `part_type` adds the parameters of a type, which are the fields of its class.
    """

    name: Name
    type_: str = Field(alias="type")
    count: int = Field(
        1,
        ge=1,
        le=COPIES,
        description="copies of the client; more than one are called NAME-0, NAME-1, ...",
    )

    @property
    def names(self) -> list[str]:
        """The names of all copies."""
        if self.count == 1:
            return [self.name]
        return [f"{self.name}-{copy}" for copy in range(self.count)]

    @property
    def stages(self) -> Sequence[str]:
        """The stages that the client serves."""
        return sorted(self.make(name=self.name).serves)

    @property
    def is_ours(self) -> bool:
        """Whether its parts came with the package; those of others may look at anything."""
        return self.plugin.__module__.startswith("mist_sim.")

    @property
    def engine(self) -> EngineConfig | None:
        """What runs a language model; None for a client of another type."""
        return None

    @property
    def part(self) -> str | None:
        """Prefill or decode, where it does that alone for others that do the rest."""
        return self.engine.role if self.engine else None

    def clients(self, model: str | None) -> Iterable[Client]:
        """Return the client and its copies. model: the scenario's."""
        return [self.make(name=name) for name in self.names]

    def problems(self) -> Iterable[Problem]:
        """Return what the class refuses."""
        try:
            self.make(name=self.name)
        except ValueError as error:
            return [said_by(error, type(self))]
        return ()
