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

_ALL = (
    *(CLIENT, ROUTER, SCHEDULER, PREDICTOR, TRACE_READER, ARRIVAL, SAMPLER, LENGTH, DURATION_LAW),
    *(AUTOSCALER, ADMISSION, EVICTION, STAGE, CONNECTOR, HAND_OVER_POLICY),
)
FAMILIES: Mapping[str, Family] = {family.registry.family: family for family in _ALL}
"""By name, as entry points have it."""


def find_plugins() -> None:
    """Let scenarios name the plugins of installed packages; once per process."""
    for family in FAMILIES.values():
        family.registry.find_entry_points()
