"""All families of plugins of scenario files, those that installed packages offer, and readers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

from pydantic import ValidationError

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
from mist_sim.scenario.format.paths import Origin
from mist_sim.scenario.format.problems import problems_of, summed_up
from mist_sim.scenario.sections.clients.family import CLIENT
from mist_sim.traces import TraceReader

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


def trace_reader(form: str, options: Mapping[str, Any], source: str) -> TraceReader:
    """Return the reader of a trace, outside a scenario.

    options: keys of `workload.trace`; source: what gave them.
    Raises ScenarioError for an unknown form, and for keys and values that are not right.
    """
    origin = Origin(source)
    model = TRACE_READER.part_type(form)
    try:
        part = model.model_validate({"type": form, **options}, context=origin)
    except ValidationError as error:
        raise summed_up(problems_of(error), origin) from None
    return cast("TraceReader", part.make())
