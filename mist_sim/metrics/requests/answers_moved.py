"""Answers that moved to another client while decoding, such as TaiChi's flowing answers."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from mist_sim.metrics.records.recorder import ColumnRecorder


def answers_moved(recorder: ColumnRecorder, request_ids: NDArray[np.int64]) -> dict[str, Any]:
    """Return how often answers moved: the mean over all requests, and the largest number.

    The hand-over from the client of the prompt to the first decode client does not count. Empty if
    no answer moved.
    """
    visits = recorder.visits.columns()
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
