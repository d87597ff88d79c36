"""The goodput of any simulator: Algorithm 8.

Feasible (Algorithm 9) is what `Target` calls attained with `each=True` and `relaxation=0.1`: nine
of ten requests keep the limit of TTFT, and nine of ten that of TPOT, each times 1.1. The bisection
is `search.bracketing`'s, which says how the printed one is corrected.
"""

from __future__ import annotations

from collections.abc import Callable

from mist_sim.bestserve.drawn_requests import Requests
from mist_sim.bestserve.oracle import Times
from mist_sim.bestserve.simulation import Method, simulate_strategy
from mist_sim.bestserve.simulators import contexts, pseudo_batches
from mist_sim.bestserve.strategy import Strategy
from mist_sim.search.bracketing import Search
from mist_sim.search.goodput_result import SeedGoodput
from mist_sim.search.verdicts.request_times import RequestTimes, Target, none_counts
from mist_sim.search.verdicts.trials import Trial

Simulate = Callable[[float], RequestTimes]
"""Serves requests at a rate, requests per second; returns their latencies."""


def search_rate(simulate: Simulate, target: Target, search: Search, *, seed: int) -> SeedGoodput:
    """Return the largest rate that attains a target, within the search's tolerance.

    simulate: any simulator: BestServe's, the full one, or your own. search: the rates to try, from
        `bracketing.around` or `bracketing.between`. seed: of the simulation, for the result.
    """
    trials: list[Trial] = []
    asked = next(search)
    while True:
        tried = [_trial(simulate(rate), target, rate, seed) for rate in asked]
        trials += tried
        try:
            asked = search.send({trial.rate: trial.seems_attained for trial in tried})
        except StopIteration as end:
            return SeedGoodput.of(seed, end.value, trials)


def _trial(times: RequestTimes, target: Target, rate: float, seed: int) -> Trial:
    num = len(times)
    missed = target.num_missed(times)
    return Trial(
        rate,
        seed,
        missed <= target.most_missed(num),
        (num - missed) / num,
        is_whole=True,
        num_requests=num,
        worst_limit=target.worst_limit(times),
    )


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
    import numpy as np

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
