"""Dollars and joules of requests and tokens at a rate, such as the goodput."""

from __future__ import annotations

from collections.abc import Callable
from math import isnan, nan
from typing import Any

from mist_sim.metrics import Result
from mist_sim.metrics.stats import share
from mist_sim.scenario import Scenario, build
from mist_sim.scenario.loading import as_data
from mist_sim.search.goodput_result import Goodput
from mist_sim.studies.built import Built, Users
from mist_sim.studies.subjects import one_run
from mist_sim.studies.task import Key, Task

_LONG_RUN = 3000  # requests, so that chance counts for little
_MILLION = 1e6
_A_TOKEN = ("energy_per_output_token_j", "cost_per_million_output_tokens_usd")


def at_goodput(key: Key, built: Built, goodput: Goodput) -> Task:
    """Return the task of a run at a goodput that was found; its result: `spending_at`.

    It is as long as the longest run of the search.
    """
    load = built.load
    changes = load.at(goodput.rate)
    if goodput.is_steady:
        longest = max(trial.num_requests for s in goodput.searches for trial in s.trials)
        changes["workload.lengths.num_requests"] = max(longest, _LONG_RUN)
    data = as_data(Scenario.from_dict(built.data, changes))
    rate = None if isinstance(load, Users) else goodput.rate
    return Task(key, spending_at, (data, built.scenario.seed, rate))


def spending_at(data: dict[str, Any], seed: int, rate: float | None) -> dict[str, float]:
    """Run a scenario; return what a rate takes while it lasts, as far as GPUs and prices are known.

    data: the scenario, at that rate (requests per second); None: that at which requests end in the
    steady part, of a closed loop. Dollars and joules are those of the
    steady part (`steady_part`), so that they are of the rate, however short the run is.
    """
    return _spending(build(one_run(data, seed)).run(), rate)


def summary_at(data: dict[str, Any], seed: int, rate: float | None) -> dict[str, Any]:
    """Run a scenario; return its summary, in which dollars and joules a token are of the rate.

    They are those of `spending_at`; parameters as there.
    """
    result = build(one_run(data, seed)).run()
    spending = _spending(result, rate)
    return {**result.summary, **{name: spending[name] for name in _A_TOKEN if name in spending}}


def _spending(result: Result, rate: float | None) -> dict[str, float]:
    """Return what a rate takes, a request and a token; good tokens are those of good requests."""
    summary = result.summary
    if rate is None:
        rate = float(summary["steady_request_throughput"])
    tokens = share(summary["output_throughput"] * summary["duration"], summary["completed"])
    found = {"output_tokens_per_s": rate * tokens}
    # the share of output tokens that good requests got; NaN without limits or GPUs
    good = summary.get("good_tokens_per_j", nan) * summary.get("energy_per_output_token_j", nan)
    good = float(rate * tokens * good)
    if not isnan(good):
        found["good_tokens_per_s"] = good
    if "energy_j" in summary:
        watts = _per_second(result, result.ledger.energy_after)
        found["requests_per_joule"] = share(rate, watts)
        found["output_tokens_per_joule"] = share(rate * tokens, watts)
        found["energy_per_output_token_j"] = share(watts, rate * tokens)
        if not isnan(good):
            found["good_tokens_per_joule"] = share(good, watts)
    if (bill := result.bill) is not None and "cost_usd" in summary:
        dollars = _per_second(result, bill.cost_after)
        found["requests_per_usd"] = share(rate, dollars)
        found["output_tokens_per_usd"] = share(rate * tokens, dollars)
        found["cost_per_million_output_tokens_usd"] = share(_MILLION * dollars, rate * tokens)
        if not isnan(good):
            found["good_tokens_per_usd"] = share(good, dollars)
    return found


def _per_second(result: Result, total_after: Callable[[float], float]) -> float:
    """Return the mean of a total a second, over the steady part of a run.

    total_after: the total from a time on.
    """
    summary = result.summary
    begin, end = summary["steady_begin"], summary["steady_end"]
    if not summary["has_steady_part"]:
        begin, end = 0.0, result.ledger.end
    return share(total_after(begin) - total_after(end), end - begin)
