"""The types of clients that a scenario file chooses from."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Annotated, Any

from pydantic import AfterValidator, ValidationInfo

from mist_sim.clients import CLIENTS
from mist_sim.errors import ScenarioError, did_you_mean
from mist_sim.scenario.format.families import TIMES, Family
from mist_sim.scenario.format.parts import Part, part_type
from mist_sim.scenario.format.paths import named_file
from mist_sim.scenario.format.problems import Problem, failure, shown
from mist_sim.scenario.sections.clients.base import ClientPart
from mist_sim.scenario.sections.clients.keys import DEVICE
from mist_sim.scenario.sections.clients.llm import llm_part
from mist_sim.scenario.sections.clients.sequential import sequential_part


def _afd_part(name: str) -> type[Part]:
    from mist_sim.scenario.sections.clients.afd import afd_part  # with all that bundles are made of

    return afd_part(name)


def _text_part(name: str) -> type[Part]:
    meanings = {str | None: Annotated[str, AfterValidator(named_file)] | None, **DEVICE}
    return part_type(CLIENTS[name], name, needs=("name",), meanings=meanings, base=ClientPart)


def _retrieval_part(name: str) -> type[Part]:
    from mist_sim.scenario.sections.clients.retrieval import retrieval_part

    return retrieval_part(name)


def _rag_part(name: str) -> type[Part]:
    from mist_sim.scenario.sections.clients.rag import rag_part  # with all that indexes are

    return rag_part(name)


_OURS: Mapping[str, Callable[[str], type[Part]]] = {
    "llm": llm_part,
    "sequential": sequential_part,
    "afd": _afd_part,
    "text": _text_part,
    "kv_retrieval": _retrieval_part,
    "rag": _rag_part,
}


@dataclass(frozen=True, eq=False)
class ClientFamily(Family):
    """The types of clients. Plugins are dataclasses whose first field is the name."""

    def _schema(self, name: str, plugin: type[Any]) -> type[Part]:
        if name in _OURS:
            return _OURS[name](name)
        schema = part_type(plugin, name, needs=("name",), meanings=TIMES, base=ClientPart)
        if "name" not in schema.needs:
            raise ScenarioError(f"{name}: a client type is a dataclass with a field `name`")
        return schema

    def read(self, value: object, info: ValidationInfo) -> Part | str:
        """Return the client that a mapping in a file describes."""
        if not isinstance(value, dict | Part):
            text = f"must be a mapping of keys to values, got {shown(value)}"
            raise failure([Problem((), text)])
        return super().read(value, info)

    def _unknown(self, name: object) -> str:
        hint, known = did_you_mean(str(name), self.registry), ", ".join(self.registry)
        return f"no client type {shown(name)}{hint} Known: {known}"


CLIENT = ClientFamily(CLIENTS, default="llm")
AnyClient = Annotated[ClientPart, CLIENT]
"""A client of any type."""


def _names_engine(name: object) -> bool:
    """Tell whether clients of a type may name an engine version."""
    if not isinstance(name, str) or name not in CLIENT.registry:
        return False
    schema = CLIENT.part_type(name)
    return issubclass(schema, ClientPart) and schema.names_engine


def with_engine(client: object, engine: str) -> object:
    """Return a client's mapping, with the scenario's engine version if it may have one."""
    if not isinstance(client, dict) or not _names_engine(client.get("type", CLIENT.default)):
        return client
    return {**client, "engine": client.get("engine") or engine}
