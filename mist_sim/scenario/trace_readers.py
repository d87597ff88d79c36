"""Readers of traces with the options that a scenario gives them, outside a scenario."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

from pydantic import ValidationError

from mist_sim.scenario.format.families import TRACE_READER
from mist_sim.scenario.format.paths import Origin
from mist_sim.scenario.format.problems import problems_of, summed_up
from mist_sim.traces import TraceReader


def trace_reader(form: str, options: Mapping[str, Any], source: str) -> TraceReader:
    """Return the reader of a trace. options: keys of `workload.trace`; source: what gave them.

    Raises ScenarioError for an unknown form, and for keys and values that are not right.
    """
    origin = Origin(source)
    model = TRACE_READER.part_type(form)
    try:
        part = model.model_validate({"type": form, **options}, context=origin)
    except ValidationError as error:
        raise summed_up(problems_of(error), origin) from None
    return cast("TraceReader", part.make())
