"""The configurations of a space: a scenario with all combinations of values."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from mist_sim.bounds import COPIES
from mist_sim.errors import ScenarioError, brief, did_you_mean
from mist_sim.scenario import Scenario
from mist_sim.search.designs.bundles import bundles
from mist_sim.search.designs.design_fleet import Fleet
from mist_sim.search.designs.hybrids import hybrids
from mist_sim.search.designs.proposal import Proposal
from mist_sim.search.designs.pure import apart, together
from mist_sim.search.designs.resharded import resharded
from mist_sim.search.planning.question import DESIGNS
from mist_sim.search.spaces.constraints import Constraints
from mist_sim.search.spaces.objectives import Objective
from mist_sim.studies.points import points_of
from mist_sim.studies.task import Failure

QUESTION = ("workload", "slo", "warmup", "seed", "replications")
"""Sections of a scenario that say what is asked for, rather than how it is served."""

_KINDS: Mapping[str, Callable[[Fleet], Iterator[Proposal]]] = {
    "together": together,
    "apart": apart,
    "hybrid": hybrids,
    "afd": bundles,
    "reshard": resharded,
}


@dataclass(frozen=True, kw_only=True)
class Space:
    """A scenario, the values to try, and the objectives.

    scenario: what is varied, with its workload and limits. vary: values by dotted key, all
    combinations. cases: settings that belong together, by name; each is combined with all of
    `vary`. designs: of `DESIGNS`; the engines of each combination are set in all ways of these; ():
    they stay as they are. constraints, objectives: what a configuration has to keep, and which is
    best. trusted: whether programs that the values name may run.

    Raises ScenarioError for a space without anything to try, keys that change what is asked, and
    keys that a case sets too.
    """

    scenario: Scenario
    vary: Mapping[str, Sequence[Any]] = field(default_factory=dict)
    cases: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    designs: tuple[str, ...] = ()
    constraints: Constraints
    objectives: tuple[Objective, ...]
    trusted: bool = True

    def __post_init__(self) -> None:
        if not (self.vary or self.cases or self.designs):
            raise ScenarioError(
                "a space must have vary, cases or designs: it has nothing to try; such as "
                "vary: {clients.0.count: 1:8}"
            )
        for name, settings in {"vary": self.vary, **self._settings}.items():
            for key in settings:
                if key.partition(".")[0] in QUESTION:
                    raise ScenarioError(
                        f"{name}: {key} must not be varied, since another {key.partition('.')[0]} "
                        "is another question; mist sweep and mist run --vary try such keys"
                    )
                if name != "vary" and key in self.vary:
                    raise ScenarioError(f"{name}: {key} is in vary too; leave one out")
        if self.constraints.at_goodput and not any(
            each.source in ("rate", "at goodput") for each in self.objectives
        ):
            raise ScenarioError(
                "constraints.at_goodput has no effect without a goodput among the objectives, such "
                "as goodput_per_usd; leave it out"
            )
        for design in self.designs:
            if design not in _KINDS:
                raise ScenarioError(
                    f"designs must be of {', '.join(DESIGNS)}, got {brief(design)}"
                    f"{did_you_mean(str(design), DESIGNS)}"
                )
        if len(set(self.designs)) < len(self.designs):
            raise ScenarioError(f"designs must differ, got {brief(list(self.designs))}")

    @property
    def _settings(self) -> dict[str, Mapping[str, Any]]:
        return {f"cases.{name}": settings for name, settings in self.cases.items()}

    @cached_property
    def _priced(self) -> Scenario:
        """The scenario, with the catalog's prices if an objective needs prices and it has none."""
        takes_prices = any(each.takes_prices for each in self.objectives)
        if self.scenario.cost is None and takes_prices:
            return self.scenario.changed({"cost": {}}, trusted=self.trusted)
        return self.scenario

    def configurations(self) -> list[Configuration]:
        """Return all combinations, including impossible ones.

        Raises ScenarioError for more than 10,000.
        """
        found: list[Configuration] = []
        points = points_of(self.vary)
        for case, settings in (self.cases or {"": {}}).items():
            for point in points:
                words = [case] * bool(case) + [point.name] * bool(self.vary)
                values = {**({"case": case} if case else {}), **point.values}
                found += self._of_point(
                    " ".join(words), values, {**settings, **point.values}, len(found)
                )
                if len(found) > COPIES:
                    raise ScenarioError(
                        f"a space must have <= {COPIES} configurations; try fewer values"
                    )
        return found

    def _of_point(
        self, name: str, values: dict[str, Any], changes: Mapping[str, Any], first: int
    ) -> list[Configuration]:
        try:
            scenario = self._priced.changed(changes, trusted=self.trusted)
            if not self.designs:
                return [Configuration(first, name, values, scenario)]
            fleet = Fleet(scenario)
        except ScenarioError as error:
            return [Configuration(first, name, values, failure=Failure.of(error))]
        found: list[Configuration] = []
        for kind in self.designs:
            proposals = _proposals(kind, fleet)
            for position, proposal in enumerate(proposals):
                number = first + len(found)
                own = values | {"design": proposal.name}
                label = f"{name} {proposal.name}".strip()
                try:
                    made: Scenario | None = proposal.make()
                    failure = None
                except ScenarioError as error:
                    made, failure = None, Failure.of(error)
                place = round(position / len(proposals), 3)
                found.append(Configuration(number, label, own, made, kind, place, failure))
        return found


@dataclass(frozen=True, eq=False)
class Configuration:
    """A combination. number: its place in the space, from 0. values: by key.

    scenario: None if impossible; `failure` gives the reason. kind: of its design; "": none.
    """

    number: int
    name: str
    values: Mapping[str, Any]
    scenario: Scenario | None = None
    kind: str = ""
    place: float = 0.0
    failure: Failure | None = None


def _proposals(kind: str, fleet: Fleet) -> list[Proposal]:
    """Return the designs of a kind; if there are none, a placeholder with the reason."""
    try:
        return list(_KINDS[kind](fleet))
    except ScenarioError as error:
        problem = error

        def refuse() -> Scenario:
            raise problem

        return [Proposal(kind, refuse)]
