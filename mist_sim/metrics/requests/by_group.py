"""Figures by the model that requests ask for, where they ask for several, and by class."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from mist_sim.metrics import stats
from mist_sim.metrics.goodput import Slo
from mist_sim.metrics.records.recorder import ColumnRecorder
from mist_sim.metrics.requests.figures import (
    goodput,
    request_columns,
    samples,
    steady_rates,
    volume,
)
from mist_sim.metrics.requests.steady import SteadyPart
from mist_sim.metrics.requests.window_rates import Mask, throughput

ANY = "any"
"""Name of the group of requests that ask for no model."""

OTHERS = "others"
"""Name of the requests of no class of the slo."""

_LATENCIES = ("ttft", "tpot", "e2el")
_FIGURES = ("mean", "p50", "p90", "p99")
_MS = 1e3


def by_group(
    recorder: ColumnRecorder,
    slo: Slo,
    counted: Mask,
    finished: Mask,
    warmup: float,
    duration: float,
    part: SteadyPart,
) -> dict[str, Any]:
    """Return counts, rates and latencies of groups of requests, as in the summary of all.

    counted: requests that count. finished: of users, whenever they ended. part: the steady part.
    `models`: by model; absent if all requests name the same one or none. `classes`: by class of the
    slo, with the requests of no class; absent without classes.
    """
    c = request_columns(recorder)
    figures = _Figures(recorder, c, slo, counted, finished, warmup, duration, part)
    found: dict[str, Any] = {}
    asked = np.flatnonzero(np.bincount(c["model"][counted | figures.ended])).tolist()
    if len(asked) > 1:
        names = recorder.models.values
        models = {str(names[code] or ANY): figures.of(c["model"] == code) for code in asked}
        found["models"] = models
    if slo.classes and "group" in c:
        groups = {name: c["group"] == place for place, name in enumerate(slo.groups)}
        classes = {name or OTHERS: figures.of(mine) for name, mine in groups.items() if mine.any()}
        found["classes"] = classes
    return found


@dataclass(frozen=True)
class _Figures:
    """Figures of some requests; the fields are as of `by_group`. columns: of all requests."""

    recorder: ColumnRecorder
    columns: Mapping[str, Any]
    slo: Slo
    counted: Mask
    finished: Mask
    warmup: float
    duration: float
    part: SteadyPart

    @cached_property
    def ended(self) -> Mask:
        """The requests that finished in the `duration`."""
        return np.asarray(self.finished & (self.columns["finished_at"] >= self.warmup))

    def of(self, mine: Mask) -> dict[str, Any]:
        """Return the figures of the requests in a mask."""
        c, counted, ended = self.columns, self.counted & mine, self.ended & mine
        figures = volume(c, counted, ended & counted, self.duration)
        del figures["duration"]
        finished = self.finished & mine
        figures |= throughput(self.recorder, c, finished, self.warmup, self.duration)
        figures |= steady_rates(self.recorder, c, finished, self.part)
        good = goodput(self.slo, c, ended, counted, self.duration, self.part)
        figures |= {name: value for name, value in good.items() if name != "slo"}
        times = samples(c, ended & counted)
        for name in _LATENCIES:
            described = stats.describe(times[name][~np.isnan(times[name])])
            figures |= {f"{each}_{name}_ms": described[each] * _MS for each in _FIGURES}
        return figures
