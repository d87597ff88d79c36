"""A space: a scenario with all combinations of values, each a configuration with its outcome."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from math import inf, isfinite, isnan, nan
from pathlib import Path
from typing import Any, Literal

from mist_sim.bounds import COPIES
from mist_sim.core.result_warnings import ResultWarning, of_data
from mist_sim.errors import ScenarioError, brief, did_you_mean
from mist_sim.inputs import check_plain
from mist_sim.scenario import Scenario
from mist_sim.scenario.format import yaml_text
from mist_sim.search.designs import DESIGNS, Fleet, proposed
from mist_sim.search.goodput_result import Goodput
from mist_sim.search.spaces.objectives import Constraints, Objective, constraints_of, objectives_of
from mist_sim.studies.built import Rates
from mist_sim.studies.points import combinations
from mist_sim.studies.task import Failure
from mist_sim.studies.varied_gpus import varied
from mist_sim.studies.verdicts.trials import Trial

_NUMBER = r"[+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?"
_RANGE = re.compile(rf"\s*({_NUMBER}):({_NUMBER})(?::(x?)({_NUMBER}))?(?:\s+(\S+))?\s*")
_NEAR = 1e-9  # steps by which rounding may pass the last value


def values_of(what: str, given: object) -> list[Any]:
    """Return the values to try. given: a list, or a range as text (see `spread`).

    what: for messages. Raises ScenarioError for others, and where there is none.
    """
    if isinstance(given, str):
        return spread(what, given)
    if isinstance(given, Mapping) or not isinstance(given, list | tuple) or not given:
        raise ScenarioError(
            f"{what}: must be a list of values, or a range such as 1:8, 1:8:2 or 128:2048:x2, got "
            f"{brief(given)}"
        )
    return list(given)


def spread(what: str, text: str) -> list[Any]:
    """Return the values of a range: FIRST:LAST, FIRST:LAST:STEP or FIRST:LAST:xFACTOR.

    A unit may follow, as in "10:40:10 /s". Whole numbers stay whole.
    Raises ScenarioError for other texts, and ranges without an end or with too many values.
    """
    match = _RANGE.fullmatch(text)
    if match is None:
        raise ScenarioError(
            f"{what}: must be FIRST:LAST, FIRST:LAST:STEP or FIRST:LAST:xFACTOR, such as 1:8:2 or "
            f"'10:40:10 /s', got {brief(text)}"
        )
    first, last, times, step, unit = match.groups()
    low, high = float(first), float(last)
    by = float(step) if step else 1.0
    grows = by > 1 and low > 0 if times else by > 0
    if not (grows and low <= high and all(map(isfinite, (low, high, by)))):
        raise ScenarioError(
            f"{what}: must go up from FIRST to LAST by a STEP > 0, or from FIRST > 0 by a "
            f"FACTOR > 1, got {brief(text)}"
        )
    is_whole = all(float(each).is_integer() for each in (first, step or "1"))
    found: list[Any] = []
    value, number = low, 0
    while value <= high + _NEAR * by:
        if number >= COPIES:
            raise ScenarioError(f"{what}: must give <= {COPIES} values, got {brief(text)}")
        plain: int | float = round(value) if is_whole else float(f"{value:.10g}")
        found.append(f"{plain} {unit}" if unit else plain)
        number += 1
        value = low * by**number if times else low + by * number
    return found


Status = Literal[
    "front", "kept", "undecided", "stopped", "proved", "behind", "excluded", "failed", "not tried"
]
"""front: no other is ahead of it. kept: keeps all constraints, and another one is ahead. undecided:
it attains every rate that was tried, so that it may be ahead of all. stopped: one run showed that
it is not on the front. proved: a bound did. behind: it was not run, since another one that
is ahead in all objectives keeps the limits. excluded: it breaks a constraint. failed: it cannot be,
or a run of it failed. not tried: the method did not come to it."""


@dataclass(eq=False)
class Configuration:
    """A combination of values. number: its place in the space, from 0. values: by key.

    found: its scenario; None if impossible. kind: of its design; "": none.
    known: figures that need no run: "num_gpus", "usd_per_hour", "watts"; NaN if unknown.
    bound: a proved upper bound of its rate (requests per second); infinite: no bound.
    expected_errors, assumed_host: as in `Goodput`. known_warnings: of all results of its runs.
    figures: of the objectives, and others that came by. goodput: where it was searched. trial: the
    run that told without a search. broken: constraints that it breaks, each with the reason.
    failure: why it is impossible, or a run failed. reason: a sentence for the status. guess:
        approximate rate (requests per second), for methods that learn; NaN: unknown.
    """

    number: int
    name: str
    values: Mapping[str, Any]
    found: Scenario | None = None
    kind: str = ""
    place: float = 0.0
    failure: Failure | None = None
    known: dict[str, float] = field(default_factory=dict)
    bound: float = inf
    expected_errors: Mapping[str, Any] = field(default_factory=dict)
    assumed_host: Mapping[str, Any] = field(default_factory=dict)
    known_warnings: tuple[ResultWarning, ...] = ()
    status: Status = "not tried"
    figures: dict[str, float] = field(default_factory=dict)
    goodput: Goodput | None = None
    trial: Trial | None = None
    summary: Mapping[str, Any] | None = None
    broken: dict[str, str] = field(default_factory=dict)
    reason: str = ""
    guess: float = nan

    @property
    def scenario(self) -> Scenario:
        """Its scenario. Raises ScenarioError where it cannot be."""
        if self.found is None:
            raise ScenarioError(f"{self.name} cannot be: {self.failure}")
        return self.found

    @property
    def own_rate(self) -> float:
        """Requests per second of the scenario as it stands."""
        return Rates(self.scenario).own

    @property
    def rate(self) -> float:
        """The goodput, requests per second; NaN where it was not searched, or has no end."""
        return self.goodput.rate if self.goodput else nan

    @property
    def is_open(self) -> bool:
        """Whether all rates tried are attained."""
        return self.goodput is not None and self.goodput.is_open

    @property
    def lowest(self) -> float:
        """The goodput or, if all rates tried are attained, the highest of them; 0 without."""
        if self.goodput is None or (isnan(self.rate) and not self.is_open):
            return 0.0
        return self.goodput.bounds[0] if self.is_open else self.rate

    @property
    def missed_at(self) -> float:
        """The rate that it was not seen to serve in its only run; NaN without one."""
        return self.trial.rate if self.status == "stopped" and self.trial else nan

    @property
    def trials(self) -> list[Trial]:
        """All runs at a rate, in order of the rates."""
        found = [self.trial] if self.trial is not None else []
        if self.goodput is not None:
            found += [trial for search in self.goodput.searches for trial in search.trials]
        return sorted(found, key=lambda trial: trial.rate)

    @property
    def warnings(self) -> tuple[ResultWarning, ...]:
        """Warnings of its run at its own rate, and of its search; without one, of its trial."""
        found = of_data(self.summary) if self.summary is not None else ()
        if self.goodput is not None:
            return (*found, *self.goodput.warnings)
        return (*found, *(self.trial.warnings if self.trial is not None else ()))

    @property
    def num_runs(self) -> int:
        """How many runs were made of it."""
        return len(self.trials) + (self.summary is not None)

    @property
    def num_requests(self) -> int:
        """Requests that its runs looked at."""
        ended = self.summary or {"completed": 0, "failed": 0}
        own = int(ended["completed"]) + int(ended["failed"])
        return own + sum(trial.num_requests for trial in self.trials)

    @property
    def is_fit(self) -> bool:
        """Whether it keeps all constraints in its runs so far, and has all figures."""
        return self.status in ("front", "kept")


QUESTION = ("workload", "slo", "warmup", "seed", "replications")
"""Sections of a scenario that say what is asked for, rather than how it is served."""


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
        cases = {f"cases.{name}": settings for name, settings in self.cases.items()}
        for name, settings in {"vary": self.vary, **cases}.items():
            for key in settings:
                if key.partition(".")[0] in QUESTION:
                    raise ScenarioError(
                        f"{name}: {key} must not be varied, since another {key.partition('.')[0]} "
                        "is another question; mist goodput answers one at a time, mist run --vary "
                        "and mist sweep without --goodput try such keys at the given rate"
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
            if design not in DESIGNS:
                raise ScenarioError(
                    f"designs must be of {', '.join(DESIGNS)}, got {brief(design)}"
                    f"{did_you_mean(str(design), DESIGNS)}"
                )
        if len(set(self.designs)) < len(self.designs):
            raise ScenarioError(f"designs must differ, got {brief(list(self.designs))}")

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
        for words, values, changes in combinations(self.cases, self.vary):
            found += self._of_point(" ".join(words), values, changes, len(found))
            if len(found) > COPIES:
                raise ScenarioError(
                    f"a space must have <= {COPIES} configurations; try fewer values"
                )
        return found

    def _of_point(
        self, name: str, values: dict[str, Any], changes: Mapping[str, Any], first: int
    ) -> list[Configuration]:
        try:
            scenario = varied(self._priced, changes, trusted=self.trusted)
            if not self.designs:
                return [Configuration(first, name, values, scenario)]
            fleet = Fleet(scenario)
        except ScenarioError as error:
            return [Configuration(first, name, values, failure=Failure.of(error).plain)]
        found: list[Configuration] = []
        for kind in self.designs:
            proposals = proposed(kind, fleet)
            for position, (design, it) in enumerate(proposals):
                number = first + len(found)
                own = values | {"design": design}
                label = f"{name} {design}".strip()
                made = it if isinstance(it, Scenario) else None
                failure = Failure.of(it).plain if isinstance(it, ScenarioError) else None
                place = round(position / len(proposals), 3)
                found.append(Configuration(number, label, own, made, kind, place, failure))
        return found


_KEYS = ("scenario", "vary", "cases", "designs", "constraints", "objectives")


def read_space(
    path: str | Path,
    overrides: Mapping[str, Any] | None = None,
    *,
    allow_programs: bool = True,
) -> Space:
    """Return the space of a YAML file.

    overrides: values of its scenario by dotted path. allow_programs: whether programs that the
    files name may run; False is for files of others.
    Raises ScenarioError for what is wrong with the file, and with its scenario.
    """
    place = Path(path)
    source = str(path)
    data = yaml_text.parse(yaml_text.read_text(place), source)
    if not isinstance(data, Mapping):
        raise ScenarioError(f"{source}: must be a mapping with scenario, vary and objectives")
    check_plain(dict(data), source)
    _check_keys(source, data)
    scenario = _scenario(source, data["scenario"], place.parent, overrides or {}, allow_programs)
    try:
        return Space(
            scenario=scenario,
            vary={
                key: values_of(f"vary {key}", values)
                for key, values in _mapping("vary", data, "keys to values").items()
            },
            cases=_cases(_mapping("cases", data, "names to settings")),
            designs=_words("designs", data.get("designs") or []),
            constraints=constraints_of(data.get("constraints") or {}),
            objectives=objectives_of(data["objectives"]),
            trusted=allow_programs,
        )
    except ScenarioError as error:
        raise ScenarioError(f"{source}: {error}") from None


def _check_keys(source: str, data: Mapping[str, Any]) -> None:
    for key in data:
        if key not in _KEYS:
            told = " is a key of a scenario; name its file under scenario."
            is_scenario = key in Scenario.model_fields
            hint = told if is_scenario else f" is unknown{did_you_mean(str(key), _KEYS)}"
            raise ScenarioError(f"{source}: {brief(key)}{hint} Known: {', '.join(_KEYS)}")
    for key in ("scenario", "objectives"):
        if key not in data:
            raise ScenarioError(f"{source}: {key} is required; known: {', '.join(_KEYS)}")


def _scenario(
    source: str, said: object, folder: Path, overrides: Mapping[str, Any], allowed: bool
) -> Scenario:
    """Return the scenario: a file beside that of the space, a preset, or what is written there."""
    if isinstance(said, str):
        beside = folder / said
        name = str(beside) if beside.is_file() else said
        return Scenario.load(name, overrides, allow_programs=allowed)
    if not isinstance(said, Mapping):
        raise ScenarioError(
            f"{source}: scenario must be a file, a preset or a mapping, got {brief(said)}"
        )
    text = yaml_text.dump(dict(said))
    return Scenario.from_yaml(text, overrides, source=f"{source}: scenario", allow_programs=allowed)


def _mapping(name: str, data: Mapping[str, Any], what: str) -> dict[str, Any]:
    given = data.get(name) or {}
    if not isinstance(given, Mapping):
        raise ScenarioError(f"{name} must be a mapping of {what}, got {brief(given)}")
    return {str(key): each for key, each in given.items()}


def _cases(given: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    for name, settings in given.items():
        if not isinstance(settings, Mapping | None):
            raise ScenarioError(
                f"cases.{name}: must be a mapping of keys to values, got {brief(settings)}"
            )
    return {name: dict(settings or {}) for name, settings in given.items()}


def _words(what: str, given: object) -> tuple[str, ...]:
    found = [given] if isinstance(given, str) else given
    if not isinstance(found, list | tuple) or not all(isinstance(each, str) for each in found):
        raise ScenarioError(f"{what} must be a list of words, got {brief(given)}")
    return tuple(found)
