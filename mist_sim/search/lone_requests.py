"""Requests that are alone: do they keep the limits that no rate attains?

If they do not, neither a lower rate nor more clients help; if they do, it is the load that fails.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import exp
from typing import Any, Self

from mist_sim.metrics.latency import limit_title


@dataclass(frozen=True)
class LoneRequests:
    """How requests that are alone fare, at the share that is asked for.

    over_limit: time over limit, of the worst limit of each request. by_limit: of each limit, such
    as "tpot".
    """

    over_limit: float
    by_limit: Mapping[str, float]

    @classmethod
    def of(cls, result: Mapping[str, Any]) -> Self:
        """Return the result of the run of `binding.lone_runs`."""
        by_limit = {name: exp(over) for name, over in result["alone"].items()}
        return cls(exp(max(result["quantile"])), by_limit)

    @property
    def sentence(self) -> str:
        """Whether the limits can be kept at all, and which cannot."""
        if self.over_limit <= 1:
            return "requests that are alone keep the limits: lower rates may be attained."
        missed = [
            f"{limit_title(name)} ({over:.3g} times its limit)"
            for name, over in self.by_limit.items()
            if over > 1
        ]
        which = " and ".join(missed) or "one limit or another"
        return (
            f"requests that are alone miss {which}, too: neither lower rates nor more clients help."
        )
