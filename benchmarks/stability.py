"""How often runs are called unstable: `python -m benchmarks.stability` prints tables of shares.

Queues of theory, whose capacity is known, and engines with the bundled profiles of lengths, at
loads from half of what they can do to 30 % more. It takes some eight minutes of one
core; `--quick` a sixth of that.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import cache, partial
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from mist_sim import Scenario, simulate
from mist_sim.metrics.stability import Stability, Stays, stability
from mist_sim.rng import Streams

LOADS = (0.5, 0.8, 0.9, 0.95, 1.0, 1.05, 1.1, 1.2, 1.3)
NUM_REQUESTS = (300, 1000, 3000)
OVERLOAD = 1.1  # from here on "stable" is a miss

Array = NDArray[np.float64]


class Queue(NamedTuple):
    """Servers that take turns in order of arrival, the first that is free.

    gaps, services: squared coefficients of variation of the times between arrivals and of those in
    service, which are gamma-distributed; 1 is an exponential distribution, 0 a constant.
    """

    gaps: float
    services: float
    servers: int


QUEUES = {
    "M/M/1": Queue(1, 1, 1),
    "M/D/1": Queue(1, 0, 1),
    "M/M/16": Queue(1, 1, 16),
    "16 servers, bursts (CV² 4)": Queue(4, 1, 16),
    "16 servers, uneven answers (CV² 4)": Queue(1, 4, 16),
}


class Engines(NamedTuple):
    """Small engines behind a router, and a profile of lengths."""

    profile: str
    count: int = 2
    router: str = "least_outstanding"


ENGINES = {
    "short answers (azure-code-2023)": Engines("azure-code-2023"),
    "the same, 4 engines at random": Engines("azure-code-2023", 4, "random"),
    "chats (azure-conv-2023)": Engines("azure-conv-2023"),
    "long answers (sharegpt-300)": Engines("sharegpt-300"),
}


def queue_runs(
    queue: Queue, load: float, num_requests: int, num_runs: int
) -> Iterator[tuple[Array, Array, Array]]:
    """Yield arrivals, begins and services of runs (the recursion of Kiefer and Wolfowitz)."""
    rng = Streams(0).generator(f"{queue} {load} {num_requests}")
    shape = num_runs, num_requests
    arrival = np.cumsum(_times(rng, queue.gaps, shape) / (load * queue.servers), axis=1)
    service = _times(rng, queue.services, shape)
    begun, free = np.empty(shape), np.zeros((num_runs, queue.servers))
    runs = np.arange(num_runs)
    for number in range(num_requests):
        first = free.argmin(axis=1)
        begun[:, number] = np.maximum(arrival[:, number], free[runs, first])
        free[runs, first] = begun[:, number] + service[:, number]
    yield from zip(arrival, begun, service, strict=True)


def queue_verdicts(queue: Queue, load: float, num_requests: int, num_runs: int) -> list[Stability]:
    """Return what is said of runs of a queue."""
    return [
        stability(Stays(arrival, begun + service), Stays(arrival, begun), service)
        for arrival, begun, service in queue_runs(queue, load, num_requests, num_runs)
    ]


def _times(rng: np.random.Generator, variance: float, shape: tuple[int, int]) -> Array:
    """Draw times of mean 1 and a variance."""
    return rng.gamma(1 / variance, variance, shape) if variance else np.ones(shape)


def engine_verdicts(
    engines: Engines, load: float, num_requests: int, num_runs: int
) -> list[Stability]:
    """Return what is said of runs of engines."""
    rate = load * capacity(engines)
    return [
        simulate(_scenario(engines, rate, num_requests, seed)).summary["stability"]
        for seed in range(num_runs)
    ]


@cache
def capacity(engines: Engines) -> float:
    """Return how many requests a second the engines finish when there is always work."""
    requests = simulate(_scenario(engines, 1000.0, 4000, 0)).requests
    ended = np.sort(requests["finished_at"].to_numpy())
    return float(2000 / (ended[3000] - ended[1000]))


def _scenario(engines: Engines, rate: float, num_requests: int, seed: int) -> Scenario:
    lengths = {"type": "profile", "name": engines.profile, "num_requests": num_requests}
    arrivals = {"type": "poisson", "rate": f"{rate!r} /s"}
    client = {
        "name": "llm",
        "gpu": "l40s",
        "scheduler": {"max_num_seqs": 32},
        "async_scheduling": False,  # as when the page's tables were made
    }
    return Scenario.from_dict(
        {
            "model": "llama-3.1-8b",
            "seed": seed,
            "workload": {"lengths": lengths, "arrivals": arrivals},
            "clients": [client | {"count": engines.count}],
            "router": engines.router,
        }
    )


Verdicts = Callable[[float, int, int], list[Stability]]
"""Says what is said of runs: load, requests in a run, runs."""

Cell = tuple[float, Counter[Stability]]


def tables(num_queues: int, num_engines: int) -> Iterator[str]:
    """Yield a table of queues and one of engines, with what follows from each.

    num_queues, num_engines: runs a cell.
    """
    queues = {name: partial(queue_verdicts, queue) for name, queue in QUEUES.items()}
    yield from _table(f"{num_queues:,} queues a cell", queues, num_queues)
    yield ""
    engines = {name: partial(engine_verdicts, found) for name, found in ENGINES.items()}
    yield from _table(f"{num_engines} simulations a cell", engines, num_engines)


def _table(title: str, systems: Mapping[str, Verdicts], num_runs: int) -> Iterator[str]:
    """Yield a row for each system and length of runs, and below them the errors in all."""
    yield f"| {title} | requests | {' | '.join(f'{load:g}' for load in LOADS)} |"
    yield f"|---|---|{'---|' * len(LOADS)}"
    cells: list[Cell] = []
    for name, verdicts in systems.items():
        for num_requests in NUM_REQUESTS:
            row = [(load, Counter(verdicts(load, num_requests, num_runs))) for load in LOADS]
            shares = " | ".join(_shares(found) for _, found in row)
            yield f"| {name} | {num_requests:,} | {shares} |"
            cells += row
    yield ""
    yield _errors(cells)


def _shares(found: Counter[Stability]) -> str:
    """Return how many of 100 runs are called unstable, and how many too short to tell."""
    digits = 1 if found.total() >= 1000 else 0
    shares = (100 * found[name] / found.total() for name in ("unstable", "too short to tell"))
    return " / ".join(f"{share:.{digits}f}".removesuffix(".0") for share in shares)


def _errors(cells: Iterable[Cell]) -> str:
    """Return false alarms below the limit, and overloads that are called stable."""
    below = [found for load, found in cells if load < 1]
    above = [found for load, found in cells if load >= OVERLOAD]
    num_below, num_above = (sum(found.total() for found in part) for part in (below, above))
    alarms = sum(found["unstable"] for found in below)
    worst = max(found["unstable"] / found.total() for found in below)
    misses = sum(found["stable"] for found in above)
    return (
        f"Below a load of 1, {alarms:,} of {num_below:,} runs are called unstable "
        f"({100 * alarms / num_below:.2f} %), at most {100 * worst:.1f} % in a cell. At "
        f"{OVERLOAD:g} and more, {misses:,} of {num_above:,} are called stable "
        f"({100 * misses / num_above:.1f} %)."
    )


def main() -> None:
    """Print the tables."""
    quick = "--quick" in sys.argv
    for line in tables(*((100, 2) if quick else (1000, 12))):
        print(line, flush=True)


if __name__ == "__main__":
    main()
