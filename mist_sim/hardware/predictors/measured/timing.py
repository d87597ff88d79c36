"""Seconds of a call: warmed up, repeated, the median; kept in a store of timings."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from time import perf_counter

from mist_sim.checks import Checked, NotNegative, Positive
from mist_sim.hardware.predictors.measured.timing_store import TimingStore

Call = Callable[[], object]


@dataclass(frozen=True, slots=True, kw_only=True)
class Timing(Checked):
    """Repetitions of a timed call.

    warmup: runs before, which fill caches and choose kernels (>= 0).
    warm_seconds: seconds of more runs, after which clocks are those of a busy device (>= 0).
    repeats: runs of which the median counts (>= 1).
    """

    warmup: NotNegative[int] = 2
    repeats: Positive[int] = 5
    warm_seconds: float = 0.0


def seconds_of(
    call: Call, timing: Timing = Timing(), clock: Callable[[Call], float] | None = None
) -> float:
    """Return the median seconds of a call.

    clock: runs the call once and returns its seconds; the host's clock without it.
    """
    clock = clock or _on_host
    for _ in range(timing.warmup):
        call()
    begin = perf_counter()
    while perf_counter() - begin < timing.warm_seconds:
        clock(call)
    return statistics.median(clock(call) for _ in range(timing.repeats))


def _on_host(call: Call) -> float:
    begin = perf_counter()
    call()
    return perf_counter() - begin


def timed_call(
    store: TimingStore,
    source: Mapping[str, object],
    name: str,
    call: Call,
    timing: Timing = Timing(),
) -> float:
    """Return the seconds of any call, from the store if it was timed before.

    source: everything else the time depends on, such as the machine and a version.
    name: identifies the call among all others of the source.
    """
    return store.timed(
        source, {name: call}, lambda calls: [seconds_of(one, timing) for one in calls]
    )[0]
