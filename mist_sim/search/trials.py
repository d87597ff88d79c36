"""One run of a scenario at one rate: does it attain the target?"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Self

from mist_sim.core.request import Request
from mist_sim.core.visit import Failure, Visit
from mist_sim.errors import ScenarioError
from mist_sim.metrics import ColumnRecorder
from mist_sim.scenario import Scenario, build
from mist_sim.search.request_times import RequestTimes, Target

_LOOKS = 50  # at the misses, in a run


@dataclass(frozen=True)
class Trial:
    """What a run at one rate showed.

    rate: requests per second. attainment: share of the requests that were good, as the target
    counts them; where the run was ended early, because it could no longer attain, one that it did
    not exceed. is_whole: it was not. stability: whether the clients kept up ("stable", "unstable",
    "too short to tell"), known of runs that attained.
    """

    rate: float
    seed: int
    attained: bool
    attainment: float
    is_whole: bool
    stability: str | None = None

    def data(self) -> dict[str, Any]:
        """Return it as plain data, of which `of` makes it again."""
        return asdict(self)

    @classmethod
    def of(cls, data: Mapping[str, Any]) -> Self:
        """Return the trial that plain data says."""
        return cls(**data)


def trial_data(*arguments: Any) -> dict[str, Any]:
    """Do `try_rate`, as a task of a study; return the trial as plain data."""
    return try_rate(*arguments).data()


def try_rate(
    data: dict[str, Any],
    changes: dict[str, Any],
    seed: int,
    rate: float,
    target: Target,
    num_requests: int,
) -> Trial:
    """Run a scenario until its end, or until it has missed the target for certain.

    data: the scenario as plain mappings. changes: overrides that make its rate `rate`.
    num_requests: of the workload. Raises ScenarioError where no request counts.
    """
    simulation = build(Scenario.from_dict(data, {**changes, "seed": seed, "replications": 1}))
    warmup = simulation.warmup
    recorder = _Judge(target, warmup, num_requests)
    try:
        result = simulation.run(recorder=recorder)
    except _MissedError as missed:
        return Trial(rate, seed, False, _share(missed.num_missed, num_requests), False)
    times = RequestTimes.of(recorder, warmup)
    if not len(times):
        raise ScenarioError(
            f"warmup must end before the last request arrives, got {warmup:g} s; at {rate:g} /s "
            "none arrives later; lower it or the rates, or send more requests"
        )
    num_missed = target.num_missed(times)
    attained = num_missed <= target.most_missed(len(times))
    stability = result.summary.get("stability") if attained else None
    return Trial(rate, seed, attained, _share(num_missed, len(times)), True, stability)


def _share(num_missed: int, num_requests: int) -> float:
    return (num_requests - num_missed) / num_requests


class _MissedError(Exception):
    """More requests have missed than may; num_missed: how many by now."""

    def __init__(self, num_missed: int) -> None:
        super().__init__(num_missed)
        self.num_missed = num_missed


class _Judge(ColumnRecorder):
    """Records, and ends the run as soon as too many requests have missed.

    What is left out of the statistics only lowers how many may, so that more misses than the whole
    workload may have are always too many.
    """

    def __init__(self, target: Target, warmup: float, num_requests: int) -> None:
        super().__init__()
        self._target = target
        self._warmup = warmup
        self._most = target.most_missed(num_requests)
        self._every = max(20, num_requests // _LOOKS)
        self._num_ended = 0

    def record_end(
        self,
        request: Request,
        visits: list[Visit],
        time: float,
        failure: Failure | None = None,
        num_attempts: int = 1,
        in_vain: Sequence[Visit] = (),
    ) -> None:
        """Add a row, and look at the misses now and then. Raises _MissedError."""
        super().record_end(request, visits, time, failure, num_attempts, in_vain)
        self._num_ended += 1
        if self._num_ended % self._every == 0:
            missed = self._target.num_missed(RequestTimes.of(self, self._warmup))
            if missed > self._most:
                raise _MissedError(missed)
