"""Routers that look at the clients' load."""

from __future__ import annotations

from dataclasses import dataclass

from mist_sim.core.candidates import Candidates
from mist_sim.core.request import Request, Stage
from mist_sim.core.views import ClientView
from mist_sim.routers.base import ROUTERS


@ROUTERS.register("least_outstanding")
@dataclass
class LeastOutstandingRouter:
    """Send a visit to the candidate with the fewest unfinished visits; the first among equals.

    Source: MIST §III-C1, "Least work outstanding", counted in requests.
    """

    def choose(self, request: Request, stage: Stage, candidates: Candidates) -> int:
        return candidates.least("num_outstanding").client_id


@dataclass(kw_only=True)
class LoadBound:
    """Up to which load a router prefers a candidate for what it has of a request.

    A candidate is too busy when it has more than `balance_abs_threshold` outstanding requests
    above the least busy one, and more than `balance_rel_threshold` times as many.

    Source: names, rule and defaults of `cache_aware` in SGLang's router (Model Gateway,
    "Cache-Aware Policy Tuning") and the vLLM router, which compare the busiest worker with the
    least busy one and, when that is too much, send every request to the least busy; here each
    candidate is compared, so that one busy client does not keep requests from the caches of
    others.
    """

    balance_abs_threshold: int = 64
    balance_rel_threshold: float = 1.5

    def __post_init__(self) -> None:
        if self.balance_abs_threshold < 0:
            raise ValueError(
                f"balance_abs_threshold must be >= 0, got {self.balance_abs_threshold}"
            )
        if not self.balance_rel_threshold >= 1:
            raise ValueError(
                f"balance_rel_threshold must be >= 1, got {self.balance_rel_threshold}"
            )

    def most_outstanding(self, least: ClientView) -> float:
        """Return how many a candidate may have; `least` is the least busy one."""
        fewest = least.num_outstanding
        return max(fewest + self.balance_abs_threshold, self.balance_rel_threshold * fewest)
