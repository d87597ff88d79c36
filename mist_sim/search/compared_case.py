"""A scenario of a comparison: its figures, whether it keeps its limits, and how sure that is.

And the price of a GPU at which two of them cost the same a token.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import isnan, nan
from typing import Any, Literal, NamedTuple, Self

from mist_sim.clients.kv_cache.capacity import NO_ROOM
from mist_sim.clients.traits import FLOWING_ROLES
from mist_sim.core import result_warnings as kinds
from mist_sim.core.result_warnings import ResultWarning, of_data, over_runs
from mist_sim.errors import ScenarioError
from mist_sim.metrics.expected_errors import biases_of, expected_ranges
from mist_sim.metrics.keeping import Doubts, Kept, doubts_of, has_no_rate, judged
from mist_sim.metrics.replications import estimate
from mist_sim.metrics.run_warnings import room_line
from mist_sim.scenario import Scenario
from mist_sim.search.binding_result import Binding
from mist_sim.search.goodput_result import Goodput
from mist_sim.search.ranking import Beside, Better, Ranked
from mist_sim.studies.task import Failure
from mist_sim.studies.verdicts.request_times import Target, kept_by

FIGURES: Mapping[str, Better | None] = {
    "num_gpus": None,
    "goodput": "more",
    "goodput_per_gpu": "more",
    "headroom": None,
    "room": None,
    "good_request_fraction": "more",
    "failed": "less",
    "p50_ttft_ms": "less",
    "p90_ttft_ms": "less",
    "p99_ttft_ms": "less",
    "p50_tpot_ms": "less",
    "p90_tpot_ms": "less",
    "p99_tpot_ms": "less",
    "duration": None,
    "output_throughput": None,
    "output_throughput_per_gpu": None,
    "steady_output_throughput": "more",
    "steady_output_throughput_per_gpu": "more",
    "num_hand_overs": None,
    "handed_over_tokens": None,
    "mean_hand_over_ms": "less",
    "energy_j": "less",
    "cost_usd": "less",
    "cost_per_million_output_tokens_usd": "less",
    "good_tokens_per_usd": "more",
    "energy_per_output_token_j": "less",
    "cost_per_million_output_tokens_at_goodput_usd": "less",
    "energy_per_output_token_at_goodput_j": "less",
}
"""What is compared, and which is better. Names as in a run's summary; goodput: the largest arrival
rate that is attained (`find_goodput`), requests per second; headroom: by what share of the
scenario's own rate it is higher. What is `_at_goodput` is of a run at that rate, of others at the
scenario's own."""

_RATES = ("output_throughput", "steady_output_throughput")

AT_GOODPUT = {
    "cost_per_million_output_tokens_usd": "cost_per_million_output_tokens_at_goodput_usd",
    "energy_per_output_token_j": "energy_per_output_token_at_goodput_j",
}


Form = Literal["together", "apart", "between"]
"""Who computes prompts and answers: the same engines, others, or two kinds both (TaiChi)."""


def form_of(scenario: Scenario) -> Form:
    """Return the form of a scenario, by the roles of its clients."""
    roles = {part.describe(scenario.model).role for part in scenario.clients}
    if FLOWING_ROLES.intersection(roles):
        return "between"
    return "apart" if {"prefill", "decode"}.intersection(roles) else "together"


@dataclass(frozen=True)
class Case:
    """One scenario of a comparison.

    summaries: of its runs, one per seed; empty if one failed. goodput: None if not requested, or a
        run failed. failure: why there are no figures, or no goodput. at_goodput: the spending of a
        run at its goodput; None if not requested, or without goodput. rate: of the scenario's own
        arrivals, requests per second, if a goodput was searched. target: required by its limits;
        None without limits. limits: figures beside limits in any scenario, such as `p95_ttft_ms`.
    gpu_names: kinds of its GPUs. gpu_price: dollars of one an hour, on average; NaN without prices.
    beside: as in `Ranked`. form: who computes prompts and answers.
    """

    name: str
    title: str
    num_gpus: int | None
    summaries: tuple[Mapping[str, Any], ...]
    goodput: Goodput | None
    failure: Failure | None = None
    at_goodput: Mapping[str, Any] | None = None
    rate: float = nan
    target: Target | None = None
    limits: Sequence[str] = ()
    gpu_names: frozenset[str] = frozenset()
    gpu_price: float = nan
    beside: Beside | None = None
    form: Form = "together"

    @classmethod
    def failed(cls, name: str, error: ScenarioError) -> Self:
        """Return a case without figures, since its settings make no scenario."""
        return cls(name, "", None, (), None, Failure.of(error).plain)

    @property
    def figures(self) -> dict[str, float]:
        """The figures of `FIGURES` and `limits`, as means over the seeds; NaN if unknown."""
        gpus = float(self.num_gpus) if self.num_gpus is not None else nan
        own = {"num_gpus": gpus}
        if self.goodput is not None:
            rate = self.goodput.rate
            own |= {"goodput": rate, "goodput_per_gpu": self.goodput.per_gpu}
            own["headroom"] = rate / self.rate - 1
        for name, at_goodput in AT_GOODPUT.items():
            own[at_goodput] = float((self.at_goodput or {}).get(name, nan))
        for tokens in _RATES:
            own[f"{tokens}_per_gpu"] = self._mean(tokens) / gpus if gpus else nan
        names = dict.fromkeys((*FIGURES, *self.limits))
        return {name: own[name] if name in own else self._mean(name) for name in names}

    def priced(self, cost: str) -> Priced:
        """Return its prices. cost: of `FIGURES`, dollars of a million output tokens."""
        electricity, dollars = self._mean("electricity_cost_usd"), self._mean("cost_usd")
        share = electricity / dollars if electricity > 0 else 0.0
        return Priced(self.name, self.figures[cost], share, self.gpu_names, self.gpu_price)

    @property
    def judged(self) -> dict[str, Any]:
        """Whether it keeps its limits, as `keeping.judged` has it; empty without limits."""
        found = judged(self.kept, self.summaries)
        return found | {"num_gpus": self.num_gpus} if found else {}

    def of_first(self, name: str) -> dict[str, Any]:
        """Return a mapping of its first run's summary, such as expected_errors; empty without."""
        return dict(self.summaries[0].get(name, {})) if self.summaries else {}

    @property
    def warnings(self) -> tuple[ResultWarning, ...]:
        """Warnings of its runs and its search, and the reason if there are no figures."""
        found: list[ResultWarning] = []
        if self.failure:
            kind = kinds.TOO_SMALL if NO_ROOM in str(self.failure) else kinds.FAILED_RUNS
            found.append(ResultWarning(kind, f"failed: {self.failure}"))
        if self.summaries:
            found += over_runs([of_data(summary) for summary in self.summaries])
        if (kept := self.kept) is not None and not kept.keeps:
            rooms = [line for line in map(room_line, self.summaries) if line]
            found += [ResultWarning(kinds.NO_ROOM, line) for line in rooms[:1]]
        return (*found, *(self.goodput.warnings if self.goodput else ()))

    @property
    def binding(self) -> Binding | None:
        """The resource that binds it at its goodput; None if not requested."""
        return self.goodput.binding if self.goodput is not None else None

    @property
    def ranked(self) -> Ranked:
        """The figures it is ranked by."""
        kept, has_rate = self.kept, not has_no_rate(self.summaries)
        names, gpus = (*FIGURES, *self.limits), float(self.num_gpus or nan)
        by_seed = [{name: _value(run, name) for name in names} for run in self.summaries]
        for run in by_seed:
            run |= {f"{rate}_per_gpu": run[rate] / gpus for rate in _RATES}
        is_steady = any(each.get("has_steady_part") for each in self.summaries)
        found = Ranked(
            self.name,
            self.figures,
            None,
            kept,
            is_steady=False,
            doubts=kept.doubts if kept else self._doubts,
            by_seed=by_seed,
            beside=self.beside,
            has_rate=has_rate,
            window=("sent" if has_rate else "steady") if is_steady else "whole",
            has_cap=any(each.kind is kinds.POWER_CAP for each in self.warnings),
        )
        if self.summaries:
            error = expected_ranges(self.summaries[0])["throughput"]
            found = found._replace(biases=biases_of(self.summaries[0]), throughput_error=error)
        if (goodput := self.goodput) is None:
            return found
        found = found.by_rate(goodput)
        return found._replace(
            # the binding resource is named in the sentence of the first limit
            first_limit=found.first_limit if self.binding is None else None,
            error_interval=goodput.error_interval,
            has_step_ends=goodput.step_ends is not None,
        )

    @property
    def kept(self) -> Kept | None:
        """Whether it keeps its limits, and how sure that is; None where nothing asks for it."""
        return kept_by(self.target, self.name, self.summaries)

    @property
    def _doubts(self) -> Doubts:
        """Those of runs that no limit judges."""
        return doubts_of((), self.summaries) if self.summaries else Doubts()

    def _mean(self, name: str) -> float:
        return estimate([_value(summary, name) for summary in self.summaries]).mean


def _value(summary: Mapping[str, Any], name: str) -> float:
    """Return a figure of a run, or one with a limit, which counts failed requests; or NaN."""
    beside: Mapping[str, Any] = summary.get("slo", {}).get(name, {})
    return float(summary[name] if name in summary else beside.get("value", nan))


COST_AT_GOODPUT = "cost_per_million_output_tokens_at_goodput_usd"
COST = "cost_per_million_output_tokens_usd"


class Priced(NamedTuple):
    """A scenario with its prices.

    cost: dollars of a million output tokens. electricity: the share of them that is electricity.
    gpus: the kinds of its GPUs. gpu_price: dollars of one an hour, on average.
    """

    name: str
    cost: float
    electricity: float
    gpus: frozenset[str]
    gpu_price: float

    def price_at(self, cost: float) -> float:
        """Return the dollars of a GPU an hour at which a million tokens cost so much.

        0 where its electricity alone costs as much.
        """
        left = cost - self.cost * self.electricity
        return self.gpu_price * left / (self.cost * (1 - self.electricity)) if left > 0 else 0.0


def break_even(cases: Sequence[Priced], where: str) -> list[str]:
    """Return the prices at which GPUs of several kinds cost as much a token.

    First up to which price those of the cheapest case stay so, then from which on others would be.

    where: at which rate they were run, for the reader. Empty where fewer than two have prices.
    """
    known = [case for case in cases if not (isnan(case.cost) or isnan(case.gpu_price))]
    if len(known) < 2:
        return []
    cheapest = min(known, key=lambda case: case.cost)
    dearer = [case for case in known if case.gpus != cheapest.gpus and case.cost > cheapest.cost]
    lines = [_line(case, cheapest) for case in dearer]
    if dearer:
        second = min(dearer, key=lambda case: case.cost)
        most = f"{cheapest.price_at(second.cost):.3g} $ a GPU-hour (now {cheapest.gpu_price:.3g})"
        lines.insert(0, f"{cheapest.name} stays cheaper a token than {second.name} up to {most}")
    return [f"{line}, {where}" for line in lines]


def _line(case: Priced, cheapest: Priced) -> str:
    """Return the price at which a dearer case would cost as much as the cheapest."""
    if not (price := case.price_at(cheapest.cost)):
        return f"{case.name} costs more than {cheapest.name} even at no rent, by its electricity"
    return (
        f"{case.name} costs as much a token as {cheapest.name} at {price:.3g} $ a GPU-hour "
        f"(now {case.gpu_price:.3g})"
    )
