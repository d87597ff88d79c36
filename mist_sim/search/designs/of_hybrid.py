"""The designs between which a hybrid lies: it has chunks of two sizes, which they share."""

from __future__ import annotations

from mist_sim.core.sliders import Sliders
from mist_sim.scenario import Scenario
from mist_sim.search.sliders import Slidable


def around_hybrid(scenario: Scenario) -> dict[str, Scenario]:
    """Return a hybrid between aggregations and disaggregations on as many clients, by name.

    Aggregations have the chunks of its P-heavy or of its D-heavy clients; disaggregations every
    ratio of prefill and decode clients. Everything else stays as `Slidable` says.

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
