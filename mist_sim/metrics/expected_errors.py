"""How far TTFT and TPOT may be from what a real engine would show: `expected_errors.csv`.

A row of that file is a setting that has measurements like it. `python docs/make_errors.py` writes
it (`mist_sim.validation.error_bars` says how the ranges are found).
"""

from __future__ import annotations

import csv
from collections.abc import Mapping
from dataclasses import dataclass, fields
from functools import cache
from importlib import resources
from typing import Any

from mist_sim.hardware.setting import Borrowed, Setting


@dataclass(frozen=True, slots=True)
class ErrorBar:
    """Where nine of ten measurements lie, as measured / simulated - 1.

    low, high: the ends of the range. num_points: measured figures in it, of whole runs and of
    kernels. like: what they are of, in words.
    """

    low: float
    high: float
    num_points: int
    like: str

    @property
    def width(self) -> float:
        """From one end to the other."""
        return self.high - self.low


def error_bar(setting: Setting | Borrowed | None, metric: str) -> ErrorBar | None:
    """Return the expected error of a setting; None without measurements like it."""
    if setting is None or isinstance(setting, Borrowed):
        return None
    return _bars().get((setting, metric))


def expected_errors(
    settings: Mapping[str, Mapping[str, Setting | Borrowed | None]],
) -> dict[str, dict[str, dict[str, Any] | None]]:
    """Return the expected errors of clients by metric, as a summary has them.

    settings: as in `Result`.
    """
    return {
        name: {metric: _shown(setting, metric) for metric, setting in of_client.items()}
        for name, of_client in settings.items()
    }


def _shown(setting: Setting | Borrowed | None, metric: str) -> dict[str, Any] | None:
    """Return an error bar as data; one that is borrowed has no ends, and says why."""
    if isinstance(setting, Borrowed):
        return {"low": None, "high": None, "num_points": 0, "like": setting.why}
    bar = error_bar(setting, metric)
    if bar is None:
        return None
    return {"low": bar.low, "high": bar.high, "num_points": bar.num_points, "like": bar.like}


@cache
def _bars() -> Mapping[tuple[Setting, str], ErrorBar]:
    text = (resources.files("mist_sim.metrics") / "expected_errors.csv").read_text("utf-8")
    rows = csv.DictReader(line for line in text.splitlines() if not line.startswith("#"))
    return {(_setting(row), row["metric"]): _bar(row) for row in rows}


def _setting(row: Mapping[str, str]) -> Setting:
    return Setting(**{field.name: row[field.name] for field in fields(Setting)})


def _bar(row: Mapping[str, str]) -> ErrorBar:
    return ErrorBar(float(row["low"]), float(row["high"]), int(row["num_points"]), row["like"])
