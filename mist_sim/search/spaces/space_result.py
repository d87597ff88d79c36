"""The result of a search: a row a configuration, the front, and a sentence on the best.

Some figures are known without a run (GPUs, dollars an hour), others are goodput divided by such a
number. A configuration that does not lead in a known figure has to lead in one of the goodputs, and
this gives the rate that it must reach to join the front. So one run at that rate shows whether a
search can pay.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from math import inf, isnan, nan
from typing import TYPE_CHECKING, Any, Self

from mist_sim.core.result_warnings import ResultWarning, merged, of_data, of_points
from mist_sim.errors import ScenarioError, brief, did_you_mean
from mist_sim.metrics.expected_errors import biases_of
from mist_sim.metrics.latency import limit_title
from mist_sim.report.elements import labels_of, setting_cells
from mist_sim.report.pictures.findings import front_picture
from mist_sim.report.presenters import SPACE
from mist_sim.search.ranking import BIASED, NEAR, Ranked, lowest, rivals
from mist_sim.search.spaces.objectives import OBJECTIVES, Objective
from mist_sim.search.spaces.space import Configuration, Space
from mist_sim.studies.tabled import Content, Tabled

if TYPE_CHECKING:
    import pandas as pd


def front(several: Iterable[Configuration], objectives: Sequence[Objective]) -> list[Configuration]:
    """Return those that no other dominates: equal in all figures and better in one.

    One without the figure of an objective is on no front.
    """
    names = [each.name for each in objectives]
    fit = [
        each for each in several if not any(isnan(each.figures.get(name, nan)) for name in names)
    ]
    return [
        each
        for each in fit
        if not any(dominates(other.figures, each.figures, objectives) for other in fit)
    ]


def dominates(
    one: Mapping[str, float], other: Mapping[str, float], objectives: Iterable[Objective]
) -> bool:
    """Tell whether one is as good as another in everything, and better in something."""
    is_better = False
    for each in objectives:
        mine, yours = one[each.name], other[each.name]
        if each.ahead(yours, mine):
            return False
        is_better = is_better or each.ahead(mine, yours)
    return is_better


def rate_to_beat(
    known: Mapping[str, float], rivals: Iterable[Configuration], objectives: Sequence[Objective]
) -> float:
    """Return the rate that a configuration must exceed so that no rival dominates or equals it.

    known: of the configuration. rivals: have a goodput, where it is an objective. objectives: known
    ones and goodputs. 0 if no rival does.
    """
    of_rate = [each for each in objectives if each.source == "rate"]
    fixed = [each for each in objectives if each.source == "known"]
    highest = 0.0
    for rival in rivals:
        if any(each.ahead(known[each.name], rival.known[each.name]) for each in fixed):
            continue
        needed = min(
            (rival.rate * each.scale(known) / each.scale(rival.known) for each in of_rate),
            default=inf,
        )
        highest = max(highest, needed)
    return highest


def at_least(found: Configuration) -> dict[str, float]:
    """Return lower bounds of its goodput, and of objectives that divide it by known figures.

    Requests per second, also over GPUs or dollars; empty unless all rates tried are attained.
    """
    if found.status != "undecided" or found.goodput is None:
        return {}
    low = found.goodput.interval[0]
    bounds = {
        each.name: low / scale
        for each in OBJECTIVES.values()
        if each.source == "rate" and (scale := each.scale(found.known))
    }
    return {name: value for name, value in bounds.items() if not isnan(value)}


_OF_TRIALS = ("rate", "verdict", "attainment", "num_requests")
_SHOWN_RUNS = ("p50_ttft_ms", "p99_ttft_ms", "p50_tpot_ms", "p99_tpot_ms", "good_request_fraction")


@dataclass(frozen=True, repr=False)
class SpaceSearch(Tabled):
    """The outcome of every configuration of a space.

    rows: plain data per configuration, in the order of the space. objectives: their names. options:
        of the search. title: of the scenario. sentence: names the best. best: the scenario, as YAML
        text, of each configuration on the front, by the number of its row.
    """

    presenter = SPACE
    stem = "search"

    rows: tuple[Mapping[str, Any], ...]
    objectives: tuple[str, ...]
    options: Mapping[str, Any]
    title: str
    sentence: str
    best: Mapping[int, str]

    @classmethod
    def of(
        cls,
        space: Space,
        options: Mapping[str, Any],
        several: Sequence[Configuration],
        told: Sequence[Configuration],
        problem: str = "",
    ) -> Self:
        """Return the result of a search.

        told: those that were evaluated, in its order. problem: why none of them is the best.
        """
        return cls(
            rows=tuple(map(_row, several)),
            objectives=tuple(each.name for each in space.objectives),
            options=dict(options),
            title=space.scenario.headline_without(space.vary),
            sentence=problem or _sentence(space, len(several), told),
            best={
                each.number: each.scenario.resolved() for each in several if each.status == "front"
            },
        )

    @property
    def front(self) -> list[Mapping[str, Any]]:
        """The rows on the front, the best first by the first objective."""
        objective = OBJECTIVES[self.objectives[0]]
        sign = -1 if objective.better == "more" else 1
        found = [row for row in self.rows if row["status"] == "front"]
        return sorted(found, key=lambda row: (sign * row["figures"][objective.name], row["number"]))

    @property
    def cells(self) -> Iterator[dict[str, Any]]:
        """A row per configuration: settings, seed, status, reason, figures, runs, requests."""
        for row in self.rows:
            yield {
                **{name: row[name] for name in ("number", "name")},
                **setting_cells(row["values"]),
                **{name: row[name] for name in ("seed", "status", "reason")},
                **row["figures"],
                **{name: row[name] for name in ("bound", "num_runs", "num_requests")},
            }

    @cached_property
    def table(self) -> pd.DataFrame:
        """A row per configuration, as `cells`; seeds are whole numbers."""
        return super().table.astype({"seed": "Int64"})

    @property
    def warnings(self) -> tuple[ResultWarning, ...]:
        """Warnings of its configurations, those of the front first."""
        rows = sorted(self.rows, key=lambda row: row["status"] != "front")
        return of_points({row["name"]: of_data(row) for row in rows})

    @property
    def data(self) -> dict[str, Any]:
        """Everything but the warnings as plain data."""
        statuses = Counter(row["status"] for row in self.rows)
        return {
            "title": self.title,
            "sentence": self.sentence,
            "objectives": list(self.objectives),
            "labels": labels_of(list(dict.fromkeys(key for r in self.rows for key in r["values"]))),
            "titles": {name: [found.title, found.unit] for name, found in OBJECTIVES.items()},
            "better": {name: OBJECTIVES[name].better for name in self.objectives},
            "options": dict(self.options),
            "front": [row["number"] for row in self.front],
            "statuses": dict(statuses),
            "num_runs": sum(row["num_runs"] for row in self.rows),
            "num_requests": sum(row["num_requests"] for row in self.rows),
            "rows": [dict(row) for row in self.rows],
        }

    def row(self, named: str) -> Mapping[str, Any]:
        """Return the row with a number or a name. Raises ScenarioError if there is none."""
        return row_of(self.rows, named)

    def __repr__(self) -> str:
        return f"<SpaceSearch: {len(self.rows)} configurations, {len(self.best)} on the front>"

    @property
    def files(self) -> dict[str, Content]:
        """The table, the scenarios of the front, and its picture for two objectives.

        The best by the first objective, if there is one, is best.yaml.
        """
        found: dict[str, Content] = {"search.parquet": self.table}
        for place, row in enumerate(self.front):
            name = f"front-{row['number']}.yaml" if place else "best.yaml"
            found[name] = self.best[row["number"]]
        if self.best and len(self.objectives) > 1:
            found["front.png"] = partial(front_picture, self.summary)
        return found


def row_of(rows: Sequence[Mapping[str, Any]], named: str) -> Mapping[str, Any]:
    """Return the row with a number or a name. Raises ScenarioError if there is none."""
    found = [row for row in rows if named in (str(row["number"]), row["name"])]
    if not found:
        names = [str(row["name"]) for row in rows]
        raise ScenarioError(
            f"--explain must be the number of a row, 0 to {len(rows) - 1}, or its name, got "
            f"{brief(named)}{did_you_mean(named, names)}"
        )
    return found[0]


def _row(found: Configuration) -> dict[str, Any]:
    figures = {**found.known, **found.figures}
    warnings = merged((*found.warnings, *found.known_warnings))
    summary = found.summary
    return {
        "number": found.number,
        "name": found.name,
        "values": dict(found.values),
        "seed": found.found.seed if found.found is not None else None,
        "status": found.status,
        "reason": found.reason,
        "broken": dict(found.broken),
        "figures": {name: value for name, value in figures.items() if not isnan(value)},
        "at_least": at_least(found),
        "interval": list(found.goodput.interval) if found.goodput else None,
        "expected_errors": dict(found.expected_errors),
        "assumed_host": dict(found.assumed_host),
        "warnings": [each.data for each in warnings],
        "bound": found.bound if found.bound < inf else None,
        "num_runs": found.num_runs,
        "num_requests": found.num_requests,
        "trials": [
            {
                **{name: getattr(trial, name) for name in _OF_TRIALS},
                "worst_limit": limit_title(trial.worst_limit, ""),
                "is_whole": trial.is_whole,
            }
            for trial in found.trials
        ],
        "run": {key: summary.get(key) for key in _SHOWN_RUNS} if summary else None,
    }


def _sentence(space: Space, number: int, told: Sequence[Configuration]) -> str:
    """Return which configuration is best, by how much and how certain.

    number: of all configurations. told: as in `SpaceSearch.of`.
    """
    fit = [each for each in told if each.is_fit]
    unbounded = [each for each in told if each.status == "undecided"]
    attain = ""
    if unbounded:
        highest = max(unbounded, key=lambda each: each.guess)
        verb = "attains" if len(unbounded) == 1 else "attain"
        which = f"{highest.name}{_others(len(unbounded) - 1)}"
        attain = f"{which} {verb} all rates tried, up to {highest.guess:.4g} /s"
    objectives = space.objectives
    first = objectives[0]
    if len(objectives) > 1:
        ends = [each for each in fit if each.status == "front"]
        names = []
        for each in objectives:
            best = _best(each, ends)
            names.append(f"{best.name} for {each.name} ({best.figures[each.name]:.4g})")
        words = f"{len(ends)} of {number} are on the front: {'; '.join(names)}."
        words += "" if space.constraints.attainment is None else _where_attained(ends)
        return f"{words} {attain}, and may be on it." if unbounded else words
    best = _best(first, fit)
    value = best.figures[first.name]
    if unbounded:
        num = number - len(unbounded)
        others = f"best of the other {num}" if num > 1 else "other one"
        ahead = "is ahead of" if len(unbounded) == 1 else "are ahead of"
        if any(not at_least(each).get(first.name, nan) > value for each in unbounded):
            ahead = "may be ahead of"
        return (
            f"Undecided: {attain}, and {ahead} {best.name}, the {others}: "
            f"{first.name} {value:.4g}. More requests may tell."
        )
    words = f"{best.name} is best of {number}: {first.name} {value:.4g}"
    equal = [each for each in fit if each is not best and each.figures.get(first.name) == value]
    if equal and first.source != "rate":
        return f"{words}, as {equal[0].name}" + _others(len(equal) - 1) + "."
    if first.source == "rate":
        return words + _how_sure(first, best, told)
    return words + "."


def _where_attained(ends: Sequence[Configuration]) -> str:
    """Return that some of the front have the attainment at less than the workload's rate."""
    searched = [(each, each.goodput.rate) for each in ends if each.goodput]
    less = [each.name for each, rate in searched if rate < each.own_rate]
    if not less:
        return ""
    verb = "serves" if len(less) == 1 else "serve"
    own = f"{searched[0][0].own_rate:.4g} /s"
    return (
        f" Attainment is that at each one's own goodput: {less[0]}{_others(len(less) - 1)} {verb} "
        f"less than the workload's {own}. To require it at {own}, take no goodput as an objective."
    )


def _how_sure(objective: Objective, best: Configuration, told: Sequence[Configuration]) -> str:
    """Return whether another one may be as good, by the intervals of those that were run."""
    fit = [each for each in told if each.is_fit]
    ranked = {
        each: Ranked(
            each.name,
            {objective.name: each.figures[objective.name]},
            biases=biases_of(vars(each.goodput)),
        ).by_rate(each.goodput)
        for each in fit
    }
    if not any(each.goodput.is_steady for each in fit if each.goodput):
        return ", for the workload as it stands; short ones flatter."
    among = rivals(ranked[best], objective.name, list(ranked.values()))
    near = [each.name for each in among]
    near += _untold(objective, lowest(ranked[best], objective.name), told)
    if not near:
        return f", and no other may be more than {100 * NEAR:g} % better, by the 95 % intervals."
    words = f"; undecided against {near[0]}{_others(len(near) - 1)}"
    if among and among[0].biases != ranked[best].biases:
        return f"{words}: {BIASED}."
    return f"{words}, by the 95 % intervals: --most-requests may tell."


def _untold(objective: Objective, least: float, told: Iterable[Configuration]) -> list[str]:
    """Return which were stopped by a run that did not tell, at a rate that would be clearly ahead.

    least: what the best surely has. The ones with most good requests come first.
    """
    found = []
    for each in told:
        trial = each.trial
        if each.status != "stopped" or trial is None or trial.attained is not None:
            continue
        if trial.rate / objective.scale(each.known) > least * (1 + NEAR):
            found.append((-trial.attainment, each.name))
    return [name for _, name in sorted(found)]


def _others(number: int) -> str:
    return f" and {number} more" if number > 0 else ""


def _best(objective: Objective, among: Iterable[Configuration]) -> Configuration:
    """Return the best by one objective; of equals the first."""
    sign = -1 if objective.better == "more" else 1
    return min(among, key=lambda e: (sign * e.figures.get(objective.name, nan), e.number))
