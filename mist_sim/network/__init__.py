"""Networks between clients: links, places, transfers."""

from mist_sim.network.base import (
    Cable,
    Exchange,
    Message,
    Network,
    Reach,
    Seat,
    Store,
    Tenant,
    Ways,
)
from mist_sim.network.connectors import (
    CONNECTORS,
    Connector,
    MooncakeConnector,
    NixlConnector,
)
from mist_sim.network.fabric import Fabric
from mist_sim.network.links import Link
from mist_sim.network.topology.graph import Topology
from mist_sim.network.topology.topology_loading import load_topology, topology_names

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
