"""What lies between clients; for now a single link, until topologies come."""

from mist_sim.network.links import Link

__all__ = ["Link"]
