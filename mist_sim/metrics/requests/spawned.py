"""Children of requests, and the visits that sent them."""

from __future__ import annotations

from typing import Any

import numpy as np

from mist_sim.metrics.latency import Array
from mist_sim.metrics.records.recorder import ColumnRecorder


def spawned(recorder: ColumnRecorder) -> dict[str, Any]:
    """Return the children of a run: columns with an item a child.

    parent_id: of the request that waits for it. visit: row of the visit that sent it. stages: code
    of that visit's pipeline. sent_at, ended_at: seconds.
    """
    c = recorder.requests.columns()
    child = np.flatnonzero(c["parent_id"] != c["request_id"])
    parent, sent_at = c["parent_id"][child], c["arrival_time"][child]
    visits = recorder.visits.columns()
    visit = np.full(len(child), -1)
    if len(child):
        # A request waits where it is, so its last visit served by then is the one that sent them.
        served = np.flatnonzero(visits["served"] & np.isin(visits["request_id"], parent))
        owner = np.concatenate([visits["request_id"][served], parent])
        time = np.concatenate([visits["finished_at"][served], sent_at])
        order = np.lexsort((np.arange(len(owner)), time, owner))  # a visit before its children
        latest = np.maximum.accumulate(np.where(order < len(served), np.arange(len(order)), 0))
        is_child = order >= len(served)
        visit[order[is_child] - len(served)] = served[order[latest[is_child]]]
    return {
        "parent_id": parent,
        "visit": visit,
        "stages": visits["stages"][visit],
        "sent_at": sent_at,
        "ended_at": c["finished_at"][child],
    }


def ends_with_children(recorder: ColumnRecorder) -> Array:
    """Return when each visit ended together with the children that it sent, seconds."""
    ends: Array = recorder.visits.columns()["finished_at"].copy()
    children = spawned(recorder)
    np.maximum.at(ends, children["visit"], children["ended_at"])
    return ends
