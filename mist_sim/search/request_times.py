"""The latencies of a run's requests, from which the attainment of any limits follows."""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mist_sim.errors import ScenarioError
from mist_sim.metrics import ColumnRecorder, Slo, latency
from mist_sim.search.steady_state import quantile

Array = NDArray[np.float64]
_ROUNDING = 1e-9  # 0.9 x 10 requests are 9, whatever floats make of it


@dataclass(frozen=True)
class RequestTimes:
    """Latencies of the requests that count in a run, in order of their ids.

    ttft, tpot, e2el: seconds; infinite where a request failed or nobody measured it, which keeps no
    limit. An answer of one token has a TPOT of 0, as `vllm bench serve` counts it.
    """

    ttft: Array
    tpot: Array
    e2el: Array

    @classmethod
    def of(cls, recorder: ColumnRecorder, warmup: float) -> RequestTimes:
        """Return those of requests that users sent, `warmup` seconds after the start or later."""
        c: dict[str, Any] = recorder.requests.columns()
        rows = np.flatnonzero((c["parent_id"] == c["request_id"]) & (c["arrival_time"] >= warmup))
        rows = rows[np.argsort(c["request_id"][rows])]
        c = {name: column[rows] for name, column in c.items()}
        failed = c["status"] != 0
        tpot = latency.tpot(c["decode_time"], c["num_gaps"])
        return cls(
            _known(latency.ttft(c["arrival_time"], c["first_token_at"]), failed),
            _known(np.where(c["num_gaps"] == 0, 0.0, tpot), failed),
            _known(latency.e2e(c["arrival_time"], c["finished_at"]), failed),
        )

    def __len__(self) -> int:
        return len(self.ttft)


def _known(times: Array, failed: NDArray[np.bool_]) -> Array:
    return np.where(failed | np.isnan(times), np.inf, times)


@dataclass(frozen=True, kw_only=True)
class Target:
    """Limits that a service has to attain, and for which share of the requests.

    slo: limits of a good request. attainment: share of the requests that has to be good (> 0,
        <= 1). relaxation: by which share a time may exceed its limit (>= 0), such as BestServe's
        0.1 (Algorithm 9), which forgives the noise of short runs.
    each: every limit is kept by that share of the requests, not necessarily the same ones
        (Algorithm 9); else one share of the requests keeps all limits.

    Raises ScenarioError for values outside these ranges, and without a limit.
    """

    slo: Slo
    attainment: float = 0.9
    relaxation: float = 0.0
    each: bool = False

    def __post_init__(self) -> None:
        check_attainment(self.attainment)
        if not 0 <= self.relaxation < np.inf:
            raise ScenarioError(f"relaxation must be finite and >= 0, got {self.relaxation:g}")
        if not self.slo.is_set:
            raise ScenarioError(
                "slo must set a limit that requests have to keep, got none; such as "
                "--set slo.ttft='500 ms' --set slo.tpot='50 ms'"
            )

    def ratios(self, times: RequestTimes) -> Array:
        """Return time over limit: the largest of all limits in one row; with `each`, a row a limit.

        A request misses where it is > 1.
        """
        found = np.array(
            [
                getattr(times, name) / (limit * (1 + self.relaxation))
                for name, limit in self.slo.limits.items()
            ]
        )
        return found if self.each else found.max(axis=0, keepdims=True)

    def worst_limit(self, times: RequestTimes) -> str | None:
        """Return the limit whose quantile is furthest above it, or nearest; None: no requests."""
        if not len(times):
            return None
        worst = {
            name: quantile(getattr(times, name), self.attainment) / limit
            for name, limit in self.slo.limits.items()
        }
        return max(worst, key=lambda name: worst[name])

    def num_missed(self, times: RequestTimes) -> int:
        """Return how many requests miss; with `each`, the limit that most of them miss."""
        misses = [
            getattr(times, name) > limit * (1 + self.relaxation)
            for name, limit in self.slo.limits.items()
        ]
        if self.each:
            return max(int(missed.sum()) for missed in misses)
        return int(np.logical_or.reduce(misses).sum())

    def most_missed(self, num_requests: int) -> int:
        """Return how many of so many requests may miss; of more requests, never fewer."""
        return num_requests - ceil(self.attainment * num_requests - _ROUNDING)


def check_attainment(share: float) -> None:
    """Raise ScenarioError unless a share of the requests can be asked for."""
    if not 0 < share <= 1:
        raise ScenarioError(f"attainment must be in (0, 1], got {share:g}")


def none_counts(warmup: float, rate: float) -> ScenarioError:
    """Return the error of a run in which no request counts; seconds, and requests a second."""
    return ScenarioError(
        f"warmup must end before the last request arrives, got {warmup:g} s; at {rate:g} /s "
        "none arrives later; lower it or the rates, or send more requests"
    )
