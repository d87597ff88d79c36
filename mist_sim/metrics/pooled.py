"""Which models and classes of the workload fall short of limits that are judged over all of them.

A model with few requests hides behind the others: 90 % of all requests may be good while of its own
only two in three are.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from math import sqrt
from typing import Any

import numpy as np

from mist_sim.core import result_warnings as kinds
from mist_sim.core.result_warnings import ResultWarning
from mist_sim.errors import listed
from mist_sim.metrics.goodput import Slo
from mist_sim.metrics.records.recorder import ColumnRecorder
from mist_sim.metrics.requests import ANY, OTHERS, Counted, Mask, samples

_ERRORS = 2.0  # standard errors of a share by which it falls short, else chance may do it
_MOST = 8  # models or classes whose shares are told
_REMEDIES = {
    "models": "Limits by model have each judged: slo.classes, each with its model.",
    "classes": "Limits by class have each judged: slo.classes, by the names of the workload's.",
}


def pooled_warnings(
    recorder: ColumnRecorder,
    slo: Slo,
    warmup: float,
    *,
    asked: float | None = None,
    each: bool | None = None,
) -> Iterator[ResultWarning]:
    """Yield models, and classes of the workload, that keep limits less often than is asked of all.

    Nothing where all together keep them less often, too. warmup: as in `Result`. asked, each: the
    share and the way to count it, in place of those of the limits.
    """
    if not slo.judges_requests or not (len(recorder.models.values) > 1 or recorder.labels):
        return
    run = Counted(recorder, warmup)
    c: dict[str, Any] = {name: column[run.counted] for name, column in run.c.items()}
    group = c.get("group", np.zeros(len(c["status"]), dtype=int))
    good = _good(slo, c, slo.asks_each if each is None else each)
    parts = {"models": _by_model(recorder, c), "classes": _by_label(recorder, c)}
    for place, (name, limits) in enumerate(slo.groups.items()):
        own = slo.classes[name].attainment if name else None
        share = own if own is not None else slo.asked if asked is None else asked
        mine = group == place
        if not limits.limits or _is_short(good, mine, share):
            continue
        for what, masks in parts.items():
            inside = {part: mask & mine for part, mask in masks.items() if (mask & mine).any()}
            if any(_is_short(good, mask, share) for mask in inside.values()) and len(inside) > 1:
                who = name or (OTHERS if slo.classes else "")
                yield _warning(what, who, share, good, inside)


def _good(slo: Slo, c: Mapping[str, Any], each: bool) -> list[Mask]:
    """Return which requests are good; with `each`, which keep a limit, limit by limit."""
    done = c["status"] == 0
    group = c["group"][done] if "group" in c else None
    missed = slo.missed(samples(c, done), c["num_gaps"][done], group).values()
    kept = [~mask for mask in missed] if each else [~np.any(list(missed), axis=0)]
    found = []
    for mask in kept:
        good = np.zeros(len(done), dtype=bool)
        good[done] = mask
        found.append(good)
    return found


def _by_model(recorder: ColumnRecorder, c: Mapping[str, Any]) -> dict[str, Mask]:
    names = recorder.models.values
    return {str(names[k] or ANY): c["model"] == k for k in np.unique(c["model"]).tolist()}


def _by_label(recorder: ColumnRecorder, c: Mapping[str, Any]) -> dict[str, Mask]:
    """Return the requests by class of the workload; nothing where it has none."""
    if not recorder.labels:
        return {}
    labels = np.array(recorder.labels)[c["request_id"]]
    names = recorder.label_names.values
    return {str(names[k] or OTHERS): labels == k for k in np.unique(labels).tolist()}


def _share(good: list[Mask], mine: Mask) -> float:
    return min(float(mask[mine].mean()) for mask in good)


def _is_short(good: list[Mask], mine: Mask, asked: float) -> bool:
    """Whether some requests are good less often than asked, by more than chance."""
    number = int(mine.sum())
    if not number:
        return True
    return _share(good, mine) + _ERRORS * sqrt(asked * (1 - asked) / number) < asked


def _warning(
    what: str, who: str, asked: float, good: list[Mask], parts: Mapping[str, Mask]
) -> ResultWarning:
    shares = {name: _share(good, mask) for name, mask in parts.items()}
    found = sorted(shares, key=lambda name: shares[name])
    told = listed([f"{100 * shares[name]:.1f} % of {name}" for name in found[:_MOST]])
    of = f" of {who}" if who else ""
    return ResultWarning(
        kinds.POOLED,
        f"The limits{of} are for all {what} together: {100 * asked:g} % of all requests have to "
        f"keep them. Of each: {told}. {_REMEDIES[what]}",
        brief=f"{100 * shares[found[0]]:.1f} % of {found[0]} keep the limits; the "
        f"{100 * asked:g} % asked are of all {what} together.",
    )
