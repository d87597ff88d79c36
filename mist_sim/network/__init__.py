"""Networks between clients: links, places, transfers."""

from mist_sim.network.base import (
    Cable,
    Exchange,
    Message,
    Reach,
    Seat,
    Store,
    Tenant,
)
from mist_sim.network.connectors import (
    CONNECTORS,
    Connector,
    MooncakeConnector,
    NixlConnector,
)
from mist_sim.network.fabric import Fabric, Network
from mist_sim.network.links import Link
from mist_sim.network.topology.graph import Topology
from mist_sim.network.topology.topology_loading import load_topology, topology_names

Ways = Fabric
"""The links of a network with a topology, for all transfers but hand-overs."""

__all__ = [
    "CONNECTORS",
    "Cable",
    "Connector",
    "Exchange",
    "Fabric",
    "Link",
    "Message",
    "MooncakeConnector",
    "Network",
    "NixlConnector",
    "Reach",
    "Seat",
    "Store",
    "Tenant",
    "Topology",
    "Ways",
    "load_topology",
    "topology_names",
]
