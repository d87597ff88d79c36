"""From a load, limits, GPUs and a budget to the deployment to buy."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from math import isnan, nan
from typing import Any, NamedTuple, Unpack

from mist_sim.core.result_warnings import of_points
from mist_sim.durations import DurationDistribution, ExponentialDuration
from mist_sim.errors import ScenarioError, in_words, listed
from mist_sim.metrics.expected_errors import WITHIN, expected_ranges
from mist_sim.metrics.latency import limit_of, limit_title, metric_of
from mist_sim.metrics.tables import UnansweredError
from mist_sim.report.elements import duration
from mist_sim.scenario import Scenario
from mist_sim.scenario.loading import as_data
from mist_sim.scenario.startable import told_to_start
from mist_sim.search.binding import search_binding
from mist_sim.search.designs import whose_nodes
from mist_sim.search.planning.bounds import demand_of
from mist_sim.search.planning.candidates import (
    Candidate,
    Engine,
    Shop,
    candidates,
    engines_of,
    scenario_of,
)
from mist_sim.search.planning.day import Day, Need, at_one_rate, day_of
from mist_sim.search.planning.deployment import deployment_of
from mist_sim.search.planning.hunt import Budget, Hunt, Refining, Tried, doubt_of, missed_in
from mist_sim.search.planning.plan_result import (
    Plan,
    break_even,
    certainty,
    kept_by,
    lines_of,
    nearest_miss,
    runner_up,
)
from mist_sim.search.planning.question import PlanOptions, Question
from mist_sim.studies.built import Built, load_in_words
from mist_sim.studies.driver import Driver, How, OutOfTimeError, studying
from mist_sim.studies.subjects import check_scenarios
from mist_sim.studies.verdicts.trials import Trial

_GATEWAY = (
    "The gateway stays as the scenario has it, for each engine: where it lets requests wait, other "
    "options of it may need fewer engines."
)


def plan(
    scenario: Scenario,
    options: PlanOptions,
    **how: Unpack[How],
) -> Plan:
    """Return the cheapest deployment that keeps the limits of a scenario at a rate.

    scenario: gives workload, limits and the options of engines; GPUs, counts and roles are to be
        found. how: see `How`. Only with a limit on `seconds` the result depends on the speed of the
        machine.

    Raises UnansweredError if no deployment within the budget seems to keep the limits, with the
    most frequent obstacle and the warnings of the engines; ScenarioError for a GPU that is unknown
    or has no price; and all errors of `simulate`.
    """
    check_scenarios([scenario])
    budget, given = Budget(options.total_requests, options.seconds), scenario
    ends = ("seconds", "total_requests")  # of the search: a later one may go on
    asked = {key: value for key, value in vars(options).items() if key not in ends}
    if (day := options.day) is not None:
        scenario, options = at_one_rate(scenario), replace(options, rate=max(day), day=None)
    question = Question(scenario, options)
    shop = engines_of(question)
    if not shop.engines:
        raise ScenarioError(_nothing_to_buy(question, shop))
    question.measure(shop.engines[0].built)
    demand = demand_of(question, shop.engines[0])
    question.begin_over(demand.turn)
    space = list(candidates(shop.engines, question))
    if not space:
        raise ScenarioError(
            f"designs {', '.join(options.designs)} have no candidate within the budget of "
            f"{options.budget}: apart, hybrid and afd take two engines at least; hybrid takes "
            "limits on both TTFT and TPOT; afd takes a model with experts; reshard takes engines "
            "of two GPUs at least"
        )
    with studying("plan", {"0": as_data(given)}, asked, **how) as driver:
        hunt = Hunt(question, demand, space, driver, budget)
        driver.deadline = budget.deadline
        driver.so_far = lambda: hunt.so_far
        hunt.search()
        if hunt.best is None:
            known = of_points({each.name: each.built.warnings for each in shop.engines})
            raise UnansweredError(_no_answer(question, shop, hunt), known)
        hunt.equals()
        hunt.other_gpus()
        refining = Refining(question, driver, demand.is_steady)
        return _answer(question, shop, hunt, refining, day)


def _without_error(best: Candidate, hunt: Hunt, at_rate: Mapping[str, Any]) -> list[str]:
    """Return the cheaper engines that missed, by step times whose error is not known.

    at_rate: the summary of the best.
    """

    def is_unknown(engine: Engine) -> bool:
        errors = expected_ranges({**at_rate, "expected_errors": engine.built.expected_errors})
        return any(errors[metric_of(name)] is None for name in at_rate["slo"])

    cheaper = dict.fromkeys(each.engine for each in hunt.tried if each.price < best.price)
    return [*dict.fromkeys(engine.name for engine in cheaper if is_unknown(engine))]


def _answer(
    question: Question,
    shop: Shop,
    hunt: Hunt,
    refining: Refining,
    day: Sequence[float] | None,
) -> Plan:
    driver = refining.driver
    answer = _best(question, hunt, refining)
    best, trial, chosen, at_rate = answer[:4]
    goodput = refining.goodput(chosen, trial)
    at_goodput = refining.at_goodput(chosen, goodput)
    fewer = best.candidate.without_one
    hunt.run(filter(None, fewer.values()), question.options.longest)
    one_less = refining.one_less(fewer, hunt.tried)
    if goodput.rate > 0 and question.loop is None:
        with suppress(OutOfTimeError):
            goodput = replace(goodput, binding=search_binding(Built(chosen), goodput, driver))
    engine = best.candidate.engine
    found: dict[str, Any] = {
        "goodput": goodput,
        "at_rate": at_rate,
        "at_goodput": at_goodput,
        "one_less": one_less,
        "one_more": _one_more(best.candidate, at_rate, question, refining),
        "is_cheapest": not hunt.left,
        "unknown": _without_error(best.candidate, hunt, at_rate),
        "network": "",
        "day": None if day is None else _day(day, answer, question, hunt, driver),
    }
    if question.network is None and chosen.network is not None:  # it is assumed
        network = as_data(chosen)["network"]["topology"]
        found["network"] = f"{network}, {whose_nodes([(engine.gpu, engine.num_gpus)])}"
    tried = sorted(hunt.tried.values(), key=lambda each: each.candidate.rank)
    return Plan(
        scenario=refining.as_run(chosen, answer.number),
        title=_title(question, shop),
        name=best.candidate.name,
        rate=question.rate if question.loop is None else at_rate["steady_request_throughput"],
        users=None if question.loop is None else question.loop.concurrency,
        usd_per_hour=best.candidate.dollars,
        num_gpus=best.candidate.num_gpus,
        lines=lines_of(question, best, found),
        runner_up="\n".join(_runners_up(hunt, best, tried, shop)),
        **{name: found[name] for name in ("goodput", "at_rate", "at_goodput", "one_less", "day")},
        deployment=deployment_of(chosen),
        tried=[_row(each, hunt) for each in tried],
        excluded=dict(hunt.excluded),
        not_tried=[each.name for each in hunt.left],
        left_out=shop.left_out,
        notes=[
            *question.own_prices,
            *_unasked(question, at_rate),
            *([] if chosen.gateway is None else [_GATEWAY]),
            *_notes(hunt, answer, question),
            *_cut_off(hunt, fewer, found),
            *told_to_start(
                question.having(engine.gpu, engine.width, 1, settings=engine.settings), chosen
            ),
        ],
        of_engines={each.name: each.built.warnings for each in shop.engines},
        break_even=dict(_break_even(hunt, best.candidate)),
    )


def _day(
    rates: Sequence[float], answer: _Answer, question: Question, hunt: Hunt, driver: Driver
) -> Day:
    """Return how many engines like those of the answer each hour of a day needs.

    rates: requests per second, by hour. answer: of the busiest.
    """
    family, engine = answer.best.candidate.family, answer.best.candidate.engine
    budget = replace(hunt.budget, num_spent=0)

    def look(rate: float, least: int, most: Need) -> Need:
        if budget.is_late:
            return replace(most, is_fewest=False)
        asked = question.asking(rate)
        numbers = range(least, most.candidate.num_engines)
        fewer = [c for c in candidates([engine], asked) if c.family == family]
        space = [most.candidate, *(each for each in fewer if each.num_engines in numbers)]
        demand = demand_of(asked, engine)
        found = Hunt(asked, demand, space, driver, budget)
        found.tried[most.candidate] = most.tried  # it serves more, so it serves this rate
        found.search()
        if found.best is not None and found.best.candidate != most.candidate:
            best = _best(asked, found, Refining(asked, driver, demand.is_steady))
            if not missed_in(best.figures):
                return Need(best.best, certainty(best.best, best.figures), not found.left)
        return Need(most.tried, most.confidence, not found.left)

    busiest = Need(answer.best, certainty(answer.best, answer.figures), not hunt.left)
    return day_of(rates, busiest, look)


def _break_even(hunt: Hunt, best: Candidate) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield each other GPU with which the limits are kept, and at which prices it costs as much."""
    for gpu, name in {e.engine.gpu: e.engine.gpu_name for e in hunt.possible}.items():
        cheapest = hunt.cheapest(gpu)
        if gpu != best.engine.gpu and cheapest is not None:
            yield name, break_even(best, cheapest.candidate)


class _Answer(NamedTuple):
    """A candidate, its run, its scenario, and the figures of a run of so many requests.

    earlier: what shorter runs missed, in words; "" for nothing.
    """

    best: Tried
    trial: Trial
    scenario: Scenario
    figures: dict[str, Any]
    number: int
    earlier: str = ""


def _best(question: Question, hunt: Hunt, refining: Refining) -> _Answer:
    """Return the answer, with figures that keep the limits if any candidate has such.

    A run that judged may have ended before the peak of the arrivals, or chance was with it: a
    candidate whose reported run misses runs longer, and if it still misses gives way to the next
    that seems to keep the limits. If none does, the answer is the first. Raises ScenarioError if no
    candidate seems to keep the limits, or if a run fails.
    """
    first = None
    while (best := hunt.best) is not None and best.trial is not None:
        chosen = scenario_of(best.candidate, question)
        lengths = refining.lengths(Built(chosen).simulation.workload.arrivals)
        earlier = ""
        for number in lengths:
            if earlier and hunt.budget.is_late:
                break
            figures = _figures(best.candidate, chosen, number, refining)
            found = _Answer(best, best.trial, chosen, figures, number, earlier)
            if not (missed := missed_in(figures)):
                return found
            earlier = f"{_over(number, question)}: {missed}"
        first = first or found
        good = found.figures.get("good_request_fraction", nan)
        hunt.go_on(good, found.number, earlier)
    if first is None:
        raise ScenarioError("no deployment keeps the limits")
    return first


def _figures(
    candidate: Candidate, chosen: Scenario, number: int, refining: Refining
) -> dict[str, Any]:
    """Return the summary of a run of a candidate's scenario, whatever the time."""
    driver = refining.driver
    deadline, driver.deadline = driver.deadline, None  # no answer is without this run
    figures = refining.figures({"at rate": chosen}, number)
    driver.deadline = deadline
    if "at rate" not in figures:
        raise ScenarioError(f"{candidate.name}: its run failed; please try another --seed")
    return figures["at rate"]


def _over(number: int, question: Question) -> str:
    """Return over how many requests a run was, in words."""
    return "the whole workload" if number == question.num_requests else f"{number:,} requests"


def _one_more(
    best: Candidate, at_rate: Mapping[str, Any], question: Question, refining: Refining
) -> dict[str, dict[str, Any]]:
    """Return the figures with one engine more, where a limit lies within the expected error."""
    near = [name for name, each in at_rate.get("slo", {}).items() if each["verdict"] == WITHIN]
    more = best.with_one(metric_of(near[0])) if near else None
    if more is None:
        return {}
    name = f"{more.num_gpus} x {more.engine.gpu_name}, {more.dollars:.4g} $/h,"
    return refining.figures({name: scenario_of(more, question)})


def _unasked(question: Question, at_rate: Mapping[str, Any]) -> Iterator[str]:
    """Yield a note for each limit that no request has, since all are of classes."""
    known = {limit_of(figure)[0] for figure in at_rate.get("slo", {})}
    for name in question.target.slo.limits:
        if name not in known:
            yield (
                f"The limit on {limit_title(name)} of requests of no class is left out: all are of "
                "one."
            )


def _notes(hunt: Hunt, answer: _Answer, question: Question) -> Iterator[str]:
    best, trial, sure = answer.best, answer.trial, hunt.sure
    for each, what in hunt.overruled.items():
        yield (
            f"{each.name} ({each.offer}) seemed to keep the limits in the run that judged it, "
            f"and misses over {what}."
        )
    if best.candidate in hunt.overruled:
        yield "No candidate that was tried keeps the limits so long; shown is that of least price."
    elif answer.earlier:
        yield (
            f"The answer misses over {answer.earlier}. Shown is a run over "
            f"{_over(answer.number, question)}, which keeps the limits."
        )
    if not trial.is_steady:
        yield "Judged for the workload as it stands; short ones flatter."
        yield from filter(None, [doubt_of(trial)])
    if best.is_undecided:
        told = f"{100 * trial.attainment:.1f} % of {trial.num_requests:,} requests are good"
        yield f"Not sure to keep the limits: {told}, but {trial.reason}."
        if sure is not None:
            told = f"{sure.candidate.name} ({sure.candidate.offer})"
            low, high = best.candidate.price, sure.candidate.price
            if between := sum(low < each.price < high for each in hunt.untried):
                told += f"; {in_words(between, 'candidate')} between it and the answer had no run"
            yield f"Of those tried, the cheapest that surely keeps the limits is {told}."
    if left := hunt.left:
        yield f"{_open(hunt, left)}: more --total-requests, or --most-requests, may tell."


def _cut_off(
    hunt: Hunt, fewer: Mapping[str, Candidate | None], found: Mapping[str, Any]
) -> Iterator[str]:
    """Yield what was not run, since the time was up."""
    if not hunt.budget.is_late:
        return
    goodput = found["goodput"]
    missing = [
        *["the goodput"] * (goodput.status == "stopped"),
        *["what binds"] * (goodput.binding is None),
        *[f"what is with {name}" for name in fewer if name not in found["one_less"]],
    ]
    if hunt.left:
        missing.append(f"{len(hunt.left)} cheaper candidates to their end")
    told = f"; not run: {listed(missing)}" if missing else ""
    yield f"The time of --seconds was up after {in_words(len(hunt.tried), 'candidate')}{told}."


def _open(hunt: Hunt, left: Sequence[Candidate]) -> str:
    """Return a text on the candidates that may still keep the limits."""
    first = left[0]
    told = [first.offer]
    found = hunt.tried.get(first)
    if found is not None and found.trial is not None and not isnan(found.trial.attainment):
        told.append(f"{found.trial.good} so far")
    name = f"{first.name} ({', '.join(told)})"
    if len(left) == 1:
        return f"1 cheaper candidate is undecided, {name}"
    return f"{len(left)} cheaper candidates are undecided, the most promising {name}"


def _runners_up(hunt: Hunt, best: Tried, tried: Sequence[Tried], shop: Shop) -> Iterator[str]:
    """Yield the runner-up, then a line for each other GPU: its cheapest, or why it has none."""
    yield (first := runner_up(best, tried, hunt.dearer))
    for gpu, name in {each.gpu: each.gpu_name for each in shop.engines}.items():
        cheapest = hunt.cheapest(gpu)
        known = gpu == best.candidate.engine.gpu
        if known or (cheapest is not None and first.startswith(cheapest.candidate.name)):
            continue
        possible = sum(each.engine.gpu == gpu for each in hunt.possible)
        if cheapest is not None:
            yield kept_by(best, cheapest, [e for e in hunt.dearer if e.engine.gpu == gpu])
        elif possible:
            mine = [each for each in tried if each.candidate.engine.gpu == gpu and each.trial]
            nearest = f" {nearest_miss(mine)}" if mine else ""
            number = sum(each.engine.gpu == gpu for each in hunt.tried)
            yield (
                f"{name}: {number} of {possible} candidates tried, and none keeps the limits."
                f"{nearest}"
            )
        else:
            alone = {each for engine, each in hunt.impossible.items() if engine.gpu == gpu}
            why = f"cannot keep {listed(sorted(alone))} even for a request alone"
            yield f"{name}: {why if alone else 'too few engines for the work within the budget'}."


def _row(each: Tried, hunt: Hunt) -> dict[str, Any]:
    """Return a row of `Plan.table`."""
    candidate, trial = each.candidate, each.trial
    return {
        "name": candidate.name,
        "gpu": candidate.engine.gpu,
        "tensor_parallel_size": candidate.engine.width,
        "design": candidate.setting,
        "num_gpus": candidate.num_gpus,
        "usd_per_hour": candidate.dollars,
        "verdict": trial.verdict if trial else "impossible",
        "attainment": trial.attainment if trial else nan,
        "limit": trial.worst_limit if trial else None,
        "num_requests": trial.num_requests if trial else 0,
        "estimate": hunt.estimate(candidate),
        "problem": each.problem,
        "is_whole": trial is None or trial.is_whole,
    }


def _title(question: Question, shop: Shop) -> str:
    limits = ", ".join(
        f"{limit_title(name)} {duration(limit)}"
        for name, limit in question.target.slo.named_limits.items()
    )
    gpus = listed(dict.fromkeys(engine.gpu_name for engine in shop.engines))
    return (
        f"{question.model} {_load(question)}; "
        f"{100 * question.target.attainment:g} % keep {limits}; from {gpus}; "
        f"at most {question.options.budget}"
    )


def _load(question: Question) -> str:
    """Return the rate, or the users and how long they think, in words."""
    load = load_in_words(question.rate)
    if (loop := question.loop) is None:
        return f"at {load}"
    think = loop.think_time
    if isinstance(think, ExponentialDuration):
        return f"for {load}, who think {duration(think.mean)} on average"
    return (
        f"for {load}"
        if isinstance(think, DurationDistribution) or not think
        else (f"for {load}, who think {duration(think)}")
    )


def _nothing_to_buy(question: Question, shop: Shop) -> str:
    kinds = Counter(each.kind for each in shop.others)
    kind, number = kinds.most_common(1)[0]
    first = next(each for each in shop.others if each.kind == kind)
    others = [f"; {gpu}: {reason}" for gpu, reason in shop.lost.items() if gpu != first.gpu]
    return (
        f"no engine for {question.model} can be bought: {kind} excludes {number} of "
        f"{len(shop.others)}, such as {first.name}: {first.reason}{''.join(others)}"
    )


def _no_answer(question: Question, shop: Shop, hunt: Hunt) -> str:
    """Return why there is no answer: the most frequent obstacle, and the closest candidate."""
    left = hunt.left
    reasons: Counter[str] = Counter(hunt.excluded)
    for each in hunt.tried.values():
        if each.trial is None:
            reasons["lack what their design needs"] += 1
        else:
            worst = limit_title(each.trial.worst_limit)
            verb = "miss" if each.trial.attained is False else "may miss"
            reasons[f"{verb} {worst}"] += 1
    most = f"none of {hunt.num_candidates} candidates was tried"
    if reasons:
        parts = [f"{count} {reason}" for reason, count in reasons.most_common(3)]
        most = f"of {hunt.num_candidates} candidates {', '.join(parts)}"
    nearest, told = hunt.nearest, ""
    if nearest is not None and nearest.trial is not None:
        told = (
            f"; {nearest.candidate.name} comes nearest, with {nearest.trial.good} requests of "
            f"{load_in_words(question.rate)}"
        )
    if left:
        what = f"{_open(hunt, left)}; more --total-requests, --most-requests or --seconds may tell"
    elif len(hunt.impossible) == len(shop.engines):
        what = "no number of these GPUs can: relax the limits, or give other --gpus"
    else:
        what = "raise --max-gpus or --max-usd-per-hour, or relax the limits"
    lost = "".join(f"; {gpu} is left out: {reason}" for gpu, reason in shop.lost.items())
    return (
        f"no deployment of {question.model} within {question.options.budget} "
        f"{'is seen to keep' if left else 'keeps'} the limits "
        f"{_load(question)}: {most}{told}; {what}{lost}"
    )
