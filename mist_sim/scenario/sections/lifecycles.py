"""The life of clients in a scenario file: failures, drains, starts, autoscaling."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Annotated, Any

from pydantic import BeforeValidator

from mist_sim.durations import SecondsOrLaw
from mist_sim.errors import did_you_mean, listed
from mist_sim.lifecycle import Autoscaler, Autoscaling, Drain, Failures, Lifecycle, OnFailure
from mist_sim.lifecycle import StartUp as StartUpOptions
from mist_sim.scenario.format.families import AUTOSCALER, TIMES, Settings
from mist_sim.scenario.format.fields import Duration
from mist_sim.scenario.format.parts import Part, part_type
from mist_sim.scenario.format.problems import Problem, shown
from mist_sim.scenario.sections.clients import ClientPart
from mist_sim.scenario.sections.networks import has_topology


def _several(value: object) -> object:
    """Return one value, or a list of them, as a tuple."""
    return tuple(value) if isinstance(value, list | tuple) else (value,)


_NAMES = Annotated[tuple[str, ...], BeforeValidator(_several)]
_INSTANTS = Annotated[tuple[Duration, ...], BeforeValidator(_several)]
_FEW: Mapping[Any, Any] = {"clients": _NAMES, "at": _INSTANTS}
_POLICY = {"clients": _NAMES, Autoscaler: Annotated[Part, AUTOSCALER]}


def _list_of(model: type[Part]) -> Any:
    item = Annotated[Part, Settings(model)]
    return Annotated[tuple[item, ...], BeforeValidator(_several)]


_FAILURES = part_type(Failures, meanings={**_FEW, "link": _NAMES | None})
_ON_FAILURE = part_type(OnFailure)
_DRAIN = part_type(Drain, meanings={"clients": _NAMES})
_AUTOSCALING = part_type(Autoscaling, meanings=_POLICY)
_START_UP = part_type(StartUpOptions, meanings={SecondsOrLaw | None: TIMES[SecondsOrLaw | None]})
LIFECYCLE = part_type(
    Lifecycle,
    meanings={
        "failures": _list_of(_FAILURES),
        "on_failure": Annotated[Part, Settings(_ON_FAILURE)],
        "drains": _list_of(_DRAIN),
        "autoscaling": _list_of(_AUTOSCALING),
        "start_up": Annotated[Part, Settings(_START_UP)] | None,
    },
)
PARTS: Mapping[str, type[Part]] = {
    "failures": _FAILURES,
    "on_failure": _ON_FAILURE,
    "drains": _DRAIN,
    "autoscaling": _AUTOSCALING,
    "start_up": _START_UP,
}
"""The mappings that lie in it, by key; a list has many of them."""


def made(part: Part, clients: Sequence[ClientPart]) -> Lifecycle:
    """Return a file's lifecycle with group names replaced by names of clients."""
    said: Lifecycle = part.make()
    groups = {client.name: tuple(client.names) for client in clients}

    def named(names: Iterable[str]) -> tuple[str, ...]:
        return tuple(dict.fromkeys(one for name in names for one in groups.get(name, (name,))))

    return replace(
        said,
        failures=tuple(replace(each, clients=named(each.clients)) for each in said.failures),
        drains=tuple(replace(each, clients=named(each.clients)) for each in said.drains),
        autoscaling=tuple(replace(each, clients=named(each.clients)) for each in said.autoscaling),
    )


def problems_of_lives(
    part: Part | None, clients: Sequence[ClientPart], network: Part | None, *, has_slo: bool
) -> Iterable[Problem]:
    """Yield problems of the lifecycle as a whole. has_slo: whether the scenario has limits."""
    if part is None:
        return
    lives = made(part, clients)
    if lives == Lifecycle():
        yield Problem(("lifecycle",), "has no effect: it is empty; leave it out")
    yield from _unknown_names(part, clients)
    yield from _groups(lives, clients)
    if lives.start_up is not None and not lives.starts_anybody:
        text = "has no effect: no client starts; failures are permanent, and no client is scaled"
        yield Problem(("lifecycle", "start_up"), text)
    has_places = has_topology(network)
    if lives.start_up is not None and lives.start_up.weights_at is not None and not has_places:
        text = "has no effect: the network has no topology"
        yield Problem(("lifecycle", "start_up", "weights_at"), text)
    if lives.on_failure != OnFailure() and not any(one.link is None for one in lives.failures):
        yield Problem(("lifecycle", "on_failure"), "has no effect: there are no failures")
    if not has_places:
        for position, failure in enumerate(lives.failures):
            for key, have in (("node", "nodes"), ("link", "links")):
                if getattr(failure, key) is not None:
                    place = ("lifecycle", "failures", position, key)
                    text = f"must be left out without network.topology, which has {have}"
                    yield Problem(place, text)
    if lives.asks_for_slo and not has_slo:
        text = "must have a limit, which autoscaling by slo_attainment goes by"
        yield Problem(("slo",), text)


def _unknown_names(part: Part, clients: Sequence[ClientPart]) -> Iterable[Problem]:
    known = [name for client in clients for name in dict.fromkeys((client.name, *client.names))]
    for key in ("failures", "drains", "autoscaling"):
        for position, item in enumerate(getattr(part, key)):
            for name in item.clients:
                if name not in known:
                    hint = did_you_mean(name, known)
                    text = f"no client is named {shown(name)}{hint} Known: {listed(known)}"
                    yield Problem(("lifecycle", key, position, "clients"), text)


def _groups(lives: Lifecycle, clients: Sequence[ClientPart]) -> Iterable[Problem]:
    """Yield limits of a group beyond its number of clients."""
    names = {name for client in clients for name in client.names}
    for position, group in enumerate(lives.autoscaling):
        problem = group.problem(len(group.clients))
        if problem and names.issuperset(group.clients):
            field, _, text = problem.partition(" ")
            yield Problem(("lifecycle", "autoscaling", position, field), text)


def names_nodes(part: Part | None) -> bool:
    """Whether a failure is of a node, so that the network has a part to play."""
    return part is not None and any(item.node is not None for item in getattr(part, "failures", ()))
