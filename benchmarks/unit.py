"""T: the CPU time of one bare SimPy timeout, the unit of all budgets."""

from __future__ import annotations

import time
from collections.abc import Generator

import simpy

_TIMEOUTS = 100_000


def _wait(env: simpy.Environment) -> Generator[simpy.Event, object, None]:
    for _ in range(_TIMEOUTS):
        yield env.timeout(1.0)


def bare_timeout_s() -> float:
    """Return T in seconds of CPU: the best of three loops of 100,000 timeouts."""
    best = float("inf")
    for _ in range(3):
        env = simpy.Environment()
        env.process(_wait(env))
        start = time.process_time()
        env.run()
        best = min(best, time.process_time() - start)
    return best / _TIMEOUTS
