"""Attention-FFN disaggregation (AFD): bundles of attention and FFN workers that decode."""

from mist_sim.clients.afd.bundle import Bundle
from mist_sim.clients.afd.client import AfdClient
from mist_sim.clients.afd.clock import Pass
from mist_sim.clients.afd.config import BundleConfig
from mist_sim.clients.afd.placement import PLACEMENTS, LeastLoad, Placement, RandomPlacement
from mist_sim.clients.afd.slots import Resident

__all__ = [
    "PLACEMENTS",
    "AfdClient",
    "Bundle",
    "BundleConfig",
    "LeastLoad",
    "Pass",
    "Placement",
    "RandomPlacement",
    "Resident",
]
