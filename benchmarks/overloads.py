"""How often a run is said to be overloaded for a while: `python -m benchmarks.overloads`.

Queues of theory at loads up to 20 % more than they can do. It takes a quarter of a minute of
one core.
"""

from __future__ import annotations

from collections.abc import Iterator
from statistics import fmean

from benchmarks.stability import QUEUES, Queue, queue_runs
from mist_sim.metrics.stability import Stays
from mist_sim.metrics.summary import overloads

LOADS = (0.5, 0.8, 0.9, 0.95, 0.98, 1.0, 1.1, 1.2)
NUM_REQUESTS, NUM_RUNS = 2000, 100


def overloaded_shares(queue: Queue, load: float) -> list[float]:
    """Return the share of the time of each run in which it is said to be overloaded."""
    return [
        sum(each.end - each.begin for each in overloads(arrival, Stays(arrival, begun), service))
        / float(arrival[-1] - arrival[0])
        for arrival, begun, service in queue_runs(queue, load, NUM_REQUESTS, NUM_RUNS)
    ]


def table() -> Iterator[str]:
    """Yield a row a queue: runs of 100 that are overloaded, and the share of the time of all."""
    yield f"| {NUM_RUNS} runs of {NUM_REQUESTS:,} | {' | '.join(f'{load:g}' for load in LOADS)} |"
    yield f"|---|{'---|' * len(LOADS)}"
    for name, queue in QUEUES.items():
        cells = []
        for load in LOADS:
            shares = overloaded_shares(queue, load)
            runs = 100 * sum(share > 0 for share in shares) / len(shares)
            cells.append(f"{runs:.0f} ({100 * fmean(shares):.0f})")
        yield f"| {name} | {' | '.join(cells)} |"


def main() -> None:
    """Print the table."""
    print(*table(), sep="\n")


if __name__ == "__main__":
    main()
