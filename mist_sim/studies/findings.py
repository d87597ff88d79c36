"""Findings of a study: a row a run, and means with intervals for each point."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import nan
from typing import TYPE_CHECKING, Any

from mist_sim.core import result_warnings as kinds
from mist_sim.core.result_warnings import ResultWarning, of_data, of_points, over_runs
from mist_sim.errors import ScenarioError, brief, did_you_mean, listed
from mist_sim.metrics.keeping import (
    NO_RATE,
    USERS,
    Kept,
    has_no_rate,
    judged,
    sentence,
)
from mist_sim.metrics.replications import CONFIDENCE_LEVEL, Estimate, estimate, numbers_of
from mist_sim.report.elements import setting_cells, value_text
from mist_sim.report.presenters import STUDY
from mist_sim.studies import text_tables
from mist_sim.studies.points import Point
from mist_sim.studies.tabled import Content, Tabled
from mist_sim.studies.task import Failure, Row
from mist_sim.studies.verdicts.request_times import Target, kept_by

if TYPE_CHECKING:
    import pandas as pd

_NO_PRICES = "; runs count dollars only where the scenario has cost, such as cost: {}"
_WHO = "mist compare --goodput tells which serves most."


@dataclass(frozen=True)
class PointRuns:
    """A point, and its runs in order of the seeds as they were asked for.

    runs: each with the summary of its result; the last part of its key is the seed, unless the
        point cannot be. target: required by the limits of a scenario at this point; None: it has
        none, or the subject is a function, whose limits are not known.
    """

    point: Point
    runs: tuple[Row, ...]
    target: Target | None = None

    @property
    def summaries(self) -> list[Mapping[str, Any]]:
        """Summaries of the successful runs."""
        return [run.result for run in self.runs if run.result is not None]

    @property
    def failures(self) -> list[Failure]:
        """Errors of the failed runs."""
        return [run.failure for run in self.runs if run.failure is not None]

    @cached_property
    def estimates(self) -> dict[str, Estimate]:
        """Mean and interval of every number of the summaries."""
        columns: dict[str, list[float]] = {}
        for summary in self.summaries:
            for name, value in numbers_of(summary):
                columns.setdefault(name, []).append(float(value))
        return {name: estimate(values) for name, values in columns.items()}

    @property
    def kept(self) -> Kept | None:
        """Whether it keeps its limits, and how sure that is; None where nothing asks for it."""
        return kept_by(self.target, self.point.name, self.summaries)

    @property
    def warnings(self) -> Iterator[ResultWarning]:
        """What its runs warn of, and the runs that failed.

        A function's own figures that are no summary of a run have no warnings.
        """
        for failure, count in Counter(self.failures).items():
            share = f"{count} of {len(self.runs)} runs " if len(self.runs) > 1 else ""
            yield ResultWarning(kinds.FAILED_RUNS, f"{share}failed: {failure}")
        of_runs = [of_data(each) for each in self.summaries if "warnings" in each]
        if of_runs:
            yield from over_runs(of_runs)


@dataclass(frozen=True, repr=False)
class Study(Tabled):
    """The rows of a study.

    scenario: the varied scenario, as YAML text, if the subject is one. notes: why the runs were not
        sent to other processes; empty if they were.
    shown: numbers of the summary that the table shows; empty: the main ones.
    num_missing: runs that had not finished when the study was stopped. points_missing: points of
        which none had.
    """

    presenter = STUDY
    stem = "study"

    points: tuple[PointRuns, ...]
    title: str = ""
    scenario: str | None = None
    notes: tuple[str, ...] = ()
    shown: tuple[str, ...] = ()
    num_missing: int = 0
    points_missing: int = 0

    @cached_property
    def rows(self) -> pd.DataFrame:
        """A row per run: varied values, seed, error if it failed, and all its numbers."""
        import pandas as pd

        rows = [
            setting_cells(point.point.values)
            | {"seed": _seed(run), "error": str(run.failure or "")}
            | dict(numbers_of(run.result or {}))
            for point in self.points
            for run in point.runs
        ]
        frame = pd.DataFrame(rows)
        return frame.assign(seed=frame["seed"].astype("Int64"))

    @property
    def cells(self) -> Iterator[dict[str, Any]]:
        """A row per point: varied values, and the mean of every number over its seeds."""
        for each in self.points:
            means = {name: found.mean for name, found in each.estimates.items()}
            yield setting_cells(each.point.values) | means

    def estimate(self, metric: str) -> pd.DataFrame:
        """Return a row per point: varied values; mean, low and high end of the 95 % interval.

        metric: a number of a run's summary, such as "p99_ttft_ms", or one of your own figures.
        Raises ScenarioError for one that no run has.
        """
        import pandas as pd

        known = {name for each in self.points for name in each.estimates}
        if metric not in known:
            needs_prices = metric.endswith("_usd") and not any(n.endswith("_usd") for n in known)
            hint = _NO_PRICES if needs_prices else did_you_mean(metric, sorted(known))
            raise ScenarioError(
                f"metric must be a number of the runs, such as p99_ttft_ms, got {brief(metric)}"
                f"{hint}"
            )
        found = [each.estimates.get(metric, Estimate(nan, nan)) for each in self.points]
        return pd.DataFrame(
            [
                setting_cells(each.point.values) | {"mean": e.mean, "low": e.low, "high": e.high}
                for each, e in zip(self.points, found, strict=True)
            ]
        )

    def difference(self, metric: str, *, to: Any, between: str = "") -> pd.DataFrame:
        """Return how much larger a metric is at each point than at its like with another value.

        between: the varied key; empty: the only one. to: its value there. Runs of equal seeds are
        paired, which have the same requests, so intervals are narrower than those of the means.
        A row a point whose key has another value: varied values; mean, low and high end of the 95 %
        interval. Raises ScenarioError for a key or a value that is not varied, and a metric that no
        run has. Source: Law, Simulation Modeling and Analysis (5th ed.), §10.2.1, the paired-t
        interval, with common random numbers (§11.2).
        """
        import pandas as pd

        self.estimate(metric)
        pairs = self._pairs(between, to)
        rows = [
            setting_cells(one.point.values) | {"mean": e.mean, "low": e.low, "high": e.high}
            for one, other in pairs
            for e in [_paired(one, other, metric)]
        ]
        return pd.DataFrame(rows)

    def _pairs(self, between: str, to: Any) -> list[tuple[PointRuns, PointRuns]]:
        """Return each point whose key has another value, with its like that has this one."""
        keys = [*self.points[0].point.values]
        if not between and len(keys) == 1:
            between = keys[0]
        if between not in keys:
            raise ScenarioError(
                f"between must be a varied key, one of {', '.join(keys)}, got {brief(between)}"
            )
        values = [each.point.values[between] for each in self.points]
        if to not in values:
            known = listed(dict.fromkeys(map(value_text, values)))
            raise ScenarioError(f"to must be a value of {between}, one of {known}, got {brief(to)}")
        others = {repr(_without(each, between)): each for each in self._at(between, to)}
        return [
            (each, others[repr(_without(each, between))])
            for each in self.points
            if each.point.values[between] != to
        ]

    def _at(self, key: str, value: Any) -> list[PointRuns]:
        return [each for each in self.points if each.point.values[key] == value]

    def markdown(self, *metrics: str, to: Any = None, between: str = "") -> str:
        """Return a table in Markdown: a row a point, metrics as mean ± half the 95 % interval.

        to, between: with `to`, each metric is followed by its paired `difference`. Raises
        ScenarioError as `difference` does, and without metrics.
        """
        return text_tables.markdown(self._cells(metrics, to, between))

    def latex(self, *metrics: str, to: Any = None, between: str = "") -> str:
        """Return the same table as a `tabular` for LaTeX, with the rules of booktabs."""
        return text_tables.latex(self._cells(metrics, to, between))

    def _cells(
        self, metrics: Sequence[str], to: Any, between: str
    ) -> list[dict[str, str | Estimate | None]]:
        """Return the cells of a table by title, a mapping a row; None: there is no figure."""
        if not metrics:
            raise ScenarioError("a table needs a metric or more, such as p99_ttft_ms, got none")
        for metric in metrics:
            self.estimate(metric)
        like = {} if to is None else {id(a): b for a, b in self._pairs(between, to)}
        found = []
        for each in self.points:
            row: dict[str, str | Estimate | None]
            row = {key: value_text(value) for key, value in each.point.values.items()}
            for metric in metrics:
                row[metric] = each.estimates.get(metric)
                if to is not None:
                    other = like.get(id(each))
                    title = f"{metric}, less that of {value_text(to)}"
                    row[title] = None if other is None else _paired(each, other, metric)
            found.append(row)
        return found

    @property
    def num_failed(self) -> int:
        """Numbers of runs that failed, and of points that cannot be."""
        return sum(len(each.failures) for each in self.points)

    @property
    def warnings(self) -> tuple[ResultWarning, ...]:
        """What its points warn of."""
        notes = [ResultWarning(kinds.NOT_IN_PARALLEL, note) for note in self.notes]
        return (*of_points({each.point.name: each.warnings for each in self.points}), *notes)

    @property
    def _who(self) -> str:
        """What tells which point serves most; empty where users are varied, who have no rate."""
        if not has_no_rate([summary for each in self.points for summary in each.summaries]):
            return _WHO
        return "" if any(USERS in each.point.values for each in self.points) else NO_RATE

    @property
    def verdict(self) -> str:
        """Which points keep their limits, and how sure that is; empty without limits.

        Points none of whose runs worked count as failed, those without any run as missing.
        """
        known = [kept for each in self.points if (kept := each.kept) is not None]
        num_points = len(self.points) + self.points_missing
        if num_points == 1:
            return ""
        if not known:
            return ""
        told = sentence(known, otherwise=self._who if len(known) > 1 else "")
        failed = sum(not each.summaries for each in self.points)
        lost = [f"{failed} of {num_points} points failed."] if failed else []
        if self.points_missing:
            lost.append(f"{self.points_missing} of {num_points} points have not run.")
        return " ".join([*lost, f"Of the rest: {told[0].lower()}{told[1:]}"]) if lost else told

    @property
    def data(self) -> dict[str, Any]:
        """Everything but the warnings as plain data."""
        return {
            "num_points": len(self.points),
            "num_runs": sum(len(each.runs) for each in self.points),
            "num_failed": self.num_failed,
            **({"num_missing": self.num_missing} if self.num_missing else {}),
            "confidence_level": CONFIDENCE_LEVEL,
            "points": [_point_data(each) for each in self.points],
            "verdict": self.verdict,
            **({"shown": list(self.shown)} if self.shown else {}),
        }

    def __repr__(self) -> str:
        return f"<Study: {len(self.points)} points, {len(self.rows)} runs>"

    @property
    def files(self) -> dict[str, Content]:
        """A row a run, and the scenario if it is of one."""
        own = {} if self.scenario is None else {"scenario.resolved.yaml": self.scenario}
        return {"study.csv": self.rows, "study.parquet": self.rows, **own}


def _seed(run: Row) -> int | None:
    return int(run.key[-1]) if len(run.key) > 1 else None


def _point_data(each: PointRuns) -> dict[str, Any]:
    first = each.summaries[0] if each.summaries else {}
    return {
        "name": each.point.name,
        "values": dict(each.point.values),
        "seeds": [seed for run in each.runs if (seed := _seed(run)) is not None],
        "figures": {name: found.mean for name, found in each.estimates.items()},
        "confidence_intervals": {
            name: [found.low, found.high]
            for name, found in each.estimates.items()
            if found.half_width == found.half_width
        },
        "expected_errors": dict(first.get("expected_errors", {})),
        **({"assumed_host": dict(hosts)} if (hosts := first.get("assumed_host")) else {}),
        **({"judged": found} if (found := judged(each.kept, each.summaries)) else {}),
        "errors": [str(failure) for failure in each.failures],
    }


def _without(each: PointRuns, key: str) -> list[tuple[str, Any]]:
    return [(name, value) for name, value in each.point.values.items() if name != key]


def _paired(one: PointRuns, other: PointRuns, metric: str) -> Estimate:
    """Return how much larger a metric is here than there, by pairs of runs with equal seeds."""
    here, there = ({run.key[-1]: run.result for run in each.runs} for each in (one, other))
    pairs = [(here[seed], there[seed]) for seed in here if seed in there]
    values = [
        [float(dict(numbers_of(summary or {})).get(metric, nan)) for summary in pair]
        for pair in pairs
    ]
    return estimate([mine - theirs for mine, theirs in values])
