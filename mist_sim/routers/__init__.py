"""Routing policies: which client serves a request's next stages (MIST §III-C1)."""

from mist_sim.routers.affinity import (
    PlacementAwareRouter,
    PrefixAffinityRouter,
    SessionAffinityRouter,
)
from mist_sim.routers.base import ROUTERS, RefusalError, Router, Seeded
from mist_sim.routers.flowing_policy import FlowingPolicy
from mist_sim.routers.hand_over_policies import (
    HAND_OVER_POLICIES,
    ConditionalPolicy,
    FlippingPolicy,
    OverflowPolicy,
)
from mist_sim.routers.length_aware import LengthAwareRouter
from mist_sim.routers.load import (
    HeavyLightRouter,
    LeastOutstandingRouter,
    LoadRouter,
    PowerOfTwoRouter,
)
from mist_sim.routers.polled import PolledRouter
from mist_sim.routers.simple import RandomRouter, RoundRobinRouter, StageRouters

__all__ = [
    "HAND_OVER_POLICIES",
    "ROUTERS",
    "ConditionalPolicy",
    "FlippingPolicy",
    "FlowingPolicy",
    "HeavyLightRouter",
    "LeastOutstandingRouter",
    "LengthAwareRouter",
    "LoadRouter",
    "OverflowPolicy",
    "PlacementAwareRouter",
    "PolledRouter",
    "PowerOfTwoRouter",
    "PrefixAffinityRouter",
    "RandomRouter",
    "RefusalError",
    "RoundRobinRouter",
    "Router",
    "Seeded",
    "SessionAffinityRouter",
    "StageRouters",
]
