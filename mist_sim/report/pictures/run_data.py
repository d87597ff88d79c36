"""The data of a run for pictures and reports: a summary and tables, from memory or a folder."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from mist_sim.metrics.tables import RunFolder, frame_of, num_rows
from mist_sim.report.pictures.marks import Span

if TYPE_CHECKING:
    import pandas as pd

    from mist_sim.metrics import Result

_MS = 1e3


@dataclass(frozen=True)
class OfResult:
    """The data of a result in memory."""

    result: Result

    @property
    def summary(self) -> Mapping[str, Any]:
        """The metrics of the whole run."""
        return self.result.summary

    @property
    def scenario(self) -> str | None:
        """The resolved scenario as YAML text; None without any."""
        return self.result.scenario

    def table(self, name: str) -> pd.DataFrame:
        """Return one of `metrics.result.TABLES`."""
        return frame_of(self.result.columns(name))

    def has(self, name: str) -> bool:
        """Tell whether a table has rows."""
        return num_rows(self.result.columns(name)) > 0


RunData = RunFolder | OfResult
"""A run's summary, its tables by name, and its scenario."""


def limits_of(summary: Mapping[str, Any]) -> dict[str, float]:
    """Return the limits of the `slo` in seconds, by metric: ttft, tpot, e2el."""
    found = {}
    for name, verdict in summary.get("slo", {}).items():
        metric = name.split("_")[1]
        found[metric] = float(verdict["limit"]) / _MS
    return found


def outages_of(summary: Mapping[str, Any]) -> Iterator[Span]:
    """Yield the times in which some client was away after a failure."""
    for each in summary.get("outages", ()):
        end = summary["duration"] if each["end"] is None else each["end"]
        yield Span(each["begin"], end, "a client is away")
