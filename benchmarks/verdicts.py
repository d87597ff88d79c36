"""How often verdicts in steady state are wrong: `python -m benchmarks.verdicts` prints tables.

Queues whose truth is known, at loads where a little more or less than nine in ten requests keep
the limit. It takes some half an hour of one core; `--most 30000 --runs 40` a minute.
"""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Iterator
from functools import cache
from heapq import heapreplace
from math import exp
from typing import NamedTuple

import numpy as np
from scipy.optimize import brentq

from mist_sim.metrics.latency import Array
from mist_sim.metrics.stability import Stays
from mist_sim.rng import Streams
from mist_sim.studies.verdicts.steady_state import ERROR, Look, Seen, look, looks

SHARE = 0.9
TRUTHS = (0.96, 0.93, 0.905, 0.895, 0.87, 0.8)
OVERLOAD = 1.03
RUNS = {30_000: 200, 200_000: 40, 1_000_000: 40}  # of a cell, with at most so many requests
_LONG = 2_000_000  # requests of the run that tells the truth where no formula does


class Queue(NamedTuple):
    """Poisson arrivals; servers in order of arrival, with a mean service of 1 s.

    services: squared coefficient of variation of the gamma-distributed times in service; 1 is an
    exponential distribution, 0 a constant. limit: seconds from arrival to end.
    """

    servers: int
    services: float
    limit: float


QUEUES = {
    "M/M/1, limit 5": Queue(1, 1, 5.0),
    "M/M/1, limit 20": Queue(1, 1, 20.0),
    "M/M/4, limit 3.4": Queue(4, 1, 3.4),
    "M/M/4, limit 6": Queue(4, 1, 6.0),
    "M/M/16, limit 4": Queue(16, 1, 4.0),
    "M/D/1, limit 4": Queue(1, 0, 4.0),
    "M/G/1, CV² 4, limit 15": Queue(1, 4, 15.0),
}


def share_good(queue: Queue, rate: float) -> float:
    """Return the share of the requests that keep the limit in steady state.

    M/M/c by its formula (Gross and others, Fundamentals of Queueing Theory, 2.3); others with one
    server by Lindley's recursion over a long run.
    """
    if rate >= queue.servers:
        return 0.0
    if queue.services != 1:
        return float((_long_stays(queue, rate) <= queue.limit).mean())
    blocked = 1.0
    for servers in range(1, queue.servers + 1):
        blocked = rate * blocked / (servers + rate * blocked)
    waits = blocked / (1 - rate / queue.servers * (1 - blocked))
    spare, t = queue.servers - rate, queue.limit
    if abs(spare - 1) < 1e-6:
        spare += 1e-5
    late = (1 - waits) * exp(-t) + waits * (spare * exp(-t) - exp(-spare * t)) / (spare - 1)
    return 1 - late


def _long_stays(queue: Queue, rate: float) -> Array:
    service, gaps = _long_times(queue)
    steps = service[:-1] - gaps[1:] / rate
    walk = np.concatenate(([0.0], np.cumsum(steps)))
    return walk - np.minimum.accumulate(walk) + service


@cache
def _long_times(queue: Queue) -> tuple[Array, Array]:
    rng = Streams(1).generator(f"{queue}")
    return _services(queue, rng, _LONG), rng.exponential(1.0, _LONG)


@cache
def rate_of(queue: Queue, truth: float) -> float:
    """Return the rate, 1/s, at which that share is good; at 0 a little more than can be served."""
    if truth == 0:
        return OVERLOAD * queue.servers
    return float(
        brentq(lambda rate: share_good(queue, rate) - truth, 1e-6, queue.servers * (1 - 1e-9))
    )


def verdict(queue: Queue, rate: float, most: int, seed: int) -> Look:
    """Return what a run of at most so many requests shows, looked at as `steady_runs` does."""
    rng = Streams(seed).generator(f"{queue}")
    arrival = np.cumsum(rng.exponential(1.0, int(1.2 * most))) / rate
    service = _services(queue, rng, len(arrival))
    begun, free = [], [0.0] * queue.servers
    for time, length in zip(arrival.tolist(), service.tolist(), strict=True):
        begun.append(max(time, free[0]))
        heapreplace(free, begun[-1] + length)
    begin = np.array(begun)
    end = begin + service
    in_order, all_looks = np.sort(end), looks(most)
    for number in all_looks:
        ids = np.flatnonzero(end <= in_order[number - 1])
        stays, waits = Stays(arrival[ids], end[ids]), (begin - arrival)[ids]
        ratios = (stays.end - stays.begin)[None] / queue.limit
        queued = Stays(arrival[ids], begin[ids])
        seen = Seen(ids, ratios, stays, service[ids], waits, queued)
        found = look(seen, SHARE, ERROR / len(all_looks))
        if found.attained is not None:
            break
    return found


def _services(queue: Queue, rng: np.random.Generator, number: int) -> Array:
    if not queue.services:
        return np.ones(number)
    return rng.gamma(1 / queue.services, queue.services, number)


def verdicts(queue: Queue, truth: float, most: int, num_runs: int) -> Counter[bool | None]:
    """Return how often a rate of such a truth is attained, missed and undecided."""
    rate = rate_of(queue, truth)
    return Counter(verdict(queue, rate, most, seed).attained for seed in range(num_runs))


def table(num_runs: int, most: int) -> Iterator[str]:
    """Yield lines: attained / missed / undecided, in percent of the runs."""
    truths = " | ".join(f"{truth:.1%}".replace("%", " %") for truth in TRUTHS)
    yield f"| at most {most:,} requests, {num_runs} runs | {truths} | overload 3 % |"
    yield "|---" * (len(TRUTHS) + 2) + "|"
    for name, queue in QUEUES.items():
        cells = []
        for truth in (*TRUTHS, 0.0):
            found = verdicts(queue, truth, most, num_runs)
            shares = (round(100 * found[each] / num_runs) for each in (True, False, None))
            cells.append(" / ".join(str(share) for share in shares))
        yield f"| {name} | {' | '.join(cells)} |"
    yield ""


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description="How often are verdicts in steady state wrong?")
    parser.add_argument("--runs", type=int, default=0, help="of a cell (RUNS)")
    parser.add_argument(
        "--most",
        type=int,
        nargs="+",
        default=tuple(RUNS),
        help="requests of a run",
    )
    asked = parser.parse_args()
    for most in asked.most:
        for line in table(asked.runs or RUNS[most], most):
            print(line, flush=True)


if __name__ == "__main__":
    main()
