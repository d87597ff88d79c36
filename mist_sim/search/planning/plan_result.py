"""A plan: GPUs to buy, their settings, the certainty, and the alternatives tried."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import isnan
from pathlib import Path
from typing import Any, Literal

from mist_sim.core import result_warnings as kinds
from mist_sim.core.result_warnings import ResultWarning, of_data, of_points
from mist_sim.metrics.spending import HOURS_A_MONTH
from mist_sim.output import json_text, write_text
from mist_sim.report.presenters import PLAN
from mist_sim.scenario import Scenario
from mist_sim.search.goodput_result import Goodput
from mist_sim.search.planning.deployment import Deployment
from mist_sim.studies.tabled import Tabled, write_csv

Confidence = Literal["sure", "likely", "unsure"]
"""Sure: the limits are kept even if step times are off as far as nine in ten are. Likely: the
simulated times keep them, but within that error. Unsure: nothing like it was measured, or no
run told."""


@dataclass(frozen=True)
class Line:
    """A line of the answer. confidence: "" where it is no matter of simulation."""

    name: str
    text: str
    confidence: Confidence | Literal[""] = ""


@dataclass(frozen=True, repr=False)
class Plan(Tabled):
    """A plan: GPUs to buy for a load, and their settings.

    scenario: the answer, ready to run: that run has the figures of `at_rate`. title: the question.
        name, usd_per_hour, num_gpus: of the answer. lines: the answer in words. runner_up: the
        second-best candidate, and why it lost; empty if nothing else was tried. goodput: of the
        answer, with what binds it if time was left. at_rate: summary of a run; its dollars and
        joules a token leave out ramp and end. at_goodput: the spending of a run there
        (`spending_at`). one_less: by name, the figures with one engine failed. deployment: how to
        start it. tried: all simulated candidates, the cheapest first (`table`).
    of_engines: what runs with each engine that could be chosen warn of, by its name.
    excluded: number of candidates excluded by each bound. not_tried: cheaper candidates that are
        not known to miss, the most promising first. left_out: impossible engines, with the reason.
    notes: for the reader of the answer.
    """

    presenter = PLAN
    stem = "plan"

    scenario: Scenario
    title: str
    name: str
    rate: float
    usd_per_hour: float
    num_gpus: int
    lines: Sequence[Line]
    runner_up: str
    goodput: Goodput
    at_rate: Mapping[str, Any]
    at_goodput: Mapping[str, Any] | None
    one_less: Mapping[str, Mapping[str, Any]]
    deployment: Deployment
    tried: Sequence[Mapping[str, Any]]
    excluded: Mapping[str, int] = field(default_factory=dict)
    not_tried: Sequence[str] = ()
    left_out: Mapping[str, str] = field(default_factory=dict)
    notes: Sequence[str] = ()
    of_engines: Mapping[str, Sequence[ResultWarning]] = field(default_factory=dict)

    @property
    def headroom(self) -> float:
        """Goodput over the rate that was asked for, minus one; NaN where no goodput was found."""
        return self.goodput.rate / self.rate - 1

    @property
    def cells(self) -> Sequence[Mapping[str, Any]]:
        """A row a candidate that was simulated.

        design: its settings. verdict: "attained", "missed", "undecided", or "impossible".
        attainment: share of good requests; NaN if impossible. is_whole: whether the run was
        complete; otherwise attainment is an upper bound. limit: the worst limit. estimate: requests
        per second, by which it was ordered. usd_per_hour: of all its GPUs.
        """
        return self.tried

    @property
    def warnings(self) -> tuple[ResultWarning, ...]:
        """Warnings of the answer, its runs, and all engines to choose from."""
        found = [ResultWarning(kinds.PLAN, note) for note in self.notes]
        known = of_points(self.of_engines)
        texts = {(each.kind, each.text) for each in known}
        own = (*of_data(self.at_rate), *self.goodput.warnings)
        found += [each for each in own if (each.kind, each.text) not in texts]
        return (*found, *known)

    @property
    def data(self) -> dict[str, Any]:
        """Everything but the warnings as plain data."""
        cost = "cost_per_million_output_tokens_usd"
        energy = "energy_per_output_token_j"
        at_goodput, binding = self.at_goodput or {}, self.goodput.binding
        return {
            "title": self.title,
            "name": self.name,
            "rate": self.rate,
            "usd_per_hour": self.usd_per_hour,
            "usd_per_month": HOURS_A_MONTH * self.usd_per_hour,
            "num_gpus": self.num_gpus,
            "goodput": self.goodput.rate,
            "goodput_interval": list(self.goodput.interval),
            "headroom": None if isnan(self.headroom) else self.headroom,
            "usd_per_million_output_tokens": self.at_rate.get(cost),
            "usd_per_million_output_tokens_at_goodput": at_goodput.get(cost),
            "joules_per_output_token": self.at_rate.get(energy),
            "joules_per_output_token_at_goodput": at_goodput.get(energy),
            "limits": self.at_rate.get("slo", {}),
            "lines": [vars(line) for line in self.lines],
            "runner_up": self.runner_up,
            "one_less": {name: dict(found) for name, found in self.one_less.items()},
            "binding": binding.summary if binding else None,
            "vllm": list(self.deployment.commands),
            "proxy": list(self.deployment.proxy),
            "deployment_notes": list(self.deployment.notes),
            "expected_errors": self.at_rate.get("expected_errors", {}),
            "assumed_host": dict(self.goodput.assumed_host),
            "tried": list(self.tried),
            "excluded": dict(self.excluded),
            "not_tried": list(self.not_tried),
            "left_out": dict(self.left_out),
        }

    def __repr__(self) -> str:
        return f"<Plan: {self.name}, {self.usd_per_hour:.4g} $/h>"

    def write_files(self, folder: Path) -> None:
        """Write plan.json, tried.csv, scenario.yaml (for `mist run`) and deploy.sh."""
        write_text(folder / "plan.json", json_text(self.summary))
        write_csv(folder / "tried.csv", self.table)
        write_text(folder / "scenario.yaml", self.scenario.resolved())
        write_text(folder / "deploy.sh", self.deployment.text)
