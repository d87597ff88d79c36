"""Clients of a scenario file that find passages for prompts."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import AfterValidator, GetJsonSchemaHandler, ValidationInfo
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema

from mist_sim.clients import Client, RagClient
from mist_sim.clients.rag import (
    EncoderPass,
    LatencyTable,
    PassageStore,
    TextPass,
    TokenLaw,
    rag_traits,
)
from mist_sim.clients.traits import ClientTraits
from mist_sim.errors import ScenarioError
from mist_sim.hardware.vector_search import INDEXES, SEARCHERS, Searcher, VectorIndex
from mist_sim.scenario.format.families import LENGTH, Family, Marker, Settings
from mist_sim.scenario.format.parts import Part, part_type, written
from mist_sim.scenario.format.paths import named_file
from mist_sim.scenario.format.problems import shown
from mist_sim.scenario.sections.clients.base import ClientPart
from mist_sim.scenario.sections.clients.keys import DEVICE, GpuName, PassModelName
from mist_sim.stages import Rag


@dataclass(frozen=True, eq=False)
class _TokensOrLaw(Marker):
    """Marks a number of tokens that is constant (100) or drawn ({type: normal, ...})."""

    laws: Family

    def read(self, value: object, info: ValidationInfo) -> int | Part | str:
        """Return the number or the law that a value in a file describes."""
        if isinstance(value, str | dict | Part):
            return self.laws.read(value, info)
        if isinstance(value, bool) or not isinstance(value, int):
            raise ScenarioError(f"must be a whole number or a law of lengths, got {shown(value)}")
        return value

    def write(self, value: Any) -> object:
        """Return the number, or the law, as a file writes it."""
        return written(value)

    def __get_pydantic_json_schema__(
        self, schema: CoreSchema, handler: GetJsonSchemaHandler
    ) -> JsonSchemaValue:
        laws = self.laws.__get_pydantic_json_schema__(schema, handler)
        return {"anyOf": [{"type": "integer", "minimum": 0}, *laws["anyOf"]]}


class RagPart(ClientPart):
    """A client of type rag."""

    if TYPE_CHECKING:
        passage_tokens: int | Part
        embedder: Part | None
        latency_table: Part | None
        reranker: Part | None

    @property
    def stages(self) -> Sequence[str]:
        """Retrieval alone."""
        return [Rag.kind]

    @property
    def looks_at(self) -> Collection[str]:
        """The numbers of tokens and documents, if results depend on them."""
        reads = self.embedder is not None or self.reranker is not None
        finds = self.passage_tokens != 0 or self.latency_table is None
        asked, handed = ["num_query_tokens"], ["num_documents"]
        return [*(asked if reads else []), *(handed if finds else [])]

    def describe(self, model: str | None) -> ClientTraits:
        """Return what the client is. model: the scenario's."""
        said = self.parameters()
        return rag_traits(said["embedder"], said["reranker"], said["search"], said["device"])

    @property
    def prices(self) -> Mapping[str, float | None]:
        """Dollars an hour of its GPUs, by key; None where the file does not say."""
        parts = {"embedder": self.embedder, "reranker": self.reranker}
        return {
            f"{name}.gpu_price": part.parameters()["gpu_price"]
            for name, part in parts.items()
            if part is not None
        }

    def clients(self, model: str | None) -> Iterable[Client]:
        """Return the client and its copies, which share their hardware's figures."""
        said = self.parameters()
        return [self.plugin(name=name, **said) for name in self.names]


def rag_part(name: str) -> type[Part]:
    """Return the schema of a client that finds passages."""
    reads = {"model": PassModelName, "gpu": GpuName}
    reading = Annotated[Part, Settings(part_type(EncoderPass, meanings=reads))] | None
    table = {"path": Annotated[str, AfterValidator(named_file)]}
    searcher = Family(SEARCHERS, meanings={"gpu": GpuName}, default="cores")
    meanings = {
        int | TokenLaw: Annotated[int | Part, _TokensOrLaw(LENGTH)],
        TextPass | None: reading,
        VectorIndex | None: Annotated[Part, Family(INDEXES)] | None,
        Searcher | None: Annotated[Part, searcher] | None,
        **DEVICE,
        PassageStore | None: Annotated[Part, Settings(part_type(PassageStore))] | None,
        LatencyTable | None: Annotated[Part, Settings(part_type(LatencyTable, meanings=table))]
        | None,
    }
    return part_type(RagClient, name, needs=("name",), meanings=meanings, base=RagPart)
