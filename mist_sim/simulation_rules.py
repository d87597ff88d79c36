"""What has to hold of the parts of a simulation; of those that hand over, see `hand_over_rules`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from mist_sim.clients import Client
from mist_sim.errors import ScenarioError, did_you_mean
from mist_sim.lifecycle import Lifecycle
from mist_sim.metrics import CostOptions, Slo
from mist_sim.metrics.spending.cost import gpu_prices
from mist_sim.network import Network
from mist_sim.reconfiguration import Reconfigure, Search, check_reconfigure
from mist_sim.routers import Router


def check_names(clients: Sequence[Client]) -> None:
    """Raise ScenarioError unless there are clients, with a name of its own each."""
    if not clients:
        raise ScenarioError("clients: a simulation needs at least one client, got none")
    for name, count in Counter(client.name for client in clients).items():
        if count > 1:
            raise ScenarioError(f"clients: names must be unique, got {name!r} {count} times")


def check_lives(
    lifecycle: Lifecycle,
    clients: Sequence[Client],
    network: Network | None,
    slo: Slo,
) -> None:
    """Raise ScenarioError for lives that clients or limits do not go with."""
    lifecycle.check(clients, network)
    if lifecycle.asks_for_slo and not slo.is_set:
        raise ScenarioError("slo must have a limit, which autoscaling by attainment needs")


def check_search(
    reconfigure: Reconfigure | None, search: Search | None, clients: Sequence[Client]
) -> None:
    """Raise ScenarioError for changes that clients cannot make, and where nobody finds them."""
    if reconfigure is not None:
        check_reconfigure(reconfigure, clients)
    asks = reconfigure is not None and reconfigure.on_change is not None
    if asks != (search is not None):
        rule = "be given with" if search is None else "be left out without"
        raise ScenarioError(f"search must {rule} reconfigure.on_change, whose positions it finds")


def check_prices(clients: Sequence[Client], cost: CostOptions) -> None:
    """Raise ScenarioError where a cost is asked for and a GPU, or its price, is not known."""
    for client in clients:
        if client.machine is None and client.estimate is not None:
            raise ScenarioError(
                f"cost must be None, since nobody knows the GPUs of {client.name}; leave it out, "
                "or make that client with llm_client, or set its `machine`"
            )
    gpu_prices([client.machine for client in clients], cost)


def check_routers(clients: Sequence[Client], routers: Mapping[str, Router]) -> None:
    """Raise ScenarioError for a router of a stage that nobody serves."""
    served = {kind for client in clients for kind in client.serves}
    for kind in routers:
        if kind not in served:
            raise ScenarioError(
                f"routers.{kind}: no client serves {kind!r}{did_you_mean(kind, served)} "
                f"The clients serve {', '.join(sorted(served))}"
            )
