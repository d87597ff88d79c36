"""Workers of a scenario file, which serve one stage at a time."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Annotated, Any

from mist_sim.clients import Client, SequentialClient
from mist_sim.clients.traits import ClientTraits
from mist_sim.clients.workers.fetching import Fetch
from mist_sim.clients.workers.processing import worker_traits
from mist_sim.errors import did_you_mean
from mist_sim.scenario.format.families import STAGE, TIMES, Settings
from mist_sim.scenario.format.parts import Part, part_type
from mist_sim.scenario.format.problems import Problem, shown
from mist_sim.scenario.sections.clients.base import ClientPart
from mist_sim.scenario.sections.clients.keys import DEVICE, AtLeastOne, Names
from mist_sim.scenario.sections.clients.llm import LLM_STAGES


class SequentialPart(ClientPart):
    """A client of type sequential."""

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

    def clients(self, model: str | None) -> Iterable[Client]:
        """Return the client and its copies, which share their laws. model: the scenario's."""
        said = self.parameters()
        return [self.plugin(name=name, **said) for name in self.names]

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
    meanings = {
        "serves": Names,
        int: AtLeastOne,
        Fetch | None: Annotated[Part, Settings(part_type(Fetch))] | None,
        **DEVICE,
        **TIMES,
    }
    needs = ("name", "service_time")
    return part_type(SequentialClient, name, needs=needs, meanings=meanings, base=SequentialPart)
