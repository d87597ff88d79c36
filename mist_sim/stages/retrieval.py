"""Stages that fetch: documents for the prompt, or KV entries computed earlier."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

from mist_sim.core.request import Stage
from mist_sim.stages.stage_kinds import STAGES


@STAGES.register("rag")
@dataclass(frozen=True, slots=True, kw_only=True)
class Rag(Stage):
    """Embed the query, search an index, re-rank what was found (MIST §IV-A2).

    Clients of type rag use both numbers; workers ignore them.

    num_query_tokens: length of the query in tokens (> 0); None: clients of type rag take the prompt
        as the query.
    num_documents: documents added to the prompt (> 0); None: the client's own number.
    """

    kind: ClassVar[str] = "rag"
    num_query_tokens: int | None = None
    num_documents: int | None = None

    def __post_init__(self) -> None:
        for name in ("num_query_tokens", "num_documents"):
            value = getattr(self, name)
            if value is not None and value <= 0:
                raise ValueError(f"{name} must be > 0, got {value}")


@STAGES.register("kv_retrieval")
@dataclass(frozen=True, slots=True, kw_only=True)
class KvRetrieval(Stage):
    """Fetch the KV entries of a known context instead of computing them (MIST §IV-A3).

    num_tokens: context tokens to fetch entries for (> 0); clients of type kv_retrieval fetch at
        most those of the next prompt.
    """

    kind: ClassVar[str] = "kv_retrieval"
    num_tokens: int

    def __post_init__(self) -> None:
        if self.num_tokens <= 0:
            raise ValueError(f"num_tokens must be > 0, got {self.num_tokens}")

    def longer(self, num_tokens: int) -> KvRetrieval:
        """Return a copy that fetches the entries of so many tokens more."""
        return replace(self, num_tokens=self.num_tokens + num_tokens)
