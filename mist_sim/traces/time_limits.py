"""Time limits of a workload's senders, and deadlines of first tokens."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from math import inf

import numpy as np

from mist_sim.checks import Checked, Positive
from mist_sim.core.request import Limits, Request
from mist_sim.durations import DurationDistribution, draws
from mist_sim.units import Seconds


@dataclass(frozen=True, slots=True, kw_only=True)
class TimeLimits(Checked):
    """The `Limits` that a workload gives its requests; None: no limit of that kind.

    timeout, ttft_timeout: seconds after sending (> 0) at which an attempt is given up if the whole
    answer, or its first token, has not come.
    patience: distribution of the seconds after which a user leaves, even during an answer.
    ttft_deadline: seconds in which the first token is due (> 0), for all or for some priorities.
    Raises ValueError for times that are not positive and finite.
    """

    timeout: Positive[Seconds] | None = None
    ttft_timeout: Positive[Seconds] | None = None
    patience: DurationDistribution | None = None
    ttft_deadline: Positive[Seconds] | Mapping[int, Positive[Seconds]] | None = None

    def applied(self, requests: Iterator[Request], rng: np.random.Generator) -> Iterator[Request]:
        """Yield the requests with their limits; patience is drawn from `rng`."""
        patience = self._patience(rng)
        shared: dict[int, Limits] = {}
        for request in requests:
            limits = shared.get(request.priority)
            if limits is None:
                limits = shared[request.priority] = self._limits(request.priority)
            if patience is not None:
                limits = limits._replace(patience=next(patience))
            request.limits = limits
            yield request

    def _limits(self, priority: int) -> Limits:
        """Return the limits that all requests of a priority have in common."""
        deadline = self.ttft_deadline
        if isinstance(deadline, Mapping):
            deadline = deadline.get(priority)
        return Limits(
            timeout=inf if self.timeout is None else self.timeout,
            ttft_timeout=inf if self.ttft_timeout is None else self.ttft_timeout,
            ttft_deadline=inf if deadline is None else deadline,
        )

    def _patience(self, rng: np.random.Generator) -> Iterator[float] | None:
        """Yield how long each user stays, drawn in blocks; None without a distribution."""
        return None if self.patience is None else draws(self.patience, rng, "patience")
