"""Several scenarios on one workload, side by side: goodput, attainment, latencies, spending."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import isnan, nan
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from mist_sim.errors import ScenarioError
from mist_sim.metrics.findings import Findings
from mist_sim.metrics.replications import estimate
from mist_sim.output.texts import json_text, write_text
from mist_sim.scenario import Scenario
from mist_sim.scenario.load import as_data
from mist_sim.scenario.parallel.replicate import run_with_seed, seeds_from
from mist_sim.scenario.parallel.runs import each_in_parallel
from mist_sim.search.counting import Counted
from mist_sim.search.goodput import GoodputOptions, find_goodputs
from mist_sim.search.goodput_result import Goodput
from mist_sim.search.gpus import num_gpus
from mist_sim.search.same_workload import check_same_workload
from mist_sim.search.slo_plane import PlaneOptions, SloPlane, slo_plane

if TYPE_CHECKING:
    import pandas as pd
    from rich.console import RenderableType

Better = Literal["more", "less"]

FIGURES: Mapping[str, Better | None] = {
    "num_gpus": None,
    "goodput": "more",
    "goodput_per_gpu": "more",
    "good_request_fraction": "more",
    "failed": "less",
    "p50_ttft_ms": "less",
    "p90_ttft_ms": "less",
    "p99_ttft_ms": "less",
    "p50_tpot_ms": "less",
    "p90_tpot_ms": "less",
    "p99_tpot_ms": "less",
    "output_throughput": "more",
    "output_throughput_per_gpu": "more",
    "num_hand_overs": None,
    "handed_over_tokens": None,
    "mean_hand_over_ms": "less",
    "energy_j": "less",
    "cost_usd": "less",
    "cost_per_million_output_tokens_usd": "less",
    "good_tokens_per_usd": "more",
    "energy_per_output_token_j": "less",
}
"""What is compared, and which is better. Names as in a run's summary; goodput: the largest arrival
rate that is attained (`find_goodput`), requests per second."""


@dataclass(frozen=True)
class Case:
    """One scenario of a comparison.

    summaries: of its runs, one a seed. goodput: None where nobody asked.
    """

    name: str
    title: str
    num_gpus: int | None
    summaries: tuple[Mapping[str, Any], ...]
    goodput: Goodput | None

    @property
    def figures(self) -> dict[str, float]:
        """What is known of `FIGURES`: means over the seeds; NaN for the rest."""
        gpus = float(self.num_gpus) if self.num_gpus is not None else nan
        own = {"num_gpus": gpus}
        if self.goodput is not None:
            own |= {"goodput": self.goodput.rate, "goodput_per_gpu": self.goodput.per_gpu}
        tokens = self._mean("output_throughput")
        own["output_throughput_per_gpu"] = tokens / gpus if gpus else nan
        return {name: own[name] if name in own else self._mean(name) for name in FIGURES}

    @property
    def expected_errors(self) -> Mapping[str, Any]:
        """How far its TTFT and TPOT may be from a real engine's, as a run's summary has it."""
        found: Mapping[str, Any] = self.summaries[0].get("expected_errors", {})
        return found

    @property
    def warnings(self) -> list[str]:
        """What a reader of the figures has to know."""
        found = []
        if not all(summary["completed"] for summary in self.summaries):
            found.append("no request finished")
        if any(summary["unstable"] for summary in self.summaries):
            found.append("unstable: latencies depend on how long the run is")
        return found + (self.goodput.warnings if self.goodput else [])

    def _mean(self, name: str) -> float:
        return estimate([float(summary.get(name, nan)) for summary in self.summaries]).mean


@dataclass(frozen=True, repr=False)
class Comparison(Findings):
    """Scenarios on one workload. plane: who has most goodput under which limits, if asked for."""

    cases: tuple[Case, ...]
    plane: SloPlane | None = None

    @property
    def table(self) -> pd.DataFrame:
        """A row a scenario, a column a figure."""
        import pandas as pd

        rows = [case.figures for case in self.cases]
        return pd.DataFrame(rows, index=pd.Index([c.name for c in self.cases], name="scenario"))

    @property
    def best(self) -> dict[str, list[str]]:
        """The scenarios with the best value of each figure; none where all are equal."""
        return {name: self._best(name, better) for name, better in FIGURES.items() if better}

    def _best(self, name: str, better: Better) -> list[str]:
        values = {case.name: case.figures[name] for case in self.cases}
        known = [value for value in values.values() if not isnan(value)]
        if len(set(known)) < 2:
            return []
        best = max(known) if better == "more" else min(known)
        return [case for case, value in values.items() if value == best]

    @property
    def summary(self) -> dict[str, Any]:
        """Everything as plain data."""
        return {
            "scenarios": {case.name: case.figures for case in self.cases},
            "best": self.best,
            "goodput": {case.name: case.goodput.summary for case in self.cases if case.goodput},
            "expected_errors": {case.name: dict(case.expected_errors) for case in self.cases},
            "warnings": {case.name: case.warnings for case in self.cases},
            **({"slo_plane": self.plane.summary} if self.plane else {}),
        }

    def _shown(self) -> tuple[str, RenderableType]:
        from mist_sim.report.comparison import comparison_table

        return "", comparison_table(self.summary)

    def __repr__(self) -> str:
        return f"<Comparison: {', '.join(case.name for case in self.cases)}>"

    def write_files(self, folder: Path) -> None:
        """Write comparison.json and comparison.csv, and the files of the plane."""
        write_text(folder / "comparison.json", json_text(self.summary))
        write_text(folder / "comparison.csv", self.table.to_csv(lineterminator="\n"))
        if self.plane is not None:
            self.plane.write_files(folder)


def compare(
    scenarios: Mapping[str, Scenario],
    *,
    goodput: GoodputOptions | None = None,
    plane: PlaneOptions | None = None,
    same_workload: bool = True,
    jobs: int | None = None,
    progress: Callable[[int], None] | None = None,
) -> Comparison:
    """Run scenarios and compare them; the result does not depend on `jobs`.

    scenarios: by name, two or more. goodput: search that of each, too. plane: compare goodput
    under many limits, too. same_workload: refuse scenarios whose requests, limits or warm-up
    differ. progress: called with the runs done.
    Raises ScenarioError for fewer than two, different workloads, and what `simulate` raises.
    """
    if len(scenarios) < 2:
        raise ScenarioError(f"scenarios must be two or more to compare, got {len(scenarios)}")
    if same_workload:
        check_same_workload(scenarios)
    count = Counted(progress)
    gpus = {name: num_gpus(scenario) for name, scenario in scenarios.items()}
    summaries = _run_once(scenarios, jobs, count)
    goodputs: Sequence[Goodput | None] = [None] * len(scenarios)
    if goodput is not None:
        goodputs = find_goodputs(list(scenarios.values()), goodput, jobs=jobs, progress=count.more)
        count.done()
    found = None
    if plane is not None:
        found = slo_plane(scenarios, plane, gpus, jobs=jobs, progress=count.more)
    return Comparison(
        tuple(
            Case(name, scenario.headline, gpus[name], runs, of_case)
            for (name, scenario), runs, of_case in zip(
                scenarios.items(), summaries, goodputs, strict=True
            )
        ),
        found,
    )


def _run_once(
    scenarios: Mapping[str, Scenario], jobs: int | None, count: Counted
) -> list[tuple[dict[str, Any], ...]]:
    """Return the summaries of each scenario as it stands, one a seed."""
    seeds = [seeds_from(s.seed, s.replications) for s in scenarios.values()]
    arguments = [
        (as_data(scenario), seed)
        for scenario, mine in zip(scenarios.values(), seeds, strict=True)
        for seed in mine
    ]
    runs = iter(
        each_in_parallel(run_with_seed, arguments, what="compare", jobs=jobs, progress=count.more)
    )
    count.done()
    return [tuple(next(runs) for _ in mine) for mine in seeds]
