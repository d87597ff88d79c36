"""Keys that all clients of a scenario file have."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, ClassVar

from pydantic import Field

from mist_sim.bounds import COPIES
from mist_sim.clients import Client, EngineConfig
from mist_sim.clients.traits import ClientTraits
from mist_sim.registry import comes_with_package
from mist_sim.scenario.format.parts import Part
from mist_sim.scenario.format.problems import Problem, said_by
from mist_sim.scenario.sections.clients.keys import Name


class ClientPart(Part):
    """Keys of all clients: a name, a type, and the number of copies.

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

    needs_model: ClassVar[bool] = False  # so that it serves the scenario's where it names none
    names_engine: ClassVar[bool] = False  # whether the scenario's `engine` holds for it, too
    shares_parts: ClassVar[bool] = False  # whether copies share what parameters are made into

    def said(self, model: str | None, *, guesses: bool = False) -> dict[str, Any]:
        """Return what a copy is made of, but its name. model: the scenario's.

        guesses: whether a value stands for one that only the scenario says, and does not say yet.
        """
        return self.parameters()

    @property
    def stages(self) -> Sequence[str]:
        """The stages that the client serves."""
        return sorted(self.describe(None).serves)

    @property
    def looks_at(self) -> Collection[str]:
        """Parameters of a stage `rag` that have an effect; none for a worker."""
        return ()

    def describe(self, model: str | None) -> ClientTraits:
        """Return the traits of each copy, as far as the file determines them.

        Rules of scenarios read these traits, and not the type of the client.

        model: the scenario's.
        """
        return self._first(model).traits

    def _first(self, model: str | None) -> Client:
        client: Client = self.plugin(name=self.name, **self.said(model, guesses=True))
        return client

    def title(self, model: str | None, varied: Collection[str] = ()) -> str:
        """Return its part of a headline.

        model: the scenario's. varied: keys of the client that a study varies, which it leaves out.
        """
        return f"{self.name} ({', '.join(self.stages)})"

    def said_to_start(self, model: str | None) -> Mapping[str, int]:
        """Return options with which its servers start, by key; empty where they do as they are.

        model: the scenario's. Raises ScenarioError for a client that cannot be made.
        """
        return {}

    @property
    def prices(self) -> Mapping[str, float | None]:
        """Dollars an hour of its GPUs, by key; None where the file does not say."""
        return {}

    def needing_topology(self) -> Iterable[Problem]:
        """Yield keys that need a network with a topology."""
        return ()

    def on_topology(self) -> ClientPart:
        """Return the client with what a network with a topology decides."""
        return self

    @property
    def is_ours(self) -> bool:
        """Whether all its parts came with the package; plugins may read any option."""
        return comes_with_package(self.plugin)

    @property
    def engine(self) -> EngineConfig | None:
        """The engine that runs a language model; None for a client of another type."""
        return None

    def clients(self, model: str | None) -> Iterable[Client]:
        """Return the client and its copies. model: the scenario's."""
        names = self.names
        said = [self.said(model)]
        said += [said[0] if self.shares_parts else self.said(model) for _ in names[1:]]
        return [self.plugin(name=name, **each) for name, each in zip(names, said, strict=True)]

    def problems(self) -> Iterable[Problem]:
        """Return what the class refuses."""
        try:
            self._first(None)
        except ValueError as error:
            return [said_by(error, type(self))]
        return ()
