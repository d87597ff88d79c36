"""Scenarios: the keys of a file with what is asked of all of them together."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from copy import deepcopy
from dataclasses import replace
from html import escape
from pathlib import Path
from typing import Any, ClassVar

from pydantic import Field, PrivateAttr

from mist_sim.errors import ScenarioError, brief
from mist_sim.scenario.engines.defaults import engine_line
from mist_sim.scenario.format.parts import Part
from mist_sim.scenario.format.paths import Origin
from mist_sim.scenario.format.problems import Problem
from mist_sim.scenario.loading import as_data, as_text, from_text, load, validated
from mist_sim.scenario.rules import problems_of
from mist_sim.scenario.sections.clients.base import ClientPart
from mist_sim.scenario.sections.whole import ScenarioKeys
from mist_sim.scenario.sections.workload import WorkloadSpec


def headline(
    source: str,
    clients: Sequence[ClientPart],
    model: str | None,
    router: str,
    seed: int,
    varied: Collection[str] = (),
) -> str:
    """Return where a scenario comes from, and below it its clients, router and seed.

    varied: dotted keys that a study varies: what the scenario says of them is left out.
    """
    tops = {key.partition(".")[0] for key in varied}
    serving = ", ".join(_client(n, client, model, varied) for n, client in enumerate(clients))
    parts = [serving]
    parts += [] if tops & {"router", "routers"} else [f"router {router}"]
    parts += [] if "seed" in tops else [f"seed {seed}"]
    return "\n".join(line for line in (source, "; ".join(parts)) if line)


def imitated(clients: Sequence[ClientPart]) -> str:
    """Return which engines the options of clients imitate; empty if no client has a model."""
    return engine_line(client.engine for client in clients if client.engine is not None)


def _client(position: int, client: ClientPart, model: str | None, varied: Collection[str]) -> str:
    place = f"clients.{position}."
    mine = {key.removeprefix(place).partition(".")[0] for key in varied if key.startswith(place)}
    mine |= {"model"} & {*varied}
    copies = f"{client.count} x " if client.count > 1 and "count" not in mine else ""
    return f"{copies}{client.title(model, mine)}"


_ENGINE = re.compile(r"^(clients\.\d+\.)?engine(\.|$)")


class Scenario(ScenarioKeys):
    """A workload, the clients that serve it, and the router between them.

    `Scenario.load` reads a file or a preset, `Scenario.from_dict` what a file would hold;
    `simulate` runs one. Two scenarios are equal if their resolved forms are equal.
    """

    _origin: Origin = PrivateAttr(Origin())

    def model_post_init(self, context: Any) -> None:
        """Keep the origin that the validation context gives."""
        if isinstance(context, Origin):
            self._origin = context

    @classmethod
    def load(
        cls,
        path: str | Path,
        overrides: Mapping[str, Any] | None = None,
        *,
        allow_programs: bool = True,
    ) -> Scenario:
        """Return the scenario of a YAML file, or of a preset that `mist list presets` names.

        overrides: values by dotted path, as `--set` gives them: {"clients.0.count": 8}.
        allow_programs: whether programs that the file names may run, as `--allow-programs` says on
            the command line; False is for files of others.
        Raises ScenarioError that lists every problem of the file, a line each.
        """
        return load(cls, path, overrides or {}, allow_programs=allow_programs)

    @classmethod
    def from_yaml(
        cls,
        text: str,
        overrides: Mapping[str, Any] | None = None,
        *,
        source: str = "scenario",
        allow_programs: bool = True,
    ) -> Scenario:
        """Return the scenario of YAML text; relative paths in it start at the working directory.

        source: what messages call it. allow_programs: as in `load`. Raises ScenarioError as `load`
        does.
        """
        origin = Origin(source, None, tuple(overrides or {}), allow_programs)
        return from_text(cls, text, overrides or {}, origin)

    @classmethod
    def from_dict(
        cls, data: Mapping[str, Any], overrides: Mapping[str, Any] | None = None
    ) -> Scenario:
        """Return the scenario of what a file would hold. Raises ScenarioError as `load` does."""
        given: object = data
        if not isinstance(given, Mapping):
            raise ScenarioError(f"a scenario must be a mapping of its keys, got {brief(given)}")
        origin = Origin(overrides=tuple(overrides or {}))
        return validated(cls, deepcopy(dict(data)), overrides or {}, origin)

    def changed(self, overrides: Mapping[str, Any], *, trusted: bool = True) -> Scenario:
        """Return the scenario with more overrides; defaults are worked out again.

        overrides: as in `load`. trusted: False if they come from a file, whose programs then need
            permission. Raises ScenarioError as `load` does.
        """
        origin = self._origin
        data = as_data(self) if origin.said is None else origin.said
        own = overrides if trusted else ()
        more = replace(origin, overrides=(*origin.overrides, *own))
        return validated(type(self), dict(data), overrides, more)

    @property
    def origin(self) -> Origin:
        """Where the scenario was read from, for messages."""
        return self._origin

    def resolved(self) -> str:
        """Return the scenario as YAML text, with every default and with units.

        The text loads to an equal scenario. Relative paths start at the working directory, not at
        the file's folder.
        """
        return as_text(self)

    @property
    def headline(self) -> str:
        """Three lines: its source; clients, router and seed; the engines that it imitates."""
        return self.headline_without(())

    def headline_without(self, varied: Collection[str]) -> str:
        """Return the headline of a study, without what it varies. varied: dotted keys."""
        engines = "" if any(_ENGINE.search(key) for key in varied) else imitated(self.clients)
        return "\n".join(line for line in (self._title(varied), engines) if line)

    def _title(self, varied: Collection[str] = ()) -> str:
        of_stages = {kind: _type(part) for kind, part in self.routers.items()}
        text = ", ".join([_type(self.router), *(f"{r} for {k}" for k, r in of_stages.items())])
        source = self.origin.source
        return headline(source, self.clients, self.model, text, self.seed, varied)

    def __repr__(self) -> str:
        return f"<Scenario: {self._title()}>".replace("\n", ": ")

    __str__ = __repr__

    def _repr_html_(self) -> str:
        """Return HTML for notebooks: the headline, which unfolds to the resolved scenario."""
        head, text = escape(self.headline).replace("\n", "<br>"), escape(self.resolved())
        return f"<details><summary>{head}</summary><pre>{text}</pre></details>"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Scenario) and self.resolved() == other.resolved()

    def __hash__(self) -> int:
        return hash(self.resolved())

    def problems(self) -> Iterable[Problem]:
        """Yield problems of the scenario as a whole."""
        return problems_of(self)


_ONE_TOKEN = {"type": "fixed", "tokens": 1}
ONE_REQUEST = {
    "lengths": {
        "type": "synthetic",
        "prompt": _ONE_TOKEN,
        "output": _ONE_TOKEN,
        "num_requests": 1,
    },
    "arrivals": {"type": "all_at_once"},
}
"""A workload for a scenario of which only the rest matters."""


class Engines(Scenario):
    """A scenario of which single steps are asked for: without a workload, one request."""

    workload: WorkloadSpec = Field(ONE_REQUEST, validate_default=True)


class Splittable(Scenario):
    """A scenario for whose designs its network is, though its own clients may all lack a role."""

    may_split: ClassVar[bool] = True


def _type(router: Part) -> str:
    return str(router.model_dump(by_alias=True)["type"])
