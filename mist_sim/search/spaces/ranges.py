"""Values that are tried: a list, or a range written as FIRST:LAST:STEP."""

from __future__ import annotations

import re
from collections.abc import Mapping
from math import isfinite
from typing import Any

from mist_sim.bounds import COPIES
from mist_sim.errors import ScenarioError, brief

_NUMBER = r"[+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?"
_RANGE = re.compile(rf"\s*({_NUMBER}):({_NUMBER})(?::(x?)({_NUMBER}))?(?:\s+(\S+))?\s*")
_NEAR = 1e-9  # steps by which rounding may pass the last value


def values_of(what: str, given: object) -> list[Any]:
    """Return the values to try. given: a list, or a range as text (see `spread`).

    what: for messages. Raises ScenarioError for others, and where there is none.
    """
    if isinstance(given, str):
        return spread(what, given)
    if isinstance(given, Mapping) or not isinstance(given, list | tuple) or not given:
        raise ScenarioError(
            f"{what}: must be a list of values, or a range such as 1:8, 1:8:2 or 128:2048:x2, got "
            f"{brief(given)}"
        )
    return list(given)


def spread(what: str, text: str) -> list[Any]:
    """Return the values of a range: FIRST:LAST, FIRST:LAST:STEP or FIRST:LAST:xFACTOR.

    A unit may follow, as in "10:40:10 /s". Whole numbers stay whole.
    Raises ScenarioError for other texts, and ranges without an end or with too many values.
    """
    match = _RANGE.fullmatch(text)
    if match is None:
        raise ScenarioError(
            f"{what}: must be FIRST:LAST, FIRST:LAST:STEP or FIRST:LAST:xFACTOR, such as 1:8:2 or "
            f"'10:40:10 /s', got {brief(text)}"
        )
    first, last, times, step, unit = match.groups()
    low, high = float(first), float(last)
    by = float(step) if step else 1.0
    grows = by > 1 and low > 0 if times else by > 0
    if not (grows and low <= high and all(map(isfinite, (low, high, by)))):
        raise ScenarioError(
            f"{what}: must go up from FIRST to LAST by a STEP > 0, or from FIRST > 0 by a "
            f"FACTOR > 1, got {brief(text)}"
        )
    is_whole = all(float(each).is_integer() for each in (first, step or "1"))
    found: list[Any] = []
    value, number = low, 0
    while value <= high + _NEAR * by:
        if number >= COPIES:
            raise ScenarioError(f"{what}: must give <= {COPIES} values, got {brief(text)}")
        plain: int | float = round(value) if is_whole else float(f"{value:.10g}")
        found.append(f"{plain} {unit}" if unit else plain)
        number += 1
        value = low * by**number if times else low + by * number
    return found
