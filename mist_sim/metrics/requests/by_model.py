"""Figures by the model that requests ask for, where they ask for several."""

from __future__ import annotations

from typing import Any

import numpy as np

from mist_sim.metrics import stats
from mist_sim.metrics.goodput import Slo
from mist_sim.metrics.records.recorder import ColumnRecorder
from mist_sim.metrics.requests.figures import goodput, samples, volume
from mist_sim.metrics.requests.rates import Mask, throughput

ANY = "any"
"""Name of the group of requests that ask for no model."""

_LATENCIES = ("ttft", "tpot", "e2el")
_FIGURES = ("mean", "p50", "p90", "p99")
_MS = 1e3


def by_model(
    recorder: ColumnRecorder,
    slo: Slo,
    counted: Mask,
    ended: Mask,
    warmup: float,
    duration: float,
) -> dict[str, Any]:
    """Return counts, rates and latencies of the requests of each model, as the summary of all.

    counted: requests that count. ended: those that finished in the `duration`. Nothing where all
    ask for the same, or for none.
    """
    c: dict[str, Any] = recorder.requests.columns()
    asked = np.unique(c["model"][counted | ended]).tolist()
    if len(asked) < 2:
        return {}
    found = {}
    for code in asked:
        mine = c["model"] == code
        done = ended & counted & mine
        figures = volume(c, counted & mine, done, duration)
        del figures["duration"]
        figures |= throughput(recorder, c, ended & mine, warmup, duration)
        good = goodput(slo, c, ended & mine, counted & mine, duration)
        figures |= {name: value for name, value in good.items() if name != "slo"}
        times = samples(c, done)
        for name in _LATENCIES:
            described = stats.describe(times[name][~np.isnan(times[name])])
            figures |= {f"{each}_{name}_ms": described[each] * _MS for each in _FIGURES}
        found[str(recorder.models.values[code] or ANY)] = figures
    return {"models": found}
