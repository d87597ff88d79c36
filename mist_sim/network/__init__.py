"""Networks between clients: links, places, transfers."""

from mist_sim.network.base import (
    CONNECTORS,
    Cable,
    Connector,
    Message,
    MooncakeConnector,
    NixlConnector,
    Reach,
    Seat,
    Store,
    Tenant,
)
from mist_sim.network.fabric import Fabric, Link, Network
from mist_sim.network.topology.graph import Topology, load_topology, topology_names

Ways = Fabric
"""The links of a network with a topology, for all transfers but hand-overs."""

__all__ = [
    "CONNECTORS",
    "Cable",
    "Connector",
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
