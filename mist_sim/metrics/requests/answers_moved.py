"""Answers that went on at another client, such as those that flow (TaiChi)."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from mist_sim.metrics.records.recorder import ColumnRecorder


def answers_moved(recorder: ColumnRecorder, request_ids: NDArray[np.int64]) -> dict[str, Any]:
    """Return how often the answers of some requests moved: mean over all, and most of one.

    The way from the client of its prompt to the one that begins the answer is no such move. Nothing
    where no answer moved.
    """
    visits: dict[str, Any] = recorder.visits.columns()
    pipelines: list[Any] = recorder.pipelines.values
    num_stages = np.array([len(kinds) for kinds in pipelines], dtype=int)
    left_some = visits["num_served_stages"] < num_stages[visits["stages"]]
    movers = visits["request_id"][visits["served"] & left_some]
    movers = movers[np.isin(movers, request_ids)]
    if not len(movers):
        return {}
    _, counts = np.unique(movers, return_counts=True)
    return {
        "mean_moves_per_request": len(movers) / len(request_ids),
        "max_moves_per_request": int(counts.max()),
    }
