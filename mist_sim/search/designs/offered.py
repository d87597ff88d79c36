"""From one scenario to the designs that it is compared with: together, apart, in between."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from mist_sim.clients.traits import FLOWING_ROLES
from mist_sim.errors import ScenarioError
from mist_sim.scenario import Scenario
from mist_sim.scenario.loading import as_data
from mist_sim.search.designs.bundles import bundles
from mist_sim.search.designs.design_fleet import Fleet
from mist_sim.search.designs.hybrids import around_hybrid, hybrids
from mist_sim.search.designs.proposal import Proposal, impossible
from mist_sim.search.designs.pure import apart, together
from mist_sim.search.designs.resharded import can_re_shard, resharded

_AS_IT_STANDS = "as it stands"
_HYBRIDS, _BUNDLES = "hybrids", "bundles of attention and FFN workers"
_RE_SHARDED = "re-sharding"
_ROUTER = "length_aware"  # of hybrids


@dataclass(frozen=True)
class Designs:
    """Scenarios to compare, by name.

    left_out: impossible designs, or kinds of designs, with the reason. assumed: values that the
        designs need and the scenario lacks, and differences between the designs. uneven: kinds of
        designs whose step times have another origin, so that comparing their throughput is not
        conclusive.
    """

    scenarios: Mapping[str, Scenario]
    left_out: Mapping[str, str] = field(default_factory=dict)
    assumed: Mapping[str, str] = field(default_factory=dict)
    uneven: tuple[str, ...] = ()


def designs_of(scenario: Scenario) -> Designs:
    """Return the designs that the GPUs of a scenario allow; workload, limits and seed stay.

    From engines with or without roles prefill and decode: together, as they are and with other
    chunks (`chunks.py`); every ratio of engines for prompts and for answers; some of TaiChi's
    hybrids; bundles of attention and FFN workers in place of the engines for answers, where the
    model has experts; and engines of several GPUs that re-shard between prompts and answers.
    Engines keep their GPUs and, unless they re-shard, their layout. From a hybrid: aggregations
    with either chunk, and every ratio. Designs are as valid as scenario files are; whether they fit
    into memory shows when they are built.

    Raises ScenarioError for a scenario whose clients cannot change sides, and where there are
    fewer than two designs.
    """
    roles = {part.describe(scenario.model).role for part in scenario.clients}
    if FLOWING_ROLES.intersection(roles):
        return Designs(around_hybrid(scenario))
    fleet = Fleet(scenario)
    found, left_out = _made(fleet)
    if not any(each is scenario for each in found.values()):
        found = {_AS_IT_STANDS: scenario, **found}
    if len(found) < 2:
        reasons = "; ".join(f"{name}: {reason}" for name, reason in left_out.items())
        raise ScenarioError(f"there is no other design for these clients; {reasons}")
    assumed = _assumed(fleet, found)
    uneven = tuple(kind for kind in (_BUNDLES, _RE_SHARDED) if kind in assumed)
    return Designs(found, left_out, assumed, uneven)


def _made(fleet: Fleet) -> tuple[dict[str, Scenario], dict[str, str]]:
    """Return the possible designs, and why other designs are impossible."""
    found: dict[str, Scenario] = {}
    left_out: dict[str, str] = {}
    for kind, propose in _kinds(fleet).items():
        try:
            for name, make in propose(fleet):
                try:
                    found[name] = make()
                except ScenarioError as error:
                    left_out[name] = _reason(error)
        except ScenarioError as error:
            left_out[kind] = _reason(error)
    return found, left_out


def _kinds(fleet: Fleet) -> Mapping[str, Callable[[Fleet], Iterator[Proposal]]]:
    last = {_RE_SHARDED: resharded} if can_re_shard(fleet) else {}
    if fleet.num_clients < 2:
        return {"together": together, "apart": _too_few, **last}
    return {"together": together, "apart": apart, _HYBRIDS: hybrids, _BUNDLES: bundles, **last}


def _too_few(fleet: Fleet) -> Iterator[Proposal]:
    """Yield the reasons against designs that one client cannot form."""
    client = f"clients.{fleet.groups[0].position}"
    problem = ScenarioError(
        f"takes two clients at least, got 1; raise {client}.count, or halve "
        f"{client}.tensor_parallel_size and double the count"
    )
    yield impossible("prompts and answers apart", problem)


def _reason(error: ScenarioError) -> str:
    """Return the first of the problems, of which a design may have many."""
    return str(error).splitlines()[0]


def _assumed(fleet: Fleet, found: Mapping[str, Scenario]) -> dict[str, str]:
    """Return the assumptions of the designs beyond the scenario."""
    assumed: dict[str, str] = {}
    if not fleet.has_network and any(each.network for each in found.values()):
        assumed["network"] = (
            f"{_as_said(fleet.network)}, {fleet.whose_nodes}, for all designs that hand over; to "
            "say another, give clients the roles prefill and decode, and a network"
        )
    has_hybrids = any(_has(each, role="p_heavy") for each in found.values())
    router = as_data(fleet.scenario)["router"]
    if has_hybrids and router["type"] != _ROUTER:
        assumed[_HYBRIDS] = (
            f"router: {_ROUTER}, which knows the limits and the tokens of prompts; the others keep "
            "the scenario's, so that a hybrid may win by its router alone; to give it to all, "
            f"--set router='{{type: {_ROUTER}, ttft: {fleet.scenario.slo.make().ttft!r} s, "
            "if_none: soonest}'"
        )
    if any(_has(each, type_="afd") for each in found.values()):
        assumed[_BUNDLES] = (
            "times follow from the GPUs' figures and the model's sizes, without an "
            "engine's own time a step; such bundles were never measured"
        )
    if any(map(_re_shards, (each for each in found.values() if each is not fleet.scenario))):
        assumed[_RE_SHARDED] = (
            "scheduler: continuous, without prefix caches and async_scheduling, which are not "
            "simulated with it; 80 GiB of host memory a GPU"
        )
    return assumed


def _re_shards(scenario: Scenario) -> bool:
    return any(getattr(part, "resharding", None) is not None for part in scenario.clients)


def _as_said(network: Mapping[str, Any]) -> str:
    """Return a network as in a scenario file."""
    words = {True: "true", False: "false"}
    parts = [f"{k}: {words[v] if isinstance(v, bool) else v}" for k, v in network.items()]
    return "{" + ", ".join(parts) + "}"


def _has(scenario: Scenario, **said: str) -> bool:
    """Tell whether one of the clients says that."""
    return any(
        getattr(part, key, None) == value
        for part in scenario.clients
        for key, value in said.items()
    )
