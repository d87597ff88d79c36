"""The types of clients that a scenario file chooses from."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

from pydantic import AfterValidator, ValidationInfo

from mist_sim.checks import Positive
from mist_sim.clients import CLIENTS, SequentialClient
from mist_sim.clients.traits import ClientTraits
from mist_sim.clients.workers.processing import worker_traits
from mist_sim.errors import ScenarioError, did_you_mean
from mist_sim.scenario.format.families import STAGE, Family
from mist_sim.scenario.format.parts import Part, part_type
from mist_sim.scenario.format.paths import named_file
from mist_sim.scenario.format.problems import Problem, failure, shown
from mist_sim.scenario.sections.clients.base import ClientPart
from mist_sim.scenario.sections.clients.keys import AtLeastOne, Names
from mist_sim.scenario.sections.clients.llm import LLM_STAGES, llm_part


class SequentialPart(ClientPart):
    """A client of type sequential; its copies share their laws."""

    shares_parts: ClassVar[bool] = True

    if TYPE_CHECKING:
        serves: tuple[str, ...]
        base_time: float | Part | None
        time_per_token: float | Part | None
        fetch: Part | None
        device: Part | None

    @property
    def stages(self) -> Sequence[str]:
        """The stages that the client serves, in the order of the file."""
        return self.serves

    def describe(self, model: str | None) -> ClientTraits:
        """Return what a worker is. model: the scenario's."""
        device = self.device.make() if self.device is not None else None
        return worker_traits(self._kinds, fetches=self.fetch is not None, device=device)

    def needing_topology(self) -> Iterable[Problem]:
        """Yield a problem if it fetches although the network has no topology."""
        if self.fetch is not None:
            text = "must be left out, since the network has no topology"
            yield Problem(("fetch",), text)

    def parameters(self) -> dict[str, Any]:
        """Return the parameters, with the stages as clients call them."""
        return {**super().parameters(), "serves": self._kinds}

    @property
    def _kinds(self) -> list[str]:
        """The stages that it serves, as clients call them."""
        return [STAGE.registry[name].kind for name in self.serves]

    def problems(self) -> Iterable[Problem]:
        """Yield the problems of its stages and times."""
        if not self.serves:
            yield Problem(("serves",), "must have at least one entry, got []")
        for name in ("base_time", "time_per_token"):
            time = getattr(self, name)
            if isinstance(time, float) and time < 0:
                yield Problem((name,), f"must be >= 0 s, got {time}")
        for position, stage in enumerate(self.serves):
            if problem := _not_served(stage):
                yield Problem(("serves", position), problem)
            elif self.base_time is None and self.fetch is None and not self._has_time(stage):
                yield Problem(("base_time",), f"is required, since {stage} has no other time")
        if (
            self.serves
            and self.time_per_token is not None
            and not any(map(_has_tokens, self.serves))
        ):
            yield Problem(
                ("time_per_token",), f"has no effect: {', '.join(self.serves)} has no num_tokens"
            )
        if self.serves and self.fetch is not None and not any(map(_has_tokens, self.serves)):
            yield Problem(("fetch",), f"has no effect: {', '.join(self.serves)} has no num_tokens")

    def _has_time(self, stage: str) -> bool:
        per_token = self.time_per_token is not None and _has_tokens(stage)
        return per_token or stage == "tool_call"


def _has_tokens(stage: str) -> bool:
    """Tell whether a stage has `num_tokens`, for which a client can take time."""
    if stage not in STAGE.registry:
        return True  # an unknown stage has its own problem
    return "num_tokens" in STAGE.part_type(stage).model_fields


def _not_served(stage: str) -> str:
    if stage in LLM_STAGES:
        return f"{stage} is what a client of type llm serves"
    if stage not in STAGE.registry:
        known = ", ".join(name for name in STAGE.registry if name not in LLM_STAGES)
        return f"no stage named {shown(stage)}{did_you_mean(stage, STAGE.registry)} Known: {known}"
    return ""


def sequential_part(name: str) -> type[Part]:
    """Return the schema of a worker."""
    meanings = {"serves": Names, Positive[int]: AtLeastOne}
    needs = ("name", "service_time")
    return part_type(SequentialClient, name, needs=needs, meanings=meanings, base=SequentialPart)


def _text_part(name: str) -> type[Part]:
    meanings = {str | None: Annotated[str, AfterValidator(named_file)] | None}
    return part_type(CLIENTS[name], name, needs=("name",), meanings=meanings, base=ClientPart)


def _later(module: str) -> Callable[[str], type[Part]]:
    """Return what makes a schema that is imported, with all that such clients are, when needed."""

    def part(name: str) -> type[Part]:
        found = import_module(f"mist_sim.scenario.sections.clients.{module}")
        made: type[Part] = getattr(found, f"{module}_part")(name)
        return made

    return part


_OURS: Mapping[str, Callable[[str], type[Part]]] = {
    "llm": llm_part,
    "sequential": sequential_part,
    "afd": _later("afd"),
    "text": _text_part,
    "kv_retrieval": _later("retrieval"),
    "rag": _later("rag"),
}


@dataclass(frozen=True, eq=False)
class ClientFamily(Family):
    """The types of clients. Plugins are dataclasses whose first field is the name."""

    def _schema(self, name: str, plugin: type[Any]) -> type[Part]:
        if name in _OURS:
            return _OURS[name](name)
        schema = part_type(plugin, name, needs=("name",), base=ClientPart)
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
