"""What TaiChi's two algorithms cost the simulator, of a run's time: `python -m benchmarks.taichi`.

Every call of theirs is timed, less what timing takes. Of Algorithm 1 it is the choice of clients,
as the engine core finds in passing who leaves. Algorithm 2 is asked once a prompt.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import wraps
from time import process_time
from typing import Any

from benchmarks.unit import bare_timeout_s
from benchmarks.workloads import flowing
from mist_sim import Scenario, simulate
from mist_sim.routers.flowing_policy import FlowingPolicy
from mist_sim.routers.length_aware import LengthAwareRouter

ALGORITHMS: dict[str, list[tuple[type, str]]] = {
    "Algorithm 1": [(FlowingPolicy, "among")],
    "Algorithm 2": [(LengthAwareRouter, "choose")],
}


class Stopwatch:
    """CPU seconds spent in some functions, and how often they were called."""

    def __init__(self) -> None:
        self.seconds, self.num_calls = 0.0, 0

    def around(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Return the function, timed."""

        @wraps(function)
        def timed(*args: Any) -> Any:
            start = process_time()
            found = function(*args)
            self.seconds += process_time() - start
            self.num_calls += 1
            return found

        return timed

    def net(self) -> float:
        """Return the seconds less those that timing took."""
        empty = Stopwatch()
        nothing = empty.around(lambda: None)
        for _ in range(100_000):
            nothing()
        return self.seconds - self.num_calls * empty.seconds / empty.num_calls


def costs(scenario: Scenario) -> Iterator[tuple[str, float, float]]:
    """Yield each algorithm's name, its T a request, and its share of the run's CPU time."""
    unit = bare_timeout_s()
    start = process_time()
    num_requests = simulate(scenario).summary["completed"]
    whole = process_time() - start
    for name, functions in ALGORITHMS.items():
        watch = Stopwatch()
        plain = [getattr(owner, method) for owner, method in functions]
        for (owner, method), function in zip(functions, plain, strict=True):
            setattr(owner, method, watch.around(function))
        try:
            simulate(scenario)
        finally:
            for (owner, method), function in zip(functions, plain, strict=True):
                setattr(owner, method, function)
        yield name, watch.net() / unit / num_requests, watch.net() / whole


def main() -> None:
    """Print what TaiChi's flows cost a request in two scenarios."""
    scenarios = {
        "Azure conversations, 4 + 4 clients": Scenario.from_dict(flowing()),
        "preset taichi-hybrid": Scenario.load("taichi-hybrid"),
    }
    for title, scenario in scenarios.items():
        for name, cost, share in costs(scenario):
            print(f"{title}, {name}: {cost:.0f} T a request, {100 * share:.0f} % of the run")


if __name__ == "__main__":
    main()
