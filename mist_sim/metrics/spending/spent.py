"""GPU time, energy or cost of one client: of its requests, and while no step ran."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from mist_sim.metrics.latency import Array


@dataclass(frozen=True)
class Spent:
    """GPU seconds, joules or dollars of one client's steps, by request, and of its idle time.

    Kept for the requests that had a part in it: a run has many clients, and each request few.

    rows, values: the requests with a part, in the order of the recorder's, and their parts.
    num_requests: of the run. in_steps: sum of the parts. idle: while no step ran. GPUs of a failed
        client draw nothing and stay reserved; GPUs of a client that is off do neither.
    """

    rows: NDArray[np.int32]
    values: Array
    num_requests: int
    in_steps: float
    idle: float

    @classmethod
    def of(cls, by_request: Array, idle: float) -> Spent:
        """Return these parts of all requests, in the order of the recorder's, and of idle time."""
        rows = np.flatnonzero(by_request).astype(np.int32)
        return cls(rows, by_request[rows], len(by_request), float(by_request.sum()), idle)

    @property
    def by_request(self) -> Array:
        """The parts of all requests, in the order of the recorder's; a new array."""
        found = np.zeros(self.num_requests)
        found[self.rows] = self.values
        return found

    @property
    def total(self) -> float:
        """All of it."""
        return self.in_steps + self.idle
