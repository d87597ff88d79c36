"""KV-retrieval clients of a scenario file: levels of storage."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import AfterValidator, Field

from mist_sim.clients.retrieval.client import KvRetrievalClient
from mist_sim.clients.retrieval.levels import StorageLevel
from mist_sim.errors import ScenarioError
from mist_sim.models import load_model
from mist_sim.scenario.format.parts import FORMS, Part, Settings, file_type, part_type
from mist_sim.scenario.format.paths import named_file
from mist_sim.scenario.format.problems import Problem
from mist_sim.scenario.sections.clients.base import ClientPart
from mist_sim.scenario.sections.clients.keys import ModelName
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

    def said(self, model: str | None, *, guesses: bool = False) -> dict[str, Any]:
        """Return what a copy is made of, but its name. model: the scenario's."""
        size, known = self.bytes_per_token, self.model or model
        if size is None and known is not None:
            size = float(load_model(known).kv_bytes_per_token)
        if size is None and not guesses:
            raise ScenarioError(
                "bytes_per_token is required, since neither the client nor the scenario names a "
                "model"
            )
        return {**self.parameters(), "bytes_per_token": (size or _ANY_SIZE) if guesses else size}

    def needing_topology(self) -> Iterable[Problem]:
        """Yield its place."""
        if self.to is not None:
            yield Problem(("to",), "must be left out, since the network has no topology")

    def problems(self) -> Iterable[Problem]:
        """Return what the class refuses."""
        if self.model is not None and self.bytes_per_token is not None:
            text = "must be left out with bytes_per_token, which replaces it"
            return [Problem(("model",), text)]
        return super().problems()


FORMS[StorageLevel] = Annotated[
    Part,
    Settings(
        part_type(
            StorageLevel,
            meanings={"measured": Annotated[str, AfterValidator(named_file)] | None},
        )
    ),
]


def retrieval_part(name: str) -> type[Part]:
    """Return the schema of a retrieval client."""
    return part_type(
        KvRetrievalClient,
        name,
        needs=("name",),
        meanings={"bytes_per_token": file_type(Bytes) | None},
        defaults={"bytes_per_token": None},
        base=RetrievalPart,
    )
