"""Rows of the table of requests by request id."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from mist_sim.metrics.latency import Array
from mist_sim.metrics.records.recorder import ColumnRecorder

Rows = NDArray[np.int64]


class RequestRows:
    """The rows of requests by their ids."""

    def __init__(self, recorder: ColumnRecorder) -> None:
        requests = recorder.requests.columns()
        self._rows: Rows = np.argsort(requests["request_id"])
        self._ids: Rows = requests["request_id"][self._rows]

    def __len__(self) -> int:
        return len(self._ids)

    def of(self, request_ids: Rows) -> Rows:
        """Return the rows of requests, which must be there."""
        return self._rows[np.searchsorted(self._ids, request_ids)]

    def added(self, request_ids: Rows, values: Array) -> Array:
        """Return values summed by request, in the order of the rows."""
        return np.asarray(np.bincount(self.of(request_ids), values, len(self)), dtype=float)
