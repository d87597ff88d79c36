"""When requests wait at an engine since their LoRA adapters find no free slot."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from math import isnan
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mist_sim.core.step_limits import StepLimits
from mist_sim.metrics.records.recorder import ColumnRecorder

Array = NDArray[np.float64]
_FREED, _LEFT_QUEUE, _QUEUED, _TAKEN = range(4)  # order of what happens at one time


def adapter_waits(
    recorder: ColumnRecorder, limits: Sequence[StepLimits | None]
) -> dict[int, tuple[Array, Array]]:
    """Return from when to when requests wait for a slot, seconds, by track; no two times overlap.

    limits: of each client; None if unknown. A request takes its adapter's slot from its start to
    its end, also while it is preempted.
    """
    if not recorder.adapters:
        return {}
    names = np.array(recorder.adapters)
    visits = recorder.visits.columns()
    tracks = _tracks(recorder)
    events: dict[int, list[tuple[float, int, int]]] = {}
    of_users = np.flatnonzero(visits["request_id"] >= 0)
    columns = ("request_id", "client_id", "queued_at", "started_at", "finished_at")
    for request_id, client_id, queued, started, finished in zip(
        *(visits[name][of_users].tolist() for name in columns), strict=True
    ):
        adapter, of = int(names[request_id]), limits[client_id]
        if adapter and of is not None and of.adapters:
            known = tracks.get((request_id, client_id))
            first = next(iter(recorder.tracks_of(client_id)), None)
            if (track := first if known is None else known) is None:
                continue
            mine = events.setdefault(track, [])
            begun = finished if isnan(started) else started
            mine += [(queued, _QUEUED, adapter), (begun, _LEFT_QUEUE, adapter)]
            if begun < finished:
                mine += [(begun, _TAKEN, adapter), (finished, _FREED, adapter)]
    found = {}
    for track, mine in events.items():
        of = limits[recorder.track_clients[track]]
        found[track] = _waits(sorted(mine), of.adapters if of else 0)
    return found


def _tracks(recorder: ColumnRecorder) -> dict[tuple[int, int], int]:
    """Return where requests had their first tokens, by request and client."""
    tokens = recorder.tokens.columns()
    pairs = zip(tokens["request_id"].tolist(), tokens["track"].tolist(), strict=True)
    found: dict[tuple[int, int], int] = {}
    for request_id, track in pairs:
        found.setdefault((request_id, recorder.track_clients[track]), track)
    return found


def _waits(events: Sequence[tuple[float, int, int]], slots: int) -> tuple[Array, Array]:
    """Return begins and ends of waits for one of so many slots. events: sorted by time."""
    waiting, running = Counter[int](), Counter[int]()
    num_held = num_used = 0  # requests that wait for a slot; slots in use
    begins, ends = list[float](), list[float]()
    is_held = False
    for time, kind, adapter in events:
        if kind == _QUEUED:
            waiting[adapter] += 1
            num_held += not running[adapter]
        elif kind == _LEFT_QUEUE:
            waiting[adapter] -= 1
            num_held -= not running[adapter]
        elif kind == _TAKEN:
            running[adapter] += 1
            if running[adapter] == 1:
                num_used += 1
                num_held -= waiting[adapter]
        else:
            running[adapter] -= 1
            if not running[adapter]:
                num_used -= 1
                num_held += waiting[adapter]
        now = num_used >= slots and num_held > 0
        if now != is_held:
            (begins if now else ends).append(time)
            is_held = now
    if is_held:
        ends.append(events[-1][0])
    return np.array(begins), np.array(ends)


def seconds_inside(waits: tuple[Array, Array] | None, begins: Any, ends: Any) -> Array:
    """Return the seconds of such times between begins and ends; none without any."""
    if waits is None or not len(waits[0]):
        return np.zeros(len(begins))
    edges = np.ravel(np.column_stack(waits))
    sums = np.concatenate([[0.0], np.cumsum(np.diff(edges) * (np.arange(len(edges) - 1) % 2 == 0))])
    return np.asarray(np.interp(ends, edges, sums) - np.interp(begins, edges, sums))
