"""KV-retrieval clients of a scenario file: levels of storage."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import AfterValidator, BeforeValidator, Field

from mist_sim.clients import Client
from mist_sim.clients.retrieval.client import KvRetrievalClient
from mist_sim.clients.retrieval.levels import StorageLevel
from mist_sim.clients.traits import ClientTraits
from mist_sim.errors import ScenarioError
from mist_sim.models import load_model
from mist_sim.scenario.format.families import EVICTION, Settings
from mist_sim.scenario.format.fields import as_tuple, file_type
from mist_sim.scenario.format.parts import Part, part_type
from mist_sim.scenario.format.paths import named_file
from mist_sim.scenario.format.problems import Problem, said_by
from mist_sim.scenario.sections.clients.base import ClientPart
from mist_sim.scenario.sections.clients.keys import DEVICE, ModelName
from mist_sim.stages import KvRetrieval
from mist_sim.units import Bytes

_ANY_SIZE = 1.0  # byte of a token, where the scenario's model is not known yet


class RetrievalPart(ClientPart):
    """A client of type kv_retrieval."""

    model: ModelName | None = Field(
        None,
        description="whose entries these are, in place of bytes_per_token; the scenario's if "
        "neither is given",
    )

    if TYPE_CHECKING:
        bytes_per_token: float | None
        levels: tuple[Part, ...]
        to: str | None

    @property
    def stages(self) -> Sequence[str]:
        """Retrieval alone."""
        return [KvRetrieval.kind]

    def describe(self, model: str | None) -> ClientTraits:
        """Return what the client is. model: the scenario's."""
        return self._made(self.name, self._size(model) or _ANY_SIZE).traits

    def needing_topology(self) -> Iterable[Problem]:
        """Yield its place."""
        if self.to is not None:
            yield Problem(("to",), "must be left out, since the network has no topology")

    def clients(self, model: str | None) -> Iterable[Client]:
        """Return the client and its copies. model: the scenario's."""
        size = self._size(model)
        if size is None:
            raise ScenarioError(
                "bytes_per_token is required, since neither the client nor the scenario names a "
                "model"
            )
        return [self._made(name, size) for name in self.names]

    def problems(self) -> Iterable[Problem]:
        """Return what the class refuses."""
        if self.model is not None and self.bytes_per_token is not None:
            text = "must be left out with bytes_per_token, which replaces it"
            return [Problem(("model",), text)]
        try:
            self.describe(None)
        except ValueError as error:
            return [said_by(error, type(self))]
        return ()

    def _size(self, model: str | None) -> float | None:
        """Return the bytes of a token's entries. model: the scenario's."""
        if self.bytes_per_token is not None:
            return self.bytes_per_token
        known = self.model or model
        return None if known is None else float(load_model(known).kv_bytes_per_token)

    def _made(self, name: str, size: float) -> Client:
        said: dict[str, Any] = {**self.parameters(), "bytes_per_token": size}
        client: Client = self.plugin(name=name, **said)
        return client


_FILE = {"measured": Annotated[str, AfterValidator(named_file)] | None}
_LEVEL = Annotated[Part, Settings(part_type(StorageLevel, meanings=_FILE))]


def retrieval_part(name: str) -> type[Part]:
    """Return the schema of a retrieval client."""
    meanings = {
        "levels": Annotated[tuple[_LEVEL, ...], BeforeValidator(as_tuple)],
        "bytes_per_token": file_type(Bytes) | None,
        "eviction": Annotated[Part, EVICTION] | None,
        **DEVICE,
    }
    return part_type(
        KvRetrievalClient,
        name,
        needs=("name",),
        meanings=meanings,
        defaults={"bytes_per_token": None},
        base=RetrievalPart,
    )
