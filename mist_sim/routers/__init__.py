"""Routing policies: which client serves a request's next stages (MIST §III-C1)."""

from mist_sim.routers.affinity import PrefixAffinityRouter, SessionAffinityRouter
from mist_sim.routers.base import ROUTERS, Router, Seeded
from mist_sim.routers.load import LeastOutstandingRouter
from mist_sim.routers.simple import RandomRouter, RoundRobinRouter

__all__ = [
    "ROUTERS",
    "LeastOutstandingRouter",
    "PrefixAffinityRouter",
    "RandomRouter",
    "RoundRobinRouter",
    "Router",
    "Seeded",
    "SessionAffinityRouter",
]
