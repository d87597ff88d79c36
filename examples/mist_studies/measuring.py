"""Runs of designs: each at the printed rate, the best by goodput, long ones at their goodput."""

from __future__ import annotations

from argparse import Namespace
from collections import Counter
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, fields, replace
from functools import cached_property, partial
from math import inf, nan
from pathlib import Path
from typing import Any

import numpy as np
from designs import Design, Engine, Prices

from mist_sim import Scenario, simulate
from mist_sim.errors import ScenarioError
from mist_sim.rng import Streams
from mist_sim.scenario import build
from mist_sim.scenario.load import as_data
from mist_sim.search import SearchOptions, Space, search_space
from mist_sim.search.spaces.constraints import constraints_of
from mist_sim.search.spaces.objectives import objectives_of
from mist_sim.search.spaces.prepared import Preparation
from mist_sim.units import DURATION

START = 300.0  # seconds until a server answers: weights, compilation, CUDA graphs
_ATTAINED = 0.9
_CHANCE = 0.25  # by how much a short run may show too few tokens a second
_INTERVALS = 400  # of a run
_LOWER, _STEPS = 0.92, 12  # of rates in a long run: 8 % less at a time, and 60 % in all
_NO_RATE = 1e-3
_MIDDLE = (0.25, 0.75)  # of the tokens: neither the ramp nor the last long answers


@dataclass(frozen=True)
class Question:
    """A use case: its scenario, whose slo is the p90 of TTFT, its p50, and the paper's answer.

    whole: tokens of a step with whole prompts, which the longest computed one has at most.
    """

    path: Path
    p50: str
    whole: int
    paper: Design
    prices: Prices | None = None
    asked_requests: int | None = None

    def __getstate__(self) -> dict[str, Any]:
        """Leave out what is loaded again in another process."""
        return {each.name: getattr(self, each.name) for each in fields(self)}

    def loaded(self, prices: Prices, num_requests: int | None) -> Question:
        """Return it with prices, and with another number of requests if one is given."""
        return replace(self, prices=prices, asked_requests=num_requests)

    @cached_property
    def scenario(self) -> Scenario:
        number = self.asked_requests
        return Scenario.load(self.path, {"workload.lengths.num_requests": number} if number else {})

    @cached_property
    def said(self) -> dict[str, Any]:
        return as_data(self.scenario)

    @property
    def title(self) -> str:
        limits = f"TTFT p50 {self.p50}, p90 {self.p90:g} s"
        engine = self.said["clients"][0]
        dtype = engine["kv_cache"]["kv_cache_dtype"]
        kv = "as the model" if dtype == "auto" else dtype
        return (
            f"{self.path.stem}: {self.said['model']}, KV entries {kv}, {self.rate:g} /s, {limits}"
        )

    @property
    def rate(self) -> float:
        return float(self.scenario.workload.arrivals.make().rate)

    @property
    def p90(self) -> float:
        return float(self.scenario.slo.make().ttft)

    @cached_property
    def mean_answer(self) -> float:
        """Mean tokens of an answer, of more requests than a run has."""
        longer = self.scenario.changed({"workload.lengths.num_requests": 20_000})
        rows = build(longer).workload.source.sample_rows(Streams(0).generator("lengths"))
        return float(np.mean([row.num_output_tokens for row in rows]))

    @property
    def num_requests(self) -> int:
        return int(self.said["workload"]["lengths"]["num_requests"])

    def settings(self, design: Design) -> dict[str, Any]:
        """Return what a design sets in the scenario, whose other clients and KV entries stay."""
        engine, *others = self.said["clients"]
        found = design.settings(engine["max_model_len"], self.whole, self.prices, others)
        for client in found["clients"][: len(design.pools)]:
            client["kv_cache"] = engine["kv_cache"]
        return found

    def make(self, design: Design, **more: Any) -> Scenario:
        return self.scenario.changed(self.settings(design) | more)

    def least_tp(self, sku: str) -> int:
        """Return the smallest TP at which engines of a kind hold the longest request."""
        for tp in (1, 2, 4, 8):
            if not self._problem(Design((8 // tp, Engine(sku, tp)))):
                return tp
        return 8

    def space(self, designs: list[Design]) -> Space:
        """Return designs as a space that `search_space` searches for tokens for a dollar."""
        kept = {"attainment": _ATTAINED, "at_goodput": {"p50_ttft": self.p50}}
        return Space(
            scenario=self.scenario,
            cases={design.name: self.settings(design) for design in designs},
            constraints=constraints_of(kept),
            objectives=objectives_of(["goodput_per_usd"]),
        )

    def valid(self, designs: list[Design]) -> tuple[list[Design], Counter[str], set[Design]]:
        """Return designs that can be, why others cannot, and which are proved to be too slow.

        Nothing runs: the last are those of which a bound says that they serve less than the
        printed rate, whatever is batched with what.
        """
        space = self.space(designs)
        goodput = SearchOptions().goodput(_ATTAINED, space.constraints.at_goodput)
        known = Preparation(space.objectives, space.constraints, goodput, judged=True)
        prepared = known.all(space.configurations())
        reasons = Counter(_reason(str(each.failure)) for each in prepared if each.failure)
        pairs = [(d, each) for d, each in zip(designs, prepared, strict=True) if not each.failure]
        too_slow = {design for design, each in pairs if each.bound < self.rate}
        return [design for design, _ in pairs], reasons, too_slow

    def _problem(self, design: Design) -> str:
        try:
            build(self.make(design))
        except ScenarioError as error:
            return _reason(str(error))
        return ""


def _reason(error: str) -> str:
    return "the longest request does not fit" if "max_model_len" in error else error


@dataclass(frozen=True)
class Measured:
    """A design at a rate.

    rate: requests per second. throughput: output tokens per second while the middle half of them is
    emitted. p50, p90: of TTFT, seconds. attainment: of the p90's limit.
    utilisation: of the GPUs in that time. duration: seconds until the last answer.
    """

    design: Design
    dollars: float
    rate: float = 0.0
    throughput: float = 0.0
    p50: float = nan
    p90: float = nan
    attainment: float = 0.0
    utilisation: float = 0.0
    stability: str = ""
    refused: int = 0
    duration: float = 0.0

    @property
    def tokens_per_dollar(self) -> float:
        return 3600 * self.throughput / self.dollars

    @property
    def benchmark_dollars(self) -> float:
        """What the same run costs on GPUs, with the time to start."""
        return self.dollars * (START + self.duration) / 3600

    def keeps(self, question: Question) -> bool:
        """Tell whether both limits are kept, and the clients may keep up."""
        return self.over(question) <= 1 and "unstable" not in self.stability and not self.refused

    def over(self, question: Question) -> float:
        """Return the larger of both percentiles over their limits."""
        return max(self.p50 / DURATION.parse(question.p50), self.p90 / question.p90)

    def row(self) -> dict[str, Any]:
        return {
            "design": self.design.name,
            **{name: value for name, value in vars(self).items() if name != "design"},
            "tokens_per_dollar": self.tokens_per_dollar,
        }


def measure(question: Question, design: Design, **changes: Any) -> Measured:
    """Run a design once."""
    scenario = question.make(design, **{f"workload.{key}": value for key, value in changes.items()})
    result = simulate(scenario)
    summary = result.summary
    seen = result.over_time(summary["duration"] / _INTERVALS)
    tokens = seen["output_tokens"] * (seen["end"] - seen["start"])
    emitted = tokens.groupby(seen["end"]).sum()
    begin, end = np.interp(_MIDDLE, emitted.cumsum() / emitted.sum(), emitted.index)
    engines = seen[(seen["end"] > begin) & (seen["start"] < end) & seen["utilisation"].notna()]
    busy = engines.groupby("client", sort=False)["utilisation"].mean()
    gpus = [engine.num_gpus for number, engine in design.pools for _ in range(number)]
    return Measured(
        design,
        design.dollars(question.prices),
        rate=float(scenario.workload.arrivals.make().rate),
        throughput=float(summary["total_output_tokens"] * np.diff(_MIDDLE)[0] / (end - begin)),
        p50=summary["p50_ttft_ms"] / 1e3,
        p90=summary["p90_ttft_ms"] / 1e3,
        attainment=summary["good_request_fraction"],
        utilisation=float(np.average(busy, weights=gpus)),
        stability=summary["stability"],
        refused=summary["num_rejected"],
        duration=summary["duration"],
    )


def measure_all(
    question: Question, designs: list[Design], too_slow: set[Design], jobs: int | None
) -> list[Measured]:
    """Run each design once at the scenario's own rate. too_slow: they are proved to be unstable."""
    with ProcessPoolExecutor(jobs) as pool:
        found = pool.map(partial(measure, question), designs, chunksize=8)
        return [
            replace(each, stability="proved unstable") if each.design in too_slow else each
            for each in found
        ]


def best_by_rate(question: Question, designs: list[Design], asked: Namespace) -> Measured:
    """Return the design with the most requests for a dollar at the highest rate that it keeps.

    Its rate is 0 where none of them keeps any.
    """
    by_name = {design.name: design for design in designs}
    options = SearchOptions(most_requests=asked.most, tolerance=0.03)
    try:
        found = search_space(question.space(designs), options, jobs=asked.jobs).front[0]
    except ScenarioError as error:
        if "no configuration keeps" not in str(error):
            raise
        return Measured(designs[0], designs[0].dollars(question.prices))
    design = by_name[found["values"]["case"]]
    rate = found["figures"]["goodput"]
    return Measured(design, design.dollars(question.prices), rate, rate * question.mean_answer)


def best_by_ladder(
    question: Question, measured: list[Measured], tried: list[Design], asked: Namespace
) -> Measured:
    """Return the design with the most tokens for a dollar at a rate that a long run keeps.

    tried: each of them is run at the rate at which it emitted tokens under overload, and below.
    """
    by_design = {each.design: each for each in measured}
    found = []
    for design in tried:
        each = by_design[design]
        start = max(
            each.rate if each.keeps(question) else 0.0, each.throughput / question.mean_answer
        )
        found.append(measure_long(question, replace(each, rate=start), asked))
    return max(found, key=lambda each: each.tokens_per_dollar)


def candidates(question: Question, measured: list[Measured], least: float) -> list[Design]:
    """Return the designs that may give more tokens for a dollar than `least`.

    What a design emits under an overload bounds what it emits at a rate that it keeps, up to
    chance; one that is not overloaded at the printed rate may serve any. Those first that keep the
    limits there, the furthest below them first; then those with the highest bound.
    """
    most = {
        each: inf if each.stability == "stable" else (1 + _CHANCE) * each.tokens_per_dollar
        for each in measured
    }
    found = [each for each in measured if most[each] > least]
    found.sort(key=lambda each: (not each.keeps(question), each.over(question), -most[each]))
    return [each.design for each in found]


def measure_long(question: Question, each: Measured, asked: Namespace) -> Measured:
    """Run a design so long that the ramp counts for little, at its rate or below.

    Where a run of so many requests does not keep the limits, since shorter ones flattered the
    design, the rate is lowered step by step until one does.
    """
    rate, found = each.rate, each
    for _ in range(_STEPS):
        if rate > _NO_RATE:
            changes = {"arrivals.rate": f"{rate:.4g} /s", "lengths.num_requests": asked.long}
            found = measure(question, each.design, **changes)
            if found.keeps(question):
                return found
            rate *= _LOWER
    return replace(found, rate=0.0, throughput=0.0)
