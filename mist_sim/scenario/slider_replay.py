"""Finds the best slider position for observed traffic by simulating every position on it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

from mist_sim.core.sliders import Sliders
from mist_sim.metrics.goodput import SloWatch
from mist_sim.reconfiguration import Change, Reconfigure, Search, Traffic
from mist_sim.simulation import Simulation
from mist_sim.traces import Rows, TraceArrivals

Twin = Callable[[Reconfigure], Simulation]
"""Makes the same clients anew, with other options of reconfiguration."""


def replay_search(twin: Twin) -> Search:
    """Return a search that simulates the traffic on new clients at every position.

    The position with the largest share of requests within the limits wins, the first of equals.
    Clients begin empty; shared prefixes and models of requests are ignored.
    """
    return partial(_best, twin)


def _best(twin: Twin, seen: Traffic, positions: Sequence[Sliders]) -> Sliders:
    return max(positions, key=lambda sliders: _attainment(twin, seen, sliders))


def _attainment(twin: Twin, seen: Traffic, sliders: Sliders) -> float:
    """Return the share of requests that keep the limits."""
    change = Change(at=0.0, num_p=sliders.num_p, s_p=sliders.s_p, s_d=sliders.s_d)
    simulation = twin(Reconfigure(schedule=(change,)))
    source, arrivals = Rows(seen.rows()), TraceArrivals()
    simulation.workload = replace(simulation.workload, source=source, arrivals=arrivals)
    simulation.warmup = 0.0
    watch = SloWatch(simulation.slo)
    share = watch.reader()
    simulation.run(recorder=watch)
    return share()
