"""All families of plugins of scenario files, and those that installed packages offer."""

from __future__ import annotations

from collections.abc import Mapping

from mist_sim.scenario.format.families import (
    ADMISSION,
    ARRIVAL,
    AUTOSCALER,
    CONNECTOR,
    DURATION_LAW,
    EVICTION,
    HAND_OVER_POLICY,
    LENGTH,
    PREDICTOR,
    ROUTER,
    SAMPLER,
    SCHEDULER,
    STAGE,
    TRACE_READER,
    Family,
)
from mist_sim.scenario.sections.clients import CLIENT

FAMILIES: Mapping[str, Family] = {
    "clients": CLIENT,
    "routers": ROUTER,
    "schedulers": SCHEDULER,
    "predictors": PREDICTOR,
    "trace_readers": TRACE_READER,
    "arrivals": ARRIVAL,
    "samplers": SAMPLER,
    "lengths": LENGTH,
    "durations": DURATION_LAW,
    "autoscalers": AUTOSCALER,
    "admissions": ADMISSION,
    "evictions": EVICTION,
    "stages": STAGE,
    "connectors": CONNECTOR,
    "hand_over_policies": HAND_OVER_POLICY,
}


def find_plugins() -> None:
    """Let scenarios name the plugins of installed packages; once per process."""
    for family in FAMILIES.values():
        family.registry.find_entry_points()
