"""The keys of a scenario file. Docstrings and descriptions end up in its JSON Schema."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping
from copy import deepcopy
from dataclasses import replace
from html import escape
from pathlib import Path
from typing import Annotated, Any

from pydantic import BeforeValidator, Field, PrivateAttr, ValidationInfo, field_validator

from mist_sim.bounds import COPIES, SEED
from mist_sim.clients.traits import FLOWING_ROLES
from mist_sim.core.front_end import FrontEnd
from mist_sim.errors import brief, listed
from mist_sim.metrics import ApiPrices, CostOptions, PowerOptions
from mist_sim.scenario.format.families import ROUTER, Settings
from mist_sim.scenario.format.fields import Duration, as_tuple
from mist_sim.scenario.format.parts import Part, part_type
from mist_sim.scenario.format.paths import Origin
from mist_sim.scenario.format.problems import Problem
from mist_sim.scenario.format.strict import Strict
from mist_sim.scenario.headline import headline, imitated
from mist_sim.scenario.loading import as_data, as_text, from_text, load, validated
from mist_sim.scenario.sections.clients import (
    AnyClient,
    EngineName,
    ModelName,
    NamedTraits,
    client_problems,
    with_engine,
)
from mist_sim.scenario.sections.hand_overs import HAND_OVER, idle_options, unlike_engines
from mist_sim.scenario.sections.lifecycles import LIFECYCLE, names_nodes, problems_of_lives
from mist_sim.scenario.sections.limits import LIMITS, class_problems
from mist_sim.scenario.sections.networks import NETWORK, is_shared, places_of_nobody, spanning
from mist_sim.scenario.sections.reconfigurations import RECONFIGURE, problems_of_sliders
from mist_sim.scenario.sections.routing import (
    adapter_problems,
    image_problems,
    model_problems,
    poll_problems,
    router_problems,
    served_models,
)
from mist_sim.scenario.sections.workload import WorkloadSpec
from mist_sim.scenario.useless_options import useless_options
from mist_sim.stages import Decode, Prefill

_API = Annotated[Part, Settings(part_type(ApiPrices))] | None
_ENGINE = re.compile(r"^(clients\.\d+\.)?engine(\.|$)")
_COST = part_type(CostOptions, meanings={"api": _API})


class Scenario(Strict):
    """A workload, the clients that serve it, and the router between them.

    `Scenario.load` reads a file or a preset, `Scenario.from_dict` what a file would hold;
    `simulate` runs one. Two scenarios are equal if their resolved forms are equal.
    """

    seed: int = Field(0, ge=0, le=SEED, description="of all random streams")
    model: ModelName | None = Field(None, description="served by clients that name no other")
    approximate: bool = Field(
        False,
        description="whether to simulate an unknown model as the nearest known one; results name "
        "it, and have no error bar",
    )
    engine: EngineName | None = Field(
        None,
        description="version of vLLM whose defaults hold for clients that name none, such as "
        "vllm-0.19; vllm is the newest known version",
    )
    workload: WorkloadSpec
    clients: Annotated[tuple[AnyClient, ...], BeforeValidator(as_tuple)] = Field(
        json_schema_extra={"minItems": 1}
    )
    router: Annotated[Part, ROUTER] = Field(
        ROUTER.default, validate_default=True, description="which client serves a visit"
    )
    routers: dict[str, Annotated[Part, ROUTER]] = Field(
        {},
        description="routers of visits by the stage that they begin with, such as "
        "{decode: placement_aware}; the others go by `router`",
    )
    view_interval: Duration | None = Field(
        None,
        description="time between two polls, as of which routers see clients; without it, they "
        "see them as they are",
    )
    counts_sent: bool = Field(
        True,
        description="with view_interval, whether a router adds the requests it sent since the poll",
    )
    network: Annotated[Part, NETWORK] | None = Field(
        None, description="over which clients with roles hand over KV entries"
    )
    hand_over: Annotated[Part, Settings(HAND_OVER)] = Field(
        {}, validate_default=True, description="how requests go from prefill to decode"
    )
    front_end: Annotated[Part, Settings(part_type(FrontEnd))] = Field(
        {}, validate_default=True, description="times between users and engines: HTTP, tokenizing"
    )
    slo: Annotated[Part, LIMITS] = Field(
        {},
        validate_default=True,
        description="limits that a good request keeps, or the name of a preset (mist list slos)",
    )
    power: Annotated[Part, Settings(part_type(PowerOptions))] | None = Field(
        None, description="parts that draw power beside the GPUs, where joules are asked for"
    )
    cost: Annotated[Part, Settings(_COST)] | None = Field(
        None, description="which prices count, where the cost of the run is asked for"
    )
    lifecycle: Annotated[Part, Settings(LIFECYCLE)] | None = Field(
        None, description="clients that fail, start, drain or are scaled"
    )
    reconfigure: Annotated[Part, Settings(RECONFIGURE)] | None = Field(
        None, description="how clients with roles p_heavy and d_heavy change during the run"
    )
    warmup: Duration = Field(
        0.0, description="time at the start whose arrivals do not count in the summary"
    )
    replications: int = Field(
        1,
        ge=1,
        le=COPIES,
        description="independent runs, each with a seed of its own; more than one give means "
        "with 95 % confidence intervals",
    )
    assumptions: Annotated[tuple[str, ...], BeforeValidator(as_tuple)] = Field(
        (),
        description="what was assumed when the file was written, such as by mist from-vllm; the "
        "warnings of its results repeat it",
    )
    _origin: Origin = PrivateAttr(Origin())

    @field_validator("clients", mode="before")
    @classmethod
    def _of_the_engine(cls, clients: object, info: ValidationInfo) -> object:
        engine = info.data.get("engine")
        if engine is None or not isinstance(clients, list | tuple):
            return clients
        return [with_engine(client, engine) for client in clients]

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
        if not self.clients:
            yield Problem(("clients",), "must have at least one entry, got []")
            return
        if self.warmup < 0:
            yield Problem(("warmup",), f"must be >= 0 s, got {self.warmup}")
        yield from client_problems(self.clients, self.model, self.engine, self.cost)
        yield from self._unserved_stages()
        yield from self._hand_overs()
        yield from places_of_nobody(self.network, self.clients)
        routers = [self.router, *self.routers.values()]
        yield from router_problems(self.routers, self.workload, self.clients, self.model)
        yield from poll_problems(self.view_interval, self.counts_sent, routers)
        yield from model_problems(self.workload, served_models(self.clients, self.model))
        yield from adapter_problems(self.workload, self.clients)
        yield from image_problems(self.workload, self.clients)
        limits = self.slo.make()
        yield from useless_options(
            self.workload,
            self.clients,
            routers,
            self.model,
            self.lifecycle,
            limits_by_priority=limits.goes_by_priority,
        )
        yield from class_problems(limits, self.workload)
        yield from problems_of_lives(
            self.lifecycle, self.clients, self.network, has_slo=limits.judges_requests
        )
        yield from problems_of_sliders(
            self.reconfigure,
            [client.describe(self.model).role for client in self.clients],
            has_slo=limits.judges_requests,
            has_polls=self.view_interval is not None,
        )

    def _hand_overs(self) -> Iterable[Problem]:
        """Yield problems of roles: no network, different models, a network without roles.

        A user's own types of clients may hand over, too.
        """
        described = [client.describe(self.model) for client in self.clients]
        roles: dict[int, str | None] = {k: c.role for k, c in enumerate(described) if c.role}
        only_ours = all(client.is_ours for client in self.clients)
        if self.hand_over.parameters()["policy"] is not None:
            roles |= {k: c.role for k, c in enumerate(described) if c.entries is not None}
            only_ours = False  # what roles do not say, the policy may
        used = roles or names_nodes(self.lifecycle)
        used = used or is_shared(self.network, described, self.lifecycle)
        if self.network is not None and not used and only_ours:
            yield Problem(
                ("network",), f"has no effect: no client has a role{spanning(self.network)}"
            )
        if not roles and only_ours:
            yield from idle_options(self.hand_over)
        if self.network is None and roles:
            yield Problem(
                ("network",),
                "is required, since KV entries go from clients with role prefill to those with "
                "role decode; such as {bandwidth: 400 Gb/s, latency: 1 ms}",
            )
        flows = FLOWING_ROLES.intersection(roles.values())  # checked when clients are there
        if roles and only_ours and not flows and "prefill" not in roles.values():
            yield self._nothing_to_decode(next(iter(roles)))
        if roles:
            by_model = self.workload.all_name_models
            named = map(NamedTraits, [client.name for client in self.clients], described)
            yield from unlike_engines(dict(enumerate(named)), by_model=by_model)

    def _nothing_to_decode(self, position: int) -> Problem:
        if "role" not in self.clients[position].parameters():
            text = "decodes what a client with role prefill began, and there is none; add one"
            return Problem(("clients", position), text)
        text = "has no effect: no client has role prefill; the others decode what they prefill"
        return Problem(("clients", position, "role"), text)

    def _unserved_stages(self) -> Iterable[Problem]:
        served = {stage for client in self.clients for stage in client.stages}
        stages = self.workload.stages
        for position, stage in enumerate(stages):
            place = ("workload", "pipeline", position)
            if stage not in served:
                offers = (f"{client.name}: {', '.join(client.stages)}" for client in self.clients)
                yield Problem(
                    place,
                    f"no client serves {brief(stage)}; the clients serve {listed(offers, '; ')}",
                )
            elif lacking := [
                kind for kind in self.workload.leads_to(position) if kind not in served
            ]:
                text = f"leads to {brief(lacking[0])}, which no client serves; add one that does"
                yield Problem(place, text)
            elif stage == Decode.kind and stages[position - 1] not in (Prefill.kind, Decode.kind):
                yield Problem(
                    place,
                    f"decode must follow prefill or decode directly, which leave the KV entries "
                    f"on the client; got it after {brief(stages[position - 1])}",
                )


_ONE_TOKEN = {"type": "fixed", "tokens": 1}
_ONE_REQUEST = {
    "lengths": {
        "type": "synthetic",
        "prompt": _ONE_TOKEN,
        "output": _ONE_TOKEN,
        "num_requests": 1,
    },
    "arrivals": {"type": "all_at_once"},
}


class Engines(Scenario):
    """A scenario of which single steps are asked for: without a workload, one request."""

    workload: WorkloadSpec = Field(_ONE_REQUEST, validate_default=True)


def _type(router: Part) -> str:
    return str(router.model_dump(by_alias=True)["type"])
