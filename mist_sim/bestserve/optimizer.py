"""BestServe's Optimizer: the goodput of every strategy, those left out, and the best one per GPU.

A strategy and a seed are a task of a study, which is searched in BestServe's simulators by
Algorithm 8. Feasible (Algorithm 9) is what `Target` calls attained with `each=True` and
`relaxation=0.1`: nine of ten requests keep the limit of TTFT, and nine of ten that of TPOT, each
times 1.1. The bisection is `search.bracketing`'s, which says how the printed one is corrected.

The paper does not ask whether a strategy fits in memory; here one that does not is left out, with
the reason. The best few can be searched in the full simulation as well.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import lru_cache
from math import isnan, nan
from textwrap import wrap
from typing import Any, Literal, Unpack, get_args

import numpy as np

from mist_sim.bestserve.drawn_requests import Requests, requests_of
from mist_sim.bestserve.engines import Engines, Template
from mist_sim.bestserve.oracle import Times
from mist_sim.bestserve.simulators import Method, contexts, pseudo_batches, simulate_strategy
from mist_sim.bestserve.strategy import Space, Strategy
from mist_sim.core import result_warnings as kinds
from mist_sim.core.result_warnings import ResultWarning, of_data, of_points
from mist_sim.errors import ScenarioError, brief, first_problem
from mist_sim.hardware import load_gpu
from mist_sim.metrics import CostOptions
from mist_sim.metrics.spending import dollars_an_hour
from mist_sim.output import json_text
from mist_sim.report.elements import duration
from mist_sim.report.presenters import BESTSERVE
from mist_sim.scenario import Scenario
from mist_sim.scenario.loading import as_data
from mist_sim.search.at_goodput import at_goodput
from mist_sim.search.bracketing import Search, SeedGoodput, drive, once_each, seeming, settable
from mist_sim.search.goodput import GoodputOptions, search_goodputs
from mist_sim.search.goodput_result import Goodput
from mist_sim.studies.built import Built
from mist_sim.studies.driver import Driver, How, studying
from mist_sim.studies.subjects import seeds_from
from mist_sim.studies.tabled import Content, Tabled
from mist_sim.studies.task import Key, Row, Task
from mist_sim.studies.verdicts.request_times import RequestTimes, Target, none_counts
from mist_sim.studies.verdicts.trials import Trial

Per = Literal["gpu", "usd", "joule"]
"""A goodput a GPU, for a dollar, or for a joule."""

_HOUR = 3600.0


@dataclass
class Entry:
    """The result of a strategy.

    goodput: in BestServe's simulators. full: in the full simulation, if requested;
    full_failure: why there is none. left_out: why it is impossible, such as a model that does not
        fit.
    too_slow: why it attains no rate at all.
    usd_per_hour: of all its GPUs; NaN if unknown. joules: of a request at the goodput, in a full
        run at that rate; NaN if not requested. known_warnings: of its engines.
    """

    strategy: Strategy
    goodput: Goodput | None = None
    full: Goodput | None = None
    full_failure: str | None = None
    left_out: str | None = None
    too_slow: str | None = None
    usd_per_hour: float = nan
    joules: float = nan
    known_warnings: tuple[ResultWarning, ...] = ()

    @property
    def label(self) -> str:
        """Name, layout, and batches of prompts and answers, such as "2m-tp4 4/16"."""
        strategy = self.strategy
        return f"{strategy.label} {strategy.prefill_batch}/{strategy.decode_batch}"

    @property
    def rate(self) -> float:
        """The goodput, requests per second; 0 if no rate is attained, NaN if unknown."""
        if self.too_slow:
            return 0.0
        if self.goodput is None:
            return nan
        return 0.0 if self.goodput.status == "all missed" else self.goodput.rate

    @property
    def per_gpu(self) -> float:
        """The paper's normalised goodput: requests per second and GPU."""
        return self.per("gpu")

    def per(self, what: Per) -> float:
        """Return the goodput in requests per second and GPU, for a dollar, or for a joule."""
        return self.rate / self.divisor(what) if self.rate else self.rate

    def divisor(self, what: Per) -> float:
        """Return by what a rate is divided: GPUs, dollars a second, or watts at the goodput."""
        if what == "gpu":
            return float(self.strategy.num_gpus)
        return self.usd_per_hour / _HOUR if what == "usd" else self.joules * self.rate

    @property
    def interval(self) -> tuple[float, float]:
        """Interval of the goodput, requests per second."""
        if self.goodput is None:
            return (0.0, 0.0) if self.too_slow else (nan, nan)
        return self.goodput.interval


_CAUTION = (
    "BestServe's models find the goodputs; they take TPOT for shorter than the full simulation "
    "does. At such a rate mist run may show many bad requests: mist goodput finds the rate that is "
    "served, and --check does for the best."
)


def in_order(entries: Iterable[Entry], by: Per) -> tuple[Entry, ...]:
    """Return entries by their goodput per GPU, dollar or joule; of equal ones fewer GPUs first."""

    def place(entry: Entry) -> tuple[bool, float, int]:
        value = entry.per(by)
        return isnan(value), 0.0 if isnan(value) else -value, entry.strategy.num_gpus

    return tuple(sorted(entries, key=place))


@dataclass(frozen=True, repr=False)
class Ranking(Tabled):
    """Strategies by goodput per GPU, dollar or joule, the best first; those left out are last.

    entries: as `in_order` has them. requests: of a run. target: the condition of attainment. seeds:
    of the searches. title: what was simulated, in words. by: what the goodput is divided by.
    """

    presenter = BESTSERVE
    stem = "bestserve"

    entries: tuple[Entry, ...]
    requests: Requests = field(compare=False)
    target: Target
    seeds: tuple[int, ...]
    title: str = ""
    by: Per = "gpu"

    @property
    def mean_output(self) -> float:
        """Tokens of an answer, on average."""
        return float(self.requests.output.mean())

    @property
    def best(self) -> Entry | None:
        """The strategy with the largest goodput per GPU, dollar or joule; None if none has any."""
        first = self.entries[0]
        return first if first.per(self.by) > 0 else None

    def is_close(self, entry: Entry) -> bool:
        """Whether an entry's interval of goodput, divided alike, overlaps the best one's.

        With one seed intervals are the search's own, and do not cover other seeds.
        """
        best = self.best
        if best is None or isnan(entry.rate):
            return False
        high, low = entry.interval[1], best.interval[0]
        return high / entry.divisor(self.by) >= low / best.divisor(self.by)

    @property
    def num_runs(self) -> int:
        """Number of runs in both simulations."""
        both = [found for e in self.entries for found in (e.goodput, e.full) if found]
        return sum(found.num_runs for found in both)

    @property
    def cells(self) -> Iterator[dict[str, Any]]:
        """A row a strategy, the best first; rates in requests per second, tokens per second.

        full_goodput, full_error: where the full simulation was asked: its goodput, and the share by
        which BestServe's is above it.
        """
        return map(self._row, self.entries)

    def _row(self, entry: Entry) -> dict[str, Any]:
        strategy, found = entry.strategy, entry.goodput
        prompt = float(self.requests.prompt.mean())
        full = entry.full.rate if entry.full else nan
        return {
            "strategy": strategy.name,
            "gpu": strategy.gpu or "",
            "tensor_parallel_size": strategy.tensor_parallel_size,
            "pipeline_parallel_size": strategy.pipeline_parallel_size,
            "prefill_batch": strategy.prefill_batch,
            "decode_batch": strategy.decode_batch,
            "num_gpus": strategy.num_gpus,
            "usd_per_hour": entry.usd_per_hour,
            "goodput": entry.rate,
            "low": entry.interval[0],
            "high": entry.interval[1],
            "goodput_per_gpu": entry.per_gpu,
            "goodput_per_usd": entry.per("usd"),
            "goodput_per_joule": entry.per("joule"),
            "output_tokens_per_s": entry.rate * self.mean_output,
            "output_tokens_per_s_per_gpu": entry.per_gpu * self.mean_output,
            "total_tokens_per_s_per_gpu": entry.per_gpu * (prompt + self.mean_output),
            "first_limit": (found.first_limit or "") if found else "",
            "is_close": self.is_close(entry),
            "full_goodput": full,
            "full_error": entry.rate / full - 1 if full else nan,
            "left_out": entry.left_out or "",
            "too_slow": entry.too_slow or "",
        }

    @property
    def warnings(self) -> tuple[ResultWarning, ...]:
        """Warnings of the searches of strategies.

        A strategy that misses at every rate is in the table with a goodput of 0, so its search has
        nothing to add.
        """
        mine: dict[str, list[ResultWarning]] = {}
        for entry in self.entries:
            found = list(entry.goodput.warnings) if entry.goodput is not None else []
            if entry.goodput is not None and entry.goodput.status == "all missed":
                found = [each for each in found if each.kind not in _OF_MISSED]
            if entry.full is not None:
                found += entry.full.warnings
            if entry.full_failure:
                text = f"the full simulation failed: {entry.full_failure}"
                found.append(ResultWarning(kinds.FULL_FAILED, text))
            mine[entry.label] = [*found, *entry.known_warnings]
        return (ResultWarning(kinds.BESTSERVE, _CAUTION), *of_points(mine))

    @property
    def data(self) -> dict[str, Any]:
        """Everything but the warnings as plain data; rates in requests per second."""
        best, target = self.best, self.target
        return {
            "best": self._row(best) | {"strategy_fields": asdict(best.strategy)} if best else None,
            "num_strategies": len(self.entries),
            "num_left_out": sum(entry.left_out is not None for entry in self.entries),
            "num_runs": self.num_runs,
            "num_requests": len(self.requests),
            "mean_prompt_tokens": float(self.requests.prompt.mean()),
            "mean_output_tokens": self.mean_output,
            "seeds": list(self.seeds),
            "by": self.by,
            "slo_ms": {name: limit * 1e3 for name, limit in target.slo.limits.items()},
            "attainment_asked": target.attainment,
            "relaxation": target.relaxation,
            "each_limit_alone": target.each,
            "strategies": self.table.to_dict("records"),
        }

    def __repr__(self) -> str:
        found = f"best {self.best.label}" if self.best else "none attains"
        return f"<Ranking: {len(self.entries)} strategies, {found}>"

    @property
    def files(self) -> dict[str, Content]:
        """All rates tried, and the scenario of the best strategy."""
        import pandas as pd

        found: dict[str, Content] = {}
        tried = [
            entry.goodput.table.assign(strategy=entry.label)
            for entry in self.entries
            if entry.goodput is not None
        ]
        if tried:
            found["trials.csv"] = pd.concat(tried)
        if (best := self.best) is not None and best.goodput is not None:
            caution = "".join(f"# {line}\n" for line in wrap(_CAUTION, 98))
            found["best.yaml"] = caution + best.goodput.scenario
        return found


_OF_MISSED = (kinds.ALL_MISSED, kinds.LONE_REQUESTS)


FEASIBLE = GoodputOptions(attainment=0.9, relaxation=0.1, each=True)
"""Algorithm 9: nine of ten keep each limit, which times may exceed by a tenth."""

Simulate = Callable[[float], RequestTimes]
"""Serves requests at a rate, requests per second; returns their latencies."""


def search_rate(simulate: Simulate, target: Target, search: Search, *, seed: int) -> SeedGoodput:
    """Return the largest rate that attains a target, within the search's tolerance.

    simulate: any simulator: BestServe's, the full one, or your own. search: the rates to try, from
        `bracketing.around` or `bracketing.between`. seed: of the simulation, for the result.
    """

    def tried(rate: float) -> Trial:
        times = simulate(rate)
        num, missed = len(times), target.num_missed(times)
        return Trial(
            rate,
            seed,
            missed <= target.most_missed(num),
            (num - missed) / num,
            is_whole=True,
            num_requests=num,
            worst_limit=target.worst_limit(times),
        )

    trials = {(0, seed): list[Trial]()}
    searches = {key: once_each(search, mine) for key, mine in trials.items()}
    drive(searches, lambda asked: [tried(rate) for _, (rate, _) in asked], trials)
    return SeedGoodput.seeming(trials[0, seed], seed)


def at_rate(
    strategy: Strategy,
    requests: Requests,
    times: tuple[Times, Times],
    *,
    seed: int,
    method: Method,
    warmup: float = 0.0,
) -> Simulate:
    """Return a function that serves requests at a rate. requests: as at one request a second."""

    def simulate(rate: float) -> RequestTimes:
        scaled = requests.scaled(rate)
        served = simulate_strategy(strategy, scaled, times, seed=seed, method=method)
        found = served.times(warmup)
        if not len(found):
            raise none_counts(warmup, rate)
        return found

    return simulate


def served_alone(requests: Requests, times: tuple[Times, Times]) -> RequestTimes:
    """Return the latencies of requests that are alone, each on an instance: no rate has others."""
    pairs = list(zip(requests.prompt.tolist(), requests.output.tolist(), strict=True))
    context = contexts(requests.prompt.tolist(), requests.output.tolist())
    ttft = np.array([times[0].prefill((prompt,)).latency for prompt, _ in pairs])
    steps = [times[1].decode(1, each) for each in context]
    tpot = np.where(requests.output > 1, steps, 0.0)
    return RequestTimes(ttft, tpot, ttft + tpot * requests.output)


def most_a_second(strategy: Strategy, requests: Requests, times: tuple[Times, Times]) -> float:
    """Return an estimate of a strategy's requests per second, where the search begins.

    It assumes full batches of mean lengths. The paper's upper end, 1.2 over the time
    of one request, is for one instance without batches.
    """
    prompt, output = int(requests.prompt.mean()), int(requests.output.mean())
    batch, boxes = strategy.prefill_batch, strategy.decode_batch
    prefill = times[0].prefill((prompt,) * batch).busy / batch
    pseudo = pseudo_batches(boxes, Method().tau)[-1]
    decode = output * times[1].decode(pseudo, contexts([prompt], [output])[0]) / boxes
    if strategy.is_apart:
        return min(strategy.prefill / prefill, strategy.decode / decode)
    return strategy.together / (prefill + decode)


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
    longest = int(requests.prompt.max())
    data, seeds = as_data(scenario), seeds_from(scenario.seed, scenario.replications)
    tasks = [
        Task((k, strategy.label, seed), search_strategy, (data, strategy, seed, options, method))
        for k, strategy in enumerate(strategies)
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
        _price(entries, template, longest, is_needed=by == "usd")
        if by == "joule":
            _power(entries, template, longest, driver)
        ordered = in_order(entries, by)
        best = [entry for entry in ordered if entry.rate > 0][:check]
        _check(best, template, longest, options, driver)
        return Ranking(ordered, requests, target, seeds, scenario.headline, by)


def _so_far(done: Mapping[Key, Row], strategies: Sequence[Strategy], number: int) -> str:
    """Return the best of the finished searches of a stopped ranking; empty before the first."""
    if not done:
        return ""
    rates = []
    for row in done.values():
        strategy, result = strategies[int(row.key[0])], row.result if row.failure is None else {}
        low = seeming(list(map(Trial.of, result.get("trials", ())))).low
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
        if reason := row.failure or row.result.get("left_out"):
            return Entry(strategy, left_out=str(reason))
    known = of_data(rows[0].result)
    for row in rows:
        if name := row.result.get("too_slow"):
            seconds = duration(float(f"{row.result['seconds']:.3g}"))
            why = f"a request that is alone has a mean {name.upper()} of {seconds}"
            return Entry(strategy, too_slow=why, known_warnings=known)
    searches = []
    for row in rows:
        trials = list(map(Trial.of, row.result["trials"]))
        searches.append(SeedGoodput.seeming(trials, int(row.key[-1])))
    full = template.full(strategy, int(requests.prompt.max()))
    low = searches[0].bracket.low
    settings = Built(full).rates.at(low) if low is not None else {}
    goodput = Goodput(
        searches=tuple(searches),
        target=options.target(template.scenario),
        tolerance=options.tolerance,
        num_requests=len(requests),
        num_gpus=strategy.num_gpus,
        scenario=Scenario.from_dict(as_data(full), settings).resolved(),
        title=full.headline,
        settings=settings,
    )
    return Entry(strategy, goodput=goodput, known_warnings=known)


def _price(entries: Sequence[Entry], template: Template, longest: int, *, is_needed: bool) -> None:
    """Note the dollars of the GPUs of entries an hour.

    is_needed: raise ScenarioError for a GPU without a price.
    """
    cost = template.scenario.cost
    options = cost.make() if cost else CostOptions()
    known: dict[Strategy, float] = {}
    for entry in entries:
        if entry.left_out:
            continue
        one = replace(entry.strategy.one_of_each, together=1, prefill=0, decode=0)
        if one not in known:
            client = Built(template.full(one, longest)).simulation.clients[0]
            try:
                known[one] = dollars_an_hour([client.traits.machine], options)
            except ScenarioError:
                if is_needed:
                    raise
                known[one] = nan
        entry.usd_per_hour = known[one] * entry.strategy.num_instances


def _power(entries: Sequence[Entry], template: Template, longest: int, driver: Driver) -> None:
    """Note the joules of a request, of a full run at each entry's goodput.

    An entry without goodput has none, nor one whose run failed. Raises what a run raises if all of
    them fail.
    """
    several = [entry for entry in entries if entry.goodput is not None and entry.rate > 0]
    tasks = [
        at_goodput((k, "at goodput"), Built(template.full(entry.strategy, longest)), entry.goodput)
        for k, entry in enumerate(several)
        if entry.goodput is not None
    ]
    rows = driver.run(tasks, keep_errors=True)
    if rows and all(row.failure for row in rows):
        rows[0].value  # noqa: B018 - raises its error
    for entry, row in zip(several, rows, strict=True):
        if most := (row.result or {}).get("requests_per_joule"):
            entry.joules = 1 / most


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


def _check(
    best: Sequence[Entry],
    template: Template,
    longest: int,
    options: GoodputOptions,
    driver: Driver,
) -> None:
    """Search the best in the full simulation too, from the rates that BestServe's have."""
    builts = []
    for entry in best:
        full = Built(template.full(entry.strategy, longest))
        builts.append(Built(full.at(settable(entry.rate))))
    as_they_stand = replace(options, as_is=True, rates=None)
    found = search_goodputs(builts, as_they_stand, driver, keep_errors=True)
    for entry, each in zip(best, found, strict=True):
        if isinstance(each, Goodput):
            entry.full = each
        else:
            entry.full_failure = str(each)
