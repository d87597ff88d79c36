"""TaiChi's sliders: a position in which all clients are alike, and a search by simulation."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

from mist_sim.clients.traits import FLOWING_ROLES
from mist_sim.core.sliders import Sliders
from mist_sim.metrics.goodput import SloWatch
from mist_sim.reconfiguration import Change, Reconfigure, Search, Traffic
from mist_sim.routers import FlowingPolicy
from mist_sim.scenario.schema import Scenario
from mist_sim.simulation import Simulation
from mist_sim.traces import Rows, TraceArrivals


def without_idle_roles(scenario: Scenario) -> Scenario:
    """Return a scenario without roles p_heavy and d_heavy if these clients are alike.

    They are alike if all chunks have one size and the sliders do not move: then nothing flows
    between them. Other scenarios are returned unchanged.

    Source: TaiChi (arXiv:2508.01989) §3.1, aggregation is S_D = S_P.
    """
    policy = scenario.hand_over.parameters()["policy"]
    if not isinstance(policy, FlowingPolicy) or scenario.reconfigure is not None:
        return scenario
    described = [client.describe(scenario.model) for client in scenario.clients]
    playing = [
        (client, traits)
        for client, traits in zip(scenario.clients, described, strict=True)
        if traits.role in FLOWING_ROLES
    ]
    if (
        {traits.role for _, traits in playing} != FLOWING_ROLES
        or len({traits.slider and traits.slider.chunk for _, traits in playing}) != 1
        or not all("role" in client.parameters() for client, _ in playing)
    ):
        return scenario
    clients = [
        client.model_copy(update={"role": None}) if traits.role in FLOWING_ROLES else client
        for client, traits in zip(scenario.clients, described, strict=True)
    ]
    hand_over = scenario.hand_over.model_copy(update={"policy": None})
    return scenario.model_copy(update={"clients": clients, "hand_over": hand_over})


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
