"""Clients of a scenario file that find passages for prompts."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

from pydantic import AfterValidator, GetJsonSchemaHandler, ValidationInfo
from pydantic.json_schema import JsonSchemaValue

from mist_sim.clients import RagClient
from mist_sim.clients.rag import (
    EncoderPass,
    LatencyTable,
    TextPass,
    rag_traits,
)
from mist_sim.clients.traits import ClientTraits
from mist_sim.errors import ScenarioError
from mist_sim.hardware.vector_search import INDEXES, SEARCHERS, Searcher, VectorIndex
from mist_sim.scenario.format.families import LENGTH, Family, OrLaw
from mist_sim.scenario.format.fields import Marker
from mist_sim.scenario.format.parts import Part, Settings, part_type
from mist_sim.scenario.format.paths import named_file
from mist_sim.scenario.format.problems import shown
from mist_sim.scenario.sections.clients.base import ClientPart
from mist_sim.scenario.sections.clients.keys import GpuName, PassModelName
from mist_sim.stages import Rag


@dataclass(frozen=True, eq=False)
class _Tokens(Marker):
    """Marks a number of tokens, which may be drawn; `laws` says what a text means."""

    laws: Family

    def read(self, value: object, info: ValidationInfo) -> object:
        """Return the number."""
        if isinstance(value, str):
            return self.laws.read(value, info)
        if isinstance(value, bool) or not isinstance(value, int):
            raise ScenarioError(f"must be a whole number or a law of lengths, got {shown(value)}")
        return value

    def write(self, value: Any) -> object:
        """Return the number."""
        return value

    def schema(self, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        """Return the schema of a number."""
        return {"type": "integer", "minimum": 0}


class RagPart(ClientPart):
    """A client of type rag; its copies share their hardware's figures."""

    shares_parts: ClassVar[bool] = True

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


def rag_part(name: str) -> type[Part]:
    """Return the schema of a client that finds passages."""
    file = Annotated[str, AfterValidator(named_file)]
    searcher = Family(SEARCHERS, meanings={"gpu": GpuName}, default="cores")
    reading = Settings(part_type(EncoderPass, meanings={"model": PassModelName, "gpu": GpuName}))
    table = Settings(part_type(LatencyTable, meanings={"path": file}))
    meanings = {
        "passage_tokens": Annotated[int | Part, OrLaw(_Tokens(LENGTH), LENGTH)],
        TextPass | None: Annotated[Part, reading] | None,
        VectorIndex | None: Annotated[Part, Family(INDEXES)] | None,
        Searcher | None: Annotated[Part, searcher] | None,
        LatencyTable | None: Annotated[Part, table] | None,
    }
    return part_type(RagClient, name, needs=("name",), meanings=meanings, base=RagPart)
