"""TaiChi's hybrids of engines that have no sides yet: some with large chunks, some with small."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from mist_sim.core.sliders import Sliders
from mist_sim.errors import ScenarioError
from mist_sim.scenario import Scenario
from mist_sim.search.designs.chunks import chunks_to_try
from mist_sim.search.designs.design_fleet import Fleet, Side
from mist_sim.search.designs.proposal import Proposal
from mist_sim.search.sliders import Slidable


def ratios_to_try(num_clients: int) -> list[int]:
    """Return the numbers of clients for prompts to try: the fewest, half, and the most."""
    return sorted({1, num_clients // 2, num_clients - 1} - {0, num_clients})


def hybrids(fleet: Fleet) -> Iterator[Proposal]:
    """Yield hybrids: D-heavy engines have the smallest chunk tried, P-heavy ones a larger one.

    Raises ScenarioError if the scenario lacks an option that all of them need.
    """
    if not fleet.chunks:
        raise ScenarioError("scheduler must be chunked on all engines, whose chunks they share out")
    limits = fleet.scenario.slo.make()
    if limits.ttft is None or limits.tpot is None:
        raise ScenarioError(
            "slo.ttft and slo.tpot must be given, since their router and their policy of "
            "hand-overs keep them; such as --set slo.ttft='1 s' --set slo.tpot='50 ms'"
        )
    smallest, *larger = sorted(chunks_to_try(fleet.chunks))
    for num_p in ratios_to_try(fleet.num_clients):
        for chunk in larger:
            num_d = fleet.num_clients - num_p
            name = f"hybrid {num_p} x {chunk} + {num_d} x {smallest}"
            yield Proposal(name, partial(hybrid, fleet, num_p, chunk, smallest))


def hybrid(fleet: Fleet, num_p: int, s_p: int, s_d: int) -> Scenario:
    """Return a hybrid with TaiChi's router and policy, with the preset's options.

    Two options differ: late prompts go where they are ready first (`if_none: soonest`), not
    anywhere, and the client of the first token stays as in the scenario, so that TTFT means the
    same in all designs.
    """
    limits = fleet.scenario.slo.make()
    clients = fleet.divided(num_p, Side("p_heavy", s_p), Side("d_heavy", s_d))
    policy = {"type": "flowing", "tpot": f"{limits.tpot!r} s", "counts_seats": True}
    return fleet.having(
        clients,
        network=fleet.network,
        hand_over=fleet.hand_over | {"policy": policy},
        router={"type": "length_aware", "ttft": f"{limits.ttft!r} s", "if_none": "soonest"},
        routers={},
    )


def around_hybrid(scenario: Scenario) -> dict[str, Scenario]:
    """Return a hybrid between aggregations and disaggregations on as many clients, by name.

    Aggregations have the chunks of its P-heavy or of its D-heavy clients; disaggregations every
    ratio of prefill and decode clients. Everything else is as in `Slidable`.

    Raises ScenarioError for a scenario that is no hybrid.
    """
    slidable = Slidable(scenario)
    own, num_clients = slidable.sliders, slidable.num_clients
    together = [_together(num_clients, chunk) for chunk in (own.s_p, own.s_d)]
    apart = [
        Sliders(num_p=num_p, num_d=num_clients - num_p, s_p=own.s_p, s_d=0)
        for num_p in range(1, num_clients)
    ]
    pure = {_name(each): slidable.at(each) for each in (*together, *apart)}
    return pure | {_name(own): scenario}


def _name(sliders: Sliders) -> str:
    """Return the name of a position for lists, where commas lie between names."""
    return sliders.name.replace(", ", " + ")


def _together(num_clients: int, chunk: int) -> Sliders:
    return Sliders(num_p=1, num_d=num_clients - 1, s_p=chunk, s_d=chunk)
