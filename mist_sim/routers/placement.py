"""A router that looks at where in the network a request's KV entries are."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from mist_sim.core.candidates import Candidates
from mist_sim.core.request import Request, Stage
from mist_sim.routers.base import ROUTERS
from mist_sim.routers.load import LoadBound


@ROUTERS.register("placement_aware")
@dataclass(kw_only=True)
class PlacementAwareRouter(LoadBound):
    """Send a visit to the candidate that the request's KV entries reach first.

    The time is the latencies of the route plus the bytes over its narrowest link, on an idle
    network. Ties, and requests that bring no entries, go to the candidate with the fewest
    outstanding requests, then to the first. Candidates that are too busy are passed over.

    balance_abs_threshold, balance_rel_threshold: as in `prefix_affinity`.

    Source: MIST §III-C1, "client placement information".
    """

    def choose(self, request: Request, stage: Stage, candidates: Candidates) -> int:
        """Return the candidate that the request's entries reach first."""
        least = candidates.least("num_outstanding")
        if request.kv is None:
            return least.client_id
        outstanding = candidates.numbers("num_outstanding")
        seconds = candidates.transfer_times(request)
        seconds[outstanding > self.most_outstanding(least)] = np.inf
        nearest = np.flatnonzero(seconds == seconds.min())
        return candidates[int(nearest[outstanding[nearest].argmin()])].client_id
