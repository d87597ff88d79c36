"""A plan: GPUs to buy, their settings, and the alternatives tried; the answer in words.

There is a line for each thing to decide, with how sure it is.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import ceil, floor, inf, isnan, nan
from typing import Any, Literal

from mist_sim.core import result_warnings as kinds
from mist_sim.core.result_warnings import ResultWarning, of_data, of_points
from mist_sim.errors import listed
from mist_sim.metrics.expected_errors import WITHIN, expected_ranges, is_far
from mist_sim.metrics.latency import limit_of, limit_title, metric_of
from mist_sim.metrics.spending import HOURS_A_MONTH
from mist_sim.report.presenters import PLAN
from mist_sim.report.run import error_range
from mist_sim.scenario import Scenario
from mist_sim.search.goodput_result import Goodput
from mist_sim.search.planning.candidates import Candidate
from mist_sim.search.planning.day import Day
from mist_sim.search.planning.deployment import Deployment
from mist_sim.search.planning.hunt import Confidence, Tried, confidence_of, doubt_of, missed_in
from mist_sim.search.planning.question import LEAST_OUTSTANDING, Question
from mist_sim.studies.built import load_in_words
from mist_sim.studies.tabled import Tabled


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
        name, usd_per_hour, num_gpus: of the answer. rate: requests per second that are asked for,
        or that `users` send it (None: no closed loop). lines: the answer in words. runner_up: the
        second-best candidate, and why it lost; empty if nothing else was tried. goodput: of the
        answer, with what binds it if time was left. at_rate: summary of a run; its dollars and
        joules a token leave out ramp and end. at_goodput: the spending of a run there
        (`spending_at`). one_less: by name, the figures with one engine failed. deployment: how to
        start it. tried: all simulated candidates, the cheapest first (`table`).
    of_engines: what runs with each engine that could be chosen warn of, by its name.
    excluded: number of candidates excluded by each bound. not_tried: cheaper candidates that are
        not known to miss, the most promising first. left_out: impossible engines, with the reason.
    notes: for the reader of the answer. break_even: by each other GPU that keeps the limits, the
        prices at which its cheapest candidate costs as much (`plan_result.break_even`). day: what
        each hour needs; None: a day was not asked for.
    """

    presenter = PLAN
    stem, sheet = "plan", "tried"

    scenario: Scenario
    title: str
    name: str
    rate: float
    users: int | None
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
    break_even: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    day: Day | None = None

    @property
    def headroom(self) -> float:
        """Goodput over the load that was asked for, minus one; NaN where no goodput was found."""
        return self.goodput.rate / (self.users or self.rate) - 1

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
            **({} if self.users is None else {"users": self.users}),
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
            **({} if self.day is None else {"day": self.day.data}),
            "lines": [vars(line) for line in self.lines],
            "runner_up": self.runner_up,
            "break_even": {gpu: dict(prices) for gpu, prices in self.break_even.items()},
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

    @property
    def files(self) -> dict[str, str]:
        """The answer for `mist run`, and the commands that deploy it."""
        return {"scenario.yaml": self.scenario.resolved(), "deploy.sh": self.deployment.text}


_COST, _ENERGY = "cost_per_million_output_tokens_usd", "energy_per_output_token_j"
_MILLION = 1e6
_WHOLE = 9999.5  # ms, from which on four digits are fewer than a number has
_FIRM = ("measured", "fitted")  # GPUs with known watts
_WORK = {"one prefill less": "prompt is computed", "one decode less": "answer is computed"}
_RANK: Sequence[Confidence] = ("sure", "likely", "unsure")


def certainty(best: Tried, at_rate: Mapping[str, Any]) -> Confidence:
    """Return how sure it is that one keeps the limits. at_rate: the summary of a run of it."""
    in_doubt = best.trial is None or not best.attained or doubt_of(best.trial)
    return "unsure" if in_doubt or missed_in(at_rate) else confidence_of(at_rate)


def lines_of(question: Question, best: Tried, found: Mapping[str, Any]) -> list[Line]:
    """Return the lines of an answer.

    found: `goodput`, `at_rate`, `at_goodput` and `one_less`, as `Plan` has them; `one_more`: the
        summary of a run with one engine more, by its name; `day`: as there; `is_cheapest`: whether
        all that is cheaper is known to miss; `unknown`: cheaper engines that missed, with no known
        error of their step times; `network`: which one is assumed, in words.
    """
    candidate, at_rate = best.candidate, found["at_rate"]
    sure = certainty(best, at_rate)
    lines = [
        Line(
            "buy",
            f"{candidate.num_gpus} x {candidate.engine.gpu_name}, {candidate.priced}"
            f"{_margin(at_rate, found)}{_doubt(found)}",
            _worst(sure, _need(found)),
        ),
        Line("each engine", _engine(question, candidate)),
        Line("design", _design(candidate), ""),
    ]
    if found["network"]:
        lines.append(Line("network", f"assumed: {found['network']}"))
    if candidate.num_engines > 1:
        router = candidate.router or LEAST_OUTSTANDING
        if candidate.design == "hybrid":
            router = "length_aware, as TaiChi has it"
        lines.append(Line("router", router if candidate.router else "the scenario's own"))
    if question.loop is not None:
        rate = at_rate["steady_request_throughput"]
        lines.append(Line("load", f"{load_in_words(question.rate)} send {rate:.4g} /s", sure))
    lines.append(Line("limits", _limits(at_rate), sure))
    lines.append(_headroom(found["goodput"], question, sure))
    for name, each in found["one_less"].items():
        text = _left(name, each)
        if not isnan(load := each.get("goodput", nan)):
            text += f"; enough up to {load:.4g} {found['goodput'].unit}"
        told = "" if each["nobody"] else _one_less_confidence({name: each}, is_far(at_rate))
        lines.append(Line(name, text, told))
    lines += _spending(at_rate, found["at_goodput"], sure)
    return [*lines, *([] if found["day"] is None else [_over_a_day(found["day"])])]


def _over_a_day(day: Day) -> Line:
    """Return the dollars of a day and a month, with the engines of the busiest hour and by hour."""
    of = day.data
    text = (
        f"{of['fixed_usd_per_day']:,.4g} $ with these all day, {of['by_hour_usd_per_day']:,.4g} $ "
        f"with as many as each hour needs ({100 * of['saved']:.0f} % less); a month "
        f"{of['fixed_usd_per_month']:,.0f} and {of['by_hour_usd_per_month']:,.0f} $"
    )
    return Line("a day", text, _worst(*(need.confidence for need in day.needs)))


def kept_by(best: Tried, second: Tried, untried: Sequence[Candidate]) -> str:
    """Return what another one that keeps the limits costs more, and what was not tried below it.

    untried: candidates from the answer's price on without a run.
    """
    winner, it = best.candidate, second.candidate
    verb = "keeps" if second.attained else "seems to keep"
    more = f"costs {100 * (it.dollars / winner.dollars - 1):.0f} % more"
    told = f"{it.name} ({it.offer}) {verb} the limits, too, and {more}."
    if it.engine.gpu != winner.engine.gpu and it.price > winner.price:
        at = break_even(winner, it)
        told += (
            f" Both cost as much at {at['costs_as_much_at']:.3g} $ a GPU-hour of "
            f"{it.engine.gpu_name} (now {at['usd_per_gpu_hour']:.3g}), or at "
            f"{at['answer_costs_as_much_at']:.3g} $ of {winner.engine.gpu_name} (now "
            f"{at['answer_usd_per_gpu_hour']:.3g})."
        )
    if others := [e for e in untried if e.price < it.price and not _is_like(e, winner)]:
        least = min(others, key=lambda each: each.rank)
        told += f" Not tried: {len(others)} cheaper, from {least.dollars:.4g} $/h ({least.name})."
    return told


def break_even(winner: Candidate, other: Candidate) -> dict[str, Any]:
    """Return the prices at which a candidate with another GPU costs as much as the answer.

    Dollars of a GPU an hour, now and then: of the other's GPU if the answer's price stays, and of
    the answer's if the other's does. Fewer of the other's GPUs, which were not tried, may do, too:
    then these ends are nearer.
    """
    ratio = winner.dollars / other.dollars
    price, own = (each.dollars / each.num_gpus for each in (other, winner))
    return {
        "name": other.name,
        "usd_per_gpu_hour": price,
        "costs_as_much_at": price * ratio,
        "answer_usd_per_gpu_hour": own,
        "answer_costs_as_much_at": own / ratio,
    }


def runner_up(best: Tried, tried: Sequence[Tried], untried: Sequence[Candidate] = ()) -> str:
    """Return the runner-up and why it lost; "" if no other candidate was tried.

    tried: the cheapest first. untried: as in `kept_by`. The runner-up is the cheapest other design
        or GPU that keeps the limits, or else the closest one.
    """
    winner = best.candidate
    others = [each for each in tried if each.candidate != winner and each.trial is not None]
    kept = [each for each in others if each.attained and not _is_like(each.candidate, winner)]
    if kept:
        second = min(kept, key=lambda each: each.rank)
        more = second.candidate.dollars / winner.dollars - 1
        name = f"{second.candidate.name} ({second.candidate.offer})"
        if more > 1e-6:
            return kept_by(best, second, untried)
        if second.candidate.design in ("hybrid", "afd"):
            return f"{name} costs as much, but vLLM does not serve it as it is."
        return f"{name} costs as much{_compared(best, second)}."
    missed = [each for each in others if not each.attained]
    if not missed:
        return ""
    return nearest_miss(missed)


def nearest_miss(missed: Sequence[Tried]) -> str:
    """Return which of several that miss comes nearest, and the limit that it misses first."""
    near = max(missed, key=lambda each: each.trial.attainment if each.trial else 0.0)
    trial = near.trial
    share = f"{100 * trial.attainment:.1f} %" if trial else "0 %"
    most = "" if trial is None or trial.is_whole else "at most "
    limit = limit_title(trial.worst_limit if trial else None, "a limit")
    verdict = "misses" if trial and trial.attained is False else "may miss"
    return (
        f"{near.candidate.name} ({near.candidate.offer}) {verdict} its limits, {limit} "
        f"first: {most}{share} of its requests are good."
    )


def _is_like(one: Candidate, other: Candidate) -> bool:
    """Tell whether two differ in their counts or their router alone."""
    return one.family[:-1] == other.family[:-1]


def _compared(best: Tried, second: Tried) -> str:
    """Return why one that costs as much is not the answer: its room, or its design."""
    load = "users" if best.trial and isinstance(best.trial.rate, int) else "rate"
    rooms = f"it serves {_served(second)} the {load}, this one {_served(best)}"
    if second.candidate.design == best.candidate.design:
        if second.room == 1 and second.missed == inf:  # no run at a higher rate
            return "; which has more room was not tried"
        if second.room == best.room:
            missed = min(second.missed, best.missed)
            until = f" and miss {missed:.3g} times" if missed < inf else ""
            return (
                f"; both keep the limits at {best.room:.3g} times the {load}{until}: which has "
                "more room is not known"
            )
    if second.room < best.room:
        return f", with less room: {rooms}"
    more = f" and has more room ({rooms})" if second.room > best.room else ""
    return f"{more}, but is less simple, and rests on more assumptions"


def _served(tried: Tried) -> str:
    """Return the multiples of the rate between which a candidate ends to keep the limits."""
    if tried.missed == inf:
        return f"at least {tried.room:.3g} times"
    return f"{tried.room:.3g} to {tried.missed:.3g} times"


def _margin(at_rate: Mapping[str, Any], found: Mapping[str, Any]) -> str:
    """Return by how much times may be off, or are, where their error reaches a limit.

    And what one engine more keeps.
    """
    near = {n: each for n, each in at_rate.get("slo", {}).items() if each["verdict"] == WITHIN}
    if not near:
        return ""
    name = min(near, key=lambda each: near[each]["limit"] / near[each]["value"])
    value, limit = near[name]["value"], near[name]["limit"]
    error = expected_ranges(at_rate).get(metric_of(name))
    bars = f"; its error is {error_range(*error)}" if error else ""
    title = limit_title(limit_of(name)[0])
    if value > limit:
        told = (
            f"; {title} is {100 * (value / limit - 1):.2g} % over its limit in the run shown{bars}"
        )
    else:
        told = (
            f"; keeps {title} {_ms(limit)} ms only if it is at most "
            f"{100 * (limit / value - 1):.2g} % longer than simulated{bars}"
        )
    for more, summary in found["one_more"].items():
        told += f"; {more} {_one_more(summary)}"
    return told


def _one_more(summary: Mapping[str, Any]) -> str:
    """Return whether one engine more keeps the limits, whatever the error of its step times."""
    if confidence_of(summary) == "sure":
        return "makes it sure"
    if {each["verdict"] for each in summary.get("slo", {}).values()} & {"miss", WITHIN}:
        return "may miss within its error, too"
    return "keeps all limits through its error, though too little like it was measured to be sure"


def _doubt(found: Mapping[str, Any]) -> str:
    """Return which cheaper engines may keep the limits, since the error of theirs is not known."""
    unknown = found["unknown"]
    return f"; error of cheaper engines not known: {listed(unknown)}" if unknown else ""


_SIZES = ("pipeline_parallel_size", "data_parallel_size")


def _engine(question: Question, candidate: Candidate) -> str:
    engine = candidate.engine
    gpus = "1 GPU" if engine.num_gpus == 1 else f"{engine.num_gpus} GPUs"
    sizes = question.sizes(engine.width, engine.settings)
    split = [
        f", {name} parallel size {sizes[f'{name}_parallel_size']}"
        for name in ("tensor", "pipeline", "data")
        if sizes.get(f"{name}_parallel_size", 1) != 1
    ]
    split += [f", {key} {value}" for key, value in engine.settings if key not in _SIZES]
    return f"{question.model} on {gpus}{''.join(split)}"


def _design(candidate: Candidate) -> str:
    number = candidate.num_engines
    if candidate.design == "together":
        who = "1 engine does both" if number == 1 else f"{number} engines do both"
        chunk = f", {candidate.chunks[0]:,} tokens a step" if candidate.chunks else ""
        return f"{who}{chunk}"
    if candidate.design == "apart":
        large = f" ({candidate.chunks[0]:,} tokens a step)" if candidate.chunks else ""
        return f"apart: {candidate.first} for prompts{large}, {candidate.second} for answers"
    if candidate.design == "hybrid":
        large, small = (f"{chunk:,}" for chunk in candidate.chunks)
        return (
            f"TaiChi's hybrid: {candidate.first} with {large} tokens a step, {candidate.second} "
            f"with {small}"
        )
    if candidate.design == "reshard":
        who = "1 engine" if number == 1 else f"each of {number} engines"
        return f"{who} in one layout for prompts and another for answers, in turn (Seesaw)"
    return f"{candidate.first} for prompts, the others a bundle of attention and FFN workers"


def _limits(summary: Mapping[str, Any]) -> str:
    told = [
        f"{limit_of(name)[1]} {limit_title(limit_of(name)[0])} "
        f"{_ms(found['value'])} of {_ms(found['limit'])} ms "
        f"({found['verdict']})"
        for name, found in summary.get("slo", {}).items()
    ]
    return ", ".join(told)


def _ms(value: float) -> str:
    return f"{value:.4g}" if value < _WHOLE else f"{value:,.0f}"


def _headroom(goodput: Goodput, question: Question, sure: Confidence) -> Line:
    if goodput.blindness:
        most = f"limits are kept at any {goodput.what} tried, up to {goodput.bounds[0]:.4g} "
        most += goodput.unit
        return Line("headroom", f"not known: {most}; {goodput.blindness}", "unsure")
    if isnan(goodput.rate):
        return Line(
            "headroom", f"not known: {goodput.status} at the {goodput.what}s tried", "unsure"
        )
    low, high = goodput.interval
    if question.loop is not None:
        low, high = floor(low), high if high == inf else ceil(high)
    more = goodput.rate / question.rate - 1
    first = f"; {limit_title(goodput.first_limit)} misses first" if goodput.first_limit else ""
    between = f" ({low:.4g} to {high:.4g})" if high < inf else ""
    text = f"{100 * more:.0f} %: goodput {goodput.rate:.4g} {goodput.unit}{between}{first}"
    return Line("headroom", text, "sure" if sure == "sure" and low > question.rate else sure)


def _left(name: str, found: Mapping[str, Any]) -> str:
    if found["nobody"]:
        return f"it is the only one: without it no {_WORK.get(name, 'request is served')}"
    share = f"{100 * found['good']:.1f} % are good"
    if found["attains"]:
        verb = "seems to keep" if found["undecided"] else "still keeps"
        return f"{verb} the limits: {share}"
    over = {
        limit_title(limit_of(name)[0]): each["value"] / each["limit"]
        for name, each in found["slo"].items()
        if not each["kept"]
    }
    worst = max(over, key=lambda name: over[name], default=None)
    first = f", {worst} misses" if worst else ""
    more = ", and queues grow" if found.get("unstable") else ""
    return f"{share}{first}{more}"


def _one_less_confidence(found: Mapping[str, Mapping[str, Any]], far: bool = False) -> Confidence:
    """Return how sure the verdict on fewer engines is, for every step-time error in its range.

    far: whether the engines are far from all measured runs.
    """
    firm: Confidence = "likely" if far else "sure"
    told: list[Confidence] = []
    for each in found.values():
        verdicts = {one["verdict"] for one in each["slo"].values()}
        is_known = all(one.get("error_known", True) for one in each["slo"].values())
        is_good = each["attains"]
        if each["nobody"]:
            told.append("sure")
        elif not is_known:
            told.append("unsure")
        elif each["undecided"]:
            told.append("likely")
        elif is_good:
            told.append("likely" if "within error" in verdicts else firm)
        else:
            told.append(firm if "miss" in verdicts or each.get("unstable") else "likely")
    return _worst(*told)


def _need(found: Mapping[str, Any]) -> Confidence:
    """Return how sure it is that nothing cheaper does; unsure where one engine less does.

    And where step times by which a cheaper one misses have an error that is not known.
    """
    one_less = found["one_less"]
    if any(each["attains"] and not each["undecided"] for each in one_less.values()):
        return "unsure"
    if found["unknown"]:
        return "unsure"
    return _worst(_one_less_confidence(one_less), "sure" if found["is_cheapest"] else "likely")


def _worst(*found: Confidence) -> Confidence:
    return max(found, key=_RANK.index, default="sure")


def _spending(
    at_rate: Mapping[str, Any], at_goodput: Mapping[str, Any] | None, sure: Confidence
) -> list[Line]:
    """Return dollars and joules a million output tokens, at the rate and at the limits."""
    lines = []
    if _COST in at_rate:
        at_limits = (at_goodput or {}).get(_COST)
        more = f", {at_limits:.3g} at the limits" if at_limits is not None else ""
        lines.append(Line("$ a million tokens", f"{at_rate[_COST]:.3g} at this rate{more}", sure))
    if _ENERGY in at_rate:
        at_limits = (at_goodput or {}).get(_ENERGY)
        more = f", {_joules(at_limits)} at the limits" if at_limits is not None else ""
        known = set(at_rate.get("power_estimates", {}).values()) <= set(_FIRM)
        text = f"{_joules(at_rate[_ENERGY])} at this rate{more}"
        how = _worst(sure, "likely") if known else "unsure"
        lines.append(Line("J a million tokens", text, how))
    return lines


def _joules(joules: float) -> str:
    return f"{joules * _MILLION:,.0f}"
