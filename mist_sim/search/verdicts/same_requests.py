"""Runs of several designs with the same requests, compared batch by batch.

An interval of a goodput is some percent wide, since requests of one moment share their luck: long
prompts, bursts. Designs that serve the same requests share most of it, so that the difference of
their times is known far better than the times (common random numbers).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from math import sqrt
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mist_sim.core.request import Request
from mist_sim.core.visit import Failure, Visit
from mist_sim.metrics import WatchedEnds
from mist_sim.scenario import build
from mist_sim.search.verdicts.request_times import RequestTimes, Target
from mist_sim.search.verdicts.steady_runs import lengthened
from mist_sim.search.verdicts.steady_state import inflation, log_ratios, quantile
from mist_sim.studies.subjects import one_run

_BATCHES = 32
_RAMP = 0.2  # of the requests, left out, as in `steady_state`


def batch_quantiles(
    data: Mapping[str, Any], changes: Mapping[str, Any], seed: int, target: Target, num: int
) -> list[float] | None:
    """Run the first `num` requests to their end; return a quantile of each of 32 batches of them.

    The quantile is that of time over limit, as a logarithm, that has to be negative for the target;
    batches have the same requests in every design. More requests arrive until the run ends.
    data: the scenario. changes: overrides that make its rate.
    None where a workload is a certain one, such as a trace, or the target has several parts.
    """
    if target.has_parts:
        return None
    simulation = build(one_run(data, seed, changes))
    longer = lengthened(simulation, target, num)
    if longer is None or simulation.warmup:
        return None
    simulation.workload = longer
    recorder = _UntilEnded(num)
    with suppress(_AllEndedError):
        simulation.run(recorder=recorder)
    ids = recorder.ids_of_users
    found = target.ratios(RequestTimes.of(recorder, simulation.warmup))[0]
    ratios = np.full(num, np.inf)  # of one that never ended
    ratios[ids[ids < num]] = found[ids < num]
    parts = np.array_split(log_ratios(ratios[int(_RAMP * num) :]), _BATCHES)
    return [quantile(part, target.attainment) for part in parts]


def surely_less(one: Sequence[float], other: Sequence[float], error: float) -> bool:
    """Tell whether the first quantiles are smaller on average, compared batch by batch.

    error: chance of a wrong yes where they are equal.
    """
    from scipy.special import stdtrit

    found = np.array(one) - np.array(other)
    deviation = sqrt(float(found.var(ddof=1)) / len(found) * inflation(found))
    return float(found.mean() + stdtrit(len(found) - 1, 1 - error) * deviation) < 0


class _AllEndedError(Exception):
    """Ends a run whose first requests have ended."""


class _UntilEnded(WatchedEnds):
    """Records until the first `num` requests have ended."""

    def __init__(self, num: int) -> None:
        super().__init__()
        self._num = self._num_left = num

    @property
    def ids_of_users(self) -> NDArray[np.int64]:
        """The ids of the users' requests that have ended, in order."""
        columns = self.requests.columns()
        ids: NDArray[np.int64] = columns["request_id"]
        return np.sort(ids[columns["parent_id"] == ids])

    def ended(
        self, request: Request, visits: list[Visit], time: float, failure: Failure | None
    ) -> None:
        """Raise _AllEndedError after the last of the first requests."""
        if request.parent_id is None and request.request_id < self._num:
            self._num_left -= 1
            if not self._num_left:
                raise _AllEndedError
