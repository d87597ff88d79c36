"""Limits in addition to an slo's, each with its own share of requests: MIST's p50 and p90."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from mist_sim.errors import ScenarioError, brief
from mist_sim.metrics.latency import NAMES, percentile_of
from mist_sim.units import DURATION


class Percentile(NamedTuple):
    """A limit that a share of the requests keeps: for half of them, a TTFT of 2 s.

    metric: of `latency.NAMES`; "itl" is of all gaps, not of requests. share: of them, in (0, 1).
    limit: seconds.
    """

    metric: str
    share: float
    limit: float

    @property
    def name(self) -> str:
        """The name in files, such as "p50_ttft"."""
        return f"p{100 * self.share:g}_{self.metric}"

    @property
    def is_of_gaps(self) -> bool:
        """Whether gaps keep it, not requests."""
        return self.metric == "itl"


def percentiles_of(given: object) -> tuple[Percentile, ...]:
    """Return the percentiles of a mapping, such as {p50_ttft: 2 s}, in its order.

    Raises ScenarioError for other names, and times that are not limits.
    """
    if not isinstance(given, Mapping) or not given:
        raise ScenarioError(
            f"percentiles must be a mapping, such as {{p50_ttft: 2 s}}, got {brief(given)}"
        )
    return tuple(_percentile(str(name), value) for name, value in given.items())


def limit_on(name: str, limit: float) -> Percentile:
    """Return the limit (seconds) on a percentile, such as "p50_ttft".

    Raises ScenarioError for another name.
    """
    found = percentile_of(name)
    if found is None:
        raise ScenarioError(
            f"{brief(name)} is no percentile; percentiles are p1 to p99 of {', '.join(NAMES)}, "
            "such as p50_ttft"
        )
    return Percentile(found[1], found[0] / 100, limit)


def _percentile(name: str, value: object) -> Percentile:
    limit_on(name, 0.0)
    try:
        limit = DURATION.parse(value)
    except ScenarioError as error:
        raise ScenarioError(f"{name}: {error}") from None
    if limit <= 0:
        raise ScenarioError(f"{name}: must be > 0 s, got {brief(value)}")
    return limit_on(name, limit)
