"""Routers that look at the clients' load."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from operator import attrgetter

from mist_sim.core.request import Request, Stage
from mist_sim.core.views import ClientView
from mist_sim.routers.base import ROUTERS

_OUTSTANDING = attrgetter("num_outstanding")


@ROUTERS.register("least_outstanding")
@dataclass
class LeastOutstandingRouter:
    """Send a visit to the candidate with the fewest unfinished visits; the first among equals.

    Source: MIST §III-C1, "Least work outstanding", counted in requests.
    """

    def choose(self, request: Request, stage: Stage, candidates: Sequence[ClientView]) -> int:
        return min(candidates, key=_OUTSTANDING).client_id
