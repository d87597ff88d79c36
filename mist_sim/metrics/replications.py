"""Independent runs of one scenario: means of their metrics, with confidence intervals."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from math import isnan, nan, sqrt
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from mist_sim.core import result_warnings as kinds
from mist_sim.core.result_warnings import ResultWarning, of_data, over_runs
from mist_sim.errors import ScenarioError, brief, did_you_mean
from mist_sim.metrics.expected_errors import shares_with_verdicts, with_verdicts
from mist_sim.metrics.tables import ONE_LINE, Findings, Presenter
from mist_sim.output import json_text, write_text

if TYPE_CHECKING:
    import pandas as pd

CONFIDENCE_LEVEL = 0.95
# keys of a summary that are the same in every run
_NAMES = (
    "engines",
    "kernels",
    "estimates",
    "assumed",
    "assumed_host",
    "collectives",
    "expected_errors",
    "power_estimates",
    "prices",
)


_ALIKE = (
    "All replications are equal: nothing that is drawn at random shows in the results. The times "
    "and lengths of a trace are not drawn."
)


class Estimate(NamedTuple):
    """The mean of a metric over replications, and the half width of its confidence interval."""

    mean: float
    half_width: float

    @property
    def low(self) -> float:
        """The lower end of the interval."""
        return self.mean - self.half_width

    @property
    def high(self) -> float:
        """The upper end of the interval."""
        return self.mean + self.half_width


def estimate(values: list[float]) -> Estimate:
    """Return the mean of a sample with Student's t interval at 95 %.

    NaN values, of runs without a sample, are left out; fewer than two others give no interval.
    Source: Law, Simulation Modeling and Analysis (5th ed.), §9.4.1, "fixed sample size".
    """
    known = [value for value in values if not isnan(value)]
    if not known:
        return Estimate(nan, nan)
    if len(known) < 2:
        return Estimate(known[0], nan)
    from scipy.special import stdtrit

    quantile = float(stdtrit(len(known) - 1, (1 + CONFIDENCE_LEVEL) / 2))
    error = float(np.std(known, ddof=1)) / sqrt(len(known))
    return Estimate(float(np.mean(known)), quantile * error)


@dataclass(frozen=True, repr=False)
class Replications(Findings):
    """Runs of one scenario that differ in their seeds only.

    seeds: one per run. summaries: each run's `Result.summary`, in that order.
    scenario: the resolved scenario as YAML text. title: description of what was simulated.
    presenter: shows the runs as tables.
    """

    seeds: tuple[int, ...]
    summaries: tuple[Mapping[str, Any], ...]
    scenario: str
    title: str = ""
    presenter: Presenter = ONE_LINE

    @cached_property
    def runs(self) -> pd.DataFrame:
        """A row a run: its seed, and every number of its summary."""
        import pandas as pd

        rows = [dict(numbers_of(summary)) for summary in self.summaries]
        return pd.DataFrame(
            [{"seed": seed} | row for seed, row in zip(self.seeds, rows, strict=True)]
        )

    def estimate(self, metric: str) -> Estimate:
        """Return mean and interval of a metric of the summary, such as `mean_ttft_ms`."""
        return self.estimates[metric]

    @cached_property
    def estimates(self) -> dict[str, Estimate]:
        """Mean and interval of every metric; of truth values, the share of the runs."""
        columns = self.runs.drop(columns="seed").astype(float)
        return {str(name): estimate(list(columns[name])) for name in columns}

    def difference(self, other: Replications, metric: str) -> Estimate:
        """Return how much larger a metric is here than there, by pairs of runs with equal seeds.

        Both have the same requests then, so the interval is narrower than those of the means.
        Raises ScenarioError for other seeds, and for a metric that one of them has not.
        """
        if self.seeds != other.seeds:
            raise ScenarioError("other must be runs with the same seeds; set seed and replications")
        for runs in (self.runs, other.runs):
            if metric not in runs:
                hint = did_you_mean(metric, [*self.estimates])
                raise ScenarioError(f"metric {brief(metric)} is not in every summary{hint}")
        return estimate(list(self.runs[metric].astype(float) - other.runs[metric].astype(float)))

    @property
    def slo(self) -> dict[str, dict[str, Any]]:
        """The mean of every figure beside its limit, as in a run's summary; {} without limits.

        A limit is kept when the mean keeps it, and no run is without a figure because too many of
        its requests failed.
        """
        found = {}
        for name, verdict in self.summaries[0].get("slo", {}).items():
            runs = [summary["slo"][name] for summary in self.summaries]
            mean = self.estimate(f"slo.{name}.value").mean
            has_figures = all(run["kept"] or not isnan(run["value"]) for run in runs)
            found[name] = verdict | {
                "value": mean,
                "kept": has_figures and not mean > verdict["limit"],
            }
        means = {name: self.estimate(name).mean for name in ("mean_ttft_ms", "mean_e2el_ms")}
        return with_verdicts(found, {**self.summaries[0], **means}) if found else {}

    @property
    def slo_shares(self) -> dict[str, dict[str, Any]]:
        """The mean share of good requests beside the one asked for, as in a run's summary."""
        found = {}
        for name, share in self.summaries[0].get("slo_shares", {}).items():
            mean = self.estimate(f"slo_shares.{name}.value").mean
            found[name] = share | {"value": mean, "kept": mean >= share["asked"]}
        return shares_with_verdicts(found, self.slo)

    @property
    def are_equal(self) -> bool:
        """Whether all runs gave the same numbers, so that randomness has no effect."""
        rows = self.runs.drop(columns="seed")
        return bool((rows.nunique(dropna=False) == 1).all())

    @cached_property
    def warnings(self) -> tuple[ResultWarning, ...]:
        """Warnings of the runs, and a warning if all runs are equal."""
        found = over_runs([of_data(summary) for summary in self.summaries])
        return (ResultWarning(kinds.ALIKE, _ALIKE), *found) if self.are_equal else found

    @cached_property
    def data(self) -> dict[str, Any]:
        """A run's summary with the means over all runs, and the ends of their intervals."""
        intervals = {name: [found.low, found.high] for name, found in self.estimates.items()}
        first = self.summaries[0]
        return {
            **{name: found.mean for name, found in self.estimates.items()},
            **{name: dict(first[name]) for name in _NAMES if name in first},
            "replications": len(self.seeds),
            "confidence_level": CONFIDENCE_LEVEL,
            "confidence_intervals": intervals,
        }

    def __repr__(self) -> str:
        return f"<Replications: {len(self.seeds)} runs>"

    def write_files(self, folder: Path) -> None:
        """Write summary.json, replications.parquet and scenario.resolved.yaml."""
        write_text(folder / "summary.json", json_text(self.summary))
        write_text(folder / "scenario.resolved.yaml", self.scenario)
        self.runs.to_parquet(folder / "replications.parquet", index=False)


def numbers_of(summary: Mapping[str, Any]) -> Iterator[tuple[str, float]]:
    """Yield the numbers of a summary; numbers in a nested mapping have dotted names."""
    for name, value in summary.items():
        if name == "expected_errors":  # of the simulation, not of its random numbers
            continue
        if isinstance(value, Mapping):
            yield from ((f"{name}.{inner}", item) for inner, item in numbers_of(value))
        elif isinstance(value, int | float):
            yield name, value
