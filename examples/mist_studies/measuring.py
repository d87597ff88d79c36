"""A use case, and runs of designs of it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, fields, replace
from functools import cached_property, partial
from math import nan
from pathlib import Path
from typing import Any

import numpy as np
from designs import Design, Engine, Prices

from mist_sim import Scenario, load_model, simulate
from mist_sim.errors import ScenarioError
from mist_sim.rng import Streams
from mist_sim.scenario import build
from mist_sim.scenario.loading import as_data
from mist_sim.search import SearchOptions, Space
from mist_sim.search.spaces.evaluation import prepare
from mist_sim.search.spaces.objectives import constraints_of, objectives_of
from mist_sim.units import DURATION

START = 300.0  # seconds until a server answers: weights, compilation, CUDA graphs
_ATTAINED = 0.9
_INTERVALS = 400  # of a run
_MIDDLE = (0.25, 0.75)  # of the tokens: neither the ramp nor the last long answers


@dataclass(frozen=True)
class Question:
    """A use case: its scenario, whose slo is the p90 of TTFT, its p50, and the paper's answer.

    whole: tokens of a step with whole prompts, which the longest computed one has at most.
    paper, fastest: designs that the paper finds to be the cheapest, and to have most throughput.
    """

    path: Path
    p50: str
    whole: int
    paper: Design
    fastest: Design | None = None
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
        model = load_model(self.said["model"])
        kv = self.said["clients"][0]["kv_cache"]["kv_cache_dtype"]
        weights = model.quantization.name if model.quantization else "bf16"
        return (
            f"{self.path.stem}: {model.name}, weights {weights}, KV entries "
            f"{weights if kv == 'auto' else kv}, no prefix in common; {self.rate:g} /s, {limits}"
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
        """Return what a design sets in the scenario, whose other clients stay.

        So do KV entries and sampling of its engines.
        """
        engine, *others = self.said["clients"]
        found = design.settings(engine["max_model_len"], self.whole, self.prices, others)
        for client in found["clients"][: len(design.pools)]:
            client |= {key: engine[key] for key in ("kv_cache", "sampling")}
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
        """Return designs as a space, of which more is known before anything runs."""
        kept = {"attainment": _ATTAINED, "at_goodput": {"p50_ttft": self.p50}}
        return Space(
            scenario=self.scenario,
            cases={design.name: self.settings(design) for design in designs},
            constraints=constraints_of(kept),
            objectives=objectives_of(["goodput_per_usd"]),
        )

    def valid(self, designs: list[Design]) -> tuple[dict[Design, float], Counter[str]]:
        """Return designs that can be, each with a bound of its rate (1/s), and why others cannot.

        Nothing runs: a design is proved to serve less, whatever is batched with what.
        """
        space = self.space(designs)
        goodput = SearchOptions().goodput(_ATTAINED, space.constraints.at_goodput)
        prepared = space.configurations()
        prepare(prepared, space.objectives, space.constraints, goodput, judged=True)
        reasons = Counter(_reason(str(each.failure)) for each in prepared if each.failure)
        pairs = zip(designs, prepared, strict=True)
        return {design: each.bound for design, each in pairs if not each.failure}, reasons

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
    question: Question, bounds: Mapping[Design, float], jobs: int | None
) -> list[Measured]:
    """Run each design once at the scenario's own rate. bounds: what rates (1/s) are beyond them."""
    with ProcessPoolExecutor(jobs) as pool:
        found = pool.map(partial(measure, question), bounds, chunksize=8)
        return [
            replace(each, stability="proved unstable")
            if bounds[each.design] < question.rate
            else each
            for each in found
        ]
