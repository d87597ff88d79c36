"""Attention-FFN disaggregation (AFD): bundles of attention and FFN workers that decode."""

from mist_sim.clients.afd.bundle import Bundle, BundleConfig
from mist_sim.clients.afd.bundle_clock import Pass
from mist_sim.clients.afd.client import AfdClient
from mist_sim.clients.afd.slots import Resident
from mist_sim.clients.afd.worker_placement import PLACEMENTS, LeastLoad, Placement, RandomPlacement

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
