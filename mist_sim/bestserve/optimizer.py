"""BestServe's Optimizer: the goodput of every strategy, and the best one per GPU.

A strategy and a seed are a task of a study, which is searched in BestServe's simulators. The paper
does not ask whether a strategy fits in memory; here one that does not is left out, with the reason.
The best few can be searched in the full simulation as well.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from math import nan
from typing import Any, Unpack, get_args

from mist_sim.bestserve.drawn_requests import Requests, requests_of
from mist_sim.bestserve.engines import Engines, Template
from mist_sim.bestserve.largest_rate import at_rate, most_a_second, search_rate, served_alone
from mist_sim.bestserve.ranking import Entry, Per, Ranking
from mist_sim.bestserve.simulation import Method
from mist_sim.bestserve.space import Space
from mist_sim.bestserve.strategy import Strategy
from mist_sim.core.result_warnings import of_data
from mist_sim.errors import ScenarioError, brief, first_problem
from mist_sim.hardware import load_gpu
from mist_sim.metrics import CostOptions
from mist_sim.metrics.spending import dollars_an_hour
from mist_sim.output import json_text
from mist_sim.report.elements import duration
from mist_sim.scenario import Scenario
from mist_sim.scenario.loading import as_data
from mist_sim.search.at_goodput import at_goodput
from mist_sim.search.bracketing import Bracket, settable
from mist_sim.search.goodput import GoodputOptions, search_goodputs
from mist_sim.search.goodput_result import Goodput, SeedGoodput
from mist_sim.search.verdicts.trials import Trial
from mist_sim.studies.built import Built
from mist_sim.studies.driver import Driver, How, studying
from mist_sim.studies.rates import Rates
from mist_sim.studies.seeds import seeds_from
from mist_sim.studies.task import Failure, Key, Row, Task


def priced(
    entries: Iterable[Entry], template: Template, longest: int, *, is_needed: bool
) -> Iterator[Entry]:
    """Yield entries with the dollars of their GPUs an hour.

    longest: tokens of the longest prompt. is_needed: raise ScenarioError for a GPU without a price.
    """
    cost = template.scenario.cost
    options = cost.make() if cost else CostOptions()
    known: dict[Strategy, float] = {}
    for entry in entries:
        if entry.left_out:
            yield entry
            continue
        one = replace(entry.strategy.one_of_each, together=1, prefill=0, decode=0)
        if one not in known:
            clients = Built(template.full(one, longest)).simulation.clients
            try:
                known[one] = dollars_an_hour([clients[0].traits.machine], options)
            except ScenarioError:
                if is_needed:
                    raise
                known[one] = nan
        yield replace(entry, usd_per_hour=known[one] * entry.strategy.num_instances)


def powered(
    entries: Sequence[Entry], template: Template, longest: int, driver: Driver
) -> list[Entry]:
    """Return entries with the joules of a request, of a full run at each one's goodput.

    longest: tokens of the longest prompt. An entry without goodput has none, nor one whose run
        failed. Raises what a run raises if all of them fail.
    """
    tasks = [
        at_goodput((k, "at goodput"), Built(template.full(entry.strategy, longest)), entry.goodput)
        for k, entry in enumerate(entries)
        if entry.goodput is not None and entry.rate > 0
    ]
    rows = driver.run(tasks, keep_errors=True)
    found = {row.key[0]: row.result for row in rows if row.failure is None}
    if rows and not found and (failure := rows[0].failure):
        raise failure.exception
    return [
        replace(entry, joules=1 / found[k]["requests_per_joule"])
        if found.get(k, {}).get("requests_per_joule")
        else entry
        for k, entry in enumerate(entries)
    ]


FEASIBLE = GoodputOptions(attainment=0.9, relaxation=0.1, each=True)
"""Algorithm 9: nine of ten keep each limit, which times may exceed by a tenth."""


def rank_strategies(
    scenario: Scenario,
    space: Space | None = None,
    options: GoodputOptions = FEASIBLE,
    *,
    method: Method | None = None,
    by: Per = "gpu",
    check: int = 0,
    **how: Unpack[How],
) -> Ranking:
    """Return the strategies of a space by their goodput per GPU (Algorithms 8 and 9, Figure 11).

    by: "usd" ranks them by the goodput for a dollar, at the scenario's prices, else at those of the
    catalog; "joule" by that for a joule, of a run of each strategy at its goodput in the full
    simulation.

    scenario: workload, limits, and one client entry, whose engine the instances have; with
    replications every one is searched. options: what counts as attained, which rates are tried and
    how closely; runs have the requests of the workload as it stands. check: so many of the best
    are searched in the full simulation too. how: see `How`.
    Raises ScenarioError for a scenario of which no strategies can be made (`Template`), for
    requests that BestServe cannot serve, and where no strategy fits.
    """
    template, space, method = Template(scenario), space or Space(), method or Method()
    if check < 0:
        raise ScenarioError(f"check must be >= 0, got {check}")
    if by not in (known := get_args(Per)):
        raise ScenarioError(f"by must be one of {', '.join(known)}, got {brief(by)}")
    for gpu in space.gpus:
        load_gpu(gpu)  # an unknown one is bad input, not a strategy that does not fit
    strategies = space.strategies(template.layout)
    target = options.target(scenario)
    requests = requests_of(scenario, scenario.seed)
    data, seeds = as_data(scenario), seeds_from(scenario.seed, scenario.replications)
    how_searched = options, method
    tasks = [
        Task((number, strategy.label, seed), search_strategy, (data, strategy, seed, *how_searched))
        for number, strategy in enumerate(strategies)
        for seed in seeds
    ]
    with studying(
        "bestserve",
        {"scenario": data},
        {**vars(options), "space": space, "method": method, "check": check, "by": by},
        **how,
    ) as driver:
        done: dict[Key, Row] = {}
        driver.so_far = lambda: _so_far(done, strategies, len(tasks))
        rows = driver.run(tasks, keep_errors=True, rows=done)
        entries = [
            _entry(
                template, strategy, rows[k * len(seeds) : (k + 1) * len(seeds)], options, requests
            )
            for k, strategy in enumerate(strategies)
        ]
        _raise_if_none(entries, rows)
        longest = int(requests.prompt.max())
        entries = list(priced(entries, template, longest, is_needed=by == "usd"))
        if by == "joule":
            entries = powered(entries, template, longest, driver)
        ranking = Ranking.of(entries, requests, target, scenario.headline, seeds, by)
        return _checked(ranking, template, options, check, driver) if check else ranking


def _so_far(done: Mapping[Key, Row], strategies: Sequence[Strategy], number: int) -> str:
    """Return the best of the finished searches of a stopped ranking; empty before the first."""
    if not done:
        return ""
    rates = []
    for row in done.values():
        strategy, result = strategies[int(row.key[0])], row.result if row.failure is None else {}
        trials = [Trial.of(trial) for trial in result.get("trials", ())]
        low = Bracket.of({trial.rate: trial.seems_attained for trial in trials}).low
        rates.append(((low or 0.0) / strategy.num_gpus, strategy.label))
    best, label = max(rates)
    told = f"{len(done)} of {number} searches of strategies done; "
    if not best:
        return f"{told}none serves any rate so far"
    return f"{told}the largest goodput per GPU so far is {best:.4g} /s, of {label}"


def search_strategy(
    data: dict[str, Any], strategy: Strategy, seed: int, options: GoodputOptions, method: Method
) -> dict[str, Any]:
    """Search the goodput of a strategy with a seed, as a task of a study; return plain data.

    `left_out` is why it was not tried at any rate. Otherwise `trials`, or the limit that it misses
    at all rates (`too_slow`), and the `warnings` of its engines.
    """
    text = json_text(data)
    template, requests = _known(text, seed)
    try:
        engines = _engines_of(text, seed, strategy.one_of_each)
    except ScenarioError as error:
        return {"left_out": first_problem(error)}
    if reason := engines.lacks_room(strategy, requests):
        return {"left_out": reason}
    told = {"warnings": [each.data for each in engines.warnings]}
    alone, target = served_alone(requests, engines.times), options.target(template.scenario)
    if target.num_missed(alone) > target.most_missed(len(alone)):
        worst = target.worst_limit(alone) or ""
        return {"too_slow": worst, "seconds": float(getattr(alone, worst).mean()), **told}
    search = options.search(most_a_second(strategy, requests, engines.times))
    simulate = at_rate(
        strategy,
        requests,
        engines.times,
        seed=seed,
        method=method,
        warmup=template.scenario.warmup,
    )
    found = search_rate(simulate, target, search, seed=seed)
    return {"trials": [trial.data() for trial in found.trials], **told}


@lru_cache(maxsize=8)
def _known(text: str, seed: int) -> tuple[Template, Requests]:
    """Return a scenario, given as JSON text, and its requests as at one a second."""
    template = Template(Scenario.from_dict(json.loads(text)))
    return template, requests_of(template.scenario, seed)


@lru_cache(maxsize=64)
def _engines_of(text: str, seed: int, strategy: Strategy) -> Engines:
    """Return the engines of strategies that differ only in their counts, with shared step times."""
    template, requests = _known(text, seed)
    return Engines.of(template, strategy, int(requests.prompt.max()))


def _entry(
    template: Template,
    strategy: Strategy,
    rows: Sequence[Row],
    options: GoodputOptions,
    requests: Requests,
) -> Entry:
    """Return the entry of a strategy, from a row per seed."""
    for row in rows:
        if row.failure:
            return Entry(strategy, left_out=str(row.failure))
        if reason := row.result.get("left_out"):
            return Entry(strategy, left_out=reason)
    known = of_data(rows[0].result)
    slow = [row.result for row in rows if "too_slow" in row.result]
    if slow:
        name, seconds = slow[0]["too_slow"], duration(float(f"{slow[0]['seconds']:.3g}"))
        return Entry(
            strategy,
            too_slow=f"a request that is alone has a mean {name.upper()} of {seconds}",
            known_warnings=known,
        )
    searches = []
    for row in rows:
        trials = [Trial.of(trial) for trial in row.result["trials"]]
        bracket = Bracket.of({trial.rate: trial.seems_attained for trial in trials})
        searches.append(SeedGoodput.of(int(row.key[-1]), bracket, trials))
    full = template.full(strategy, int(requests.prompt.max()))
    low = searches[0].bracket.low
    settings = Rates(full, Built(full)).at(low) if low is not None else {}
    at_that_rate = Scenario.from_dict(as_data(full), settings)
    goodput = Goodput(
        searches=tuple(searches),
        target=options.target(template.scenario),
        tolerance=options.tolerance,
        num_requests=len(requests),
        num_gpus=strategy.num_gpus,
        scenario=at_that_rate.resolved(),
        title=full.headline,
        settings=settings,
    )
    return Entry(strategy, goodput=goodput, known_warnings=known)


def _raise_if_none(entries: Sequence[Entry], rows: Sequence[Row]) -> None:
    """Raise ScenarioError, with the first reason, if every strategy was left out."""
    if any(entry.left_out is None for entry in entries):
        return
    error = next((row.failure.error for row in rows if row.failure), None)
    first = entries[0]
    more = f", and {len(entries) - 1} others" if len(entries) > 1 else ""
    raise ScenarioError(
        f"no strategy fits: {first.label} is left out{more}: {first.left_out}"
    ) from error


def _checked(
    ranking: Ranking, template: Template, options: GoodputOptions, check: int, driver: Driver
) -> Ranking:
    """Search the best in the full simulation too, from the rates that BestServe's have."""
    best = [entry for entry in ranking.entries if entry.rate > 0]
    best = best[:check]
    builts = []
    for entry in best:
        full = template.full(entry.strategy, ranking.longest_prompt)
        changes = Rates(full, Built(full)).at(settable(entry.rate))
        builts.append(Built(Scenario.from_dict(as_data(full), changes)))
    whole = replace(options, as_is=True, rates=None)
    found = search_goodputs(builts, whole, driver, keep_errors=True)
    checked = {
        entry.strategy: replace(
            entry,
            full=each if isinstance(each, Goodput) else None,
            full_failure=str(each) if isinstance(each, Failure) else None,
        )
        for entry, each in zip(best, found, strict=True)
    }
    return ranking.with_entries([checked.get(e.strategy, e) for e in ranking.entries])
