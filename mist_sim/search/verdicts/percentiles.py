"""Limits in addition to an slo's, each with its own share of requests: MIST's p50 and p90."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import NamedTuple

from mist_sim.errors import ScenarioError, brief
from mist_sim.units import DURATION

_METRICS = ("ttft", "tpot", "e2el")
_PERCENTILE = re.compile(r"p(?P<share>[1-9]\d?)_(?P<metric>ttft|tpot|e2el)")


class Percentile(NamedTuple):
    """A limit that a share of the requests keeps: for half of them, a TTFT of 2 s.

    metric: "ttft", "tpot" or "e2el". share: of the requests, in (0, 1). limit: seconds.
    """

    metric: str
    share: float
    limit: float

    @property
    def name(self) -> str:
        """The name in files, such as "p50_ttft"."""
        return f"p{100 * self.share:.0f}_{self.metric}"


def percentiles_of(given: object) -> tuple[Percentile, ...]:
    """Return the percentiles of a mapping, such as {p50_ttft: 2 s}, in its order.

    Raises ScenarioError for other names, and times that are not limits.
    """
    if not isinstance(given, Mapping) or not given:
        raise ScenarioError(
            f"percentiles must be a mapping, such as {{p50_ttft: 2 s}}, got {brief(given)}"
        )
    return tuple(_percentile(str(name), value) for name, value in given.items())


def _percentile(name: str, value: object) -> Percentile:
    found = _PERCENTILE.fullmatch(name)
    if found is None:
        raise ScenarioError(
            f"{brief(name)} is no percentile; percentiles are p1 to p99 of {', '.join(_METRICS)}, "
            "such as p50_ttft"
        )
    try:
        limit = DURATION.parse(value)
    except ScenarioError as error:
        raise ScenarioError(f"{name}: {error}") from None
    if limit <= 0:
        raise ScenarioError(f"{name}: must be > 0 s, got {brief(value)}")
    return Percentile(found["metric"], int(found["share"]) / 100, limit)
