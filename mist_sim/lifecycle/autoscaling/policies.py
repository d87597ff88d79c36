"""Policies of autoscaling: by queue length, utilisation, SLO attainment, or a schedule."""

from __future__ import annotations

import math
from bisect import bisect_right
from dataclasses import dataclass
from typing import Literal

from mist_sim.durations import require_plan
from mist_sim.lifecycle.autoscaling.base import AUTOSCALERS, GroupView
from mist_sim.units import Seconds

_EPSILON = 1e-9  # of a client, so that rounding does not add one


@AUTOSCALERS.register("queue_length")
@dataclass(frozen=True, kw_only=True)
class QueueLength:
    """One client per `target` requests.

    target: requests per client (> 0).
    counts: all requests (outstanding), or only waiting ones.

    Source: the Kubernetes autoscaler with a target for an average value, ceil(requests / target);
    with all of them it is the concurrency target of Knative and KServe.
    """

    target: float
    counts: Literal["outstanding", "waiting"] = "outstanding"

    def __post_init__(self) -> None:
        if not 0 < self.target < math.inf:
            raise ValueError(f"target must be finite and > 0 requests, got {self.target}")

    def wanted(self, group: GroupView) -> int:
        """Return the number at which each client has the target number of requests."""
        running = group.num_running if self.counts == "outstanding" else 0
        return _ceil((group.num_waiting + running) / self.target)


@AUTOSCALERS.register("utilisation")
@dataclass(frozen=True, kw_only=True)
class Utilisation:
    """As many clients as bring their mean utilisation to a target.

    target: share of it, in (0, 1].
    of: time, the share of the time since the last look in which a client had a request; or
        kv_cache, the share of the KV blocks that requests hold.

    Source: the Kubernetes autoscaler: ceil(clients x utilisation / target); it keeps the number
    where the ratio is within 0.1 of 1.
    """

    target: float = 0.7
    of: Literal["time", "kv_cache"] = "time"

    def __post_init__(self) -> None:
        if not 0 < self.target <= 1:
            raise ValueError(f"target must be in (0, 1], got {self.target}")

    def wanted(self, group: GroupView) -> int:
        """Return the number at which utilisation would meet the target; unchanged near it."""
        used = group.busy if self.of == "time" else group.kv_usage
        ratio = used / self.target
        if ratio != ratio or abs(ratio - 1) <= _TOLERANCE:
            return group.num_clients
        return _ceil(group.num_up * ratio)


_TOLERANCE = 0.1  # kube-controller-manager's --horizontal-pod-autoscaler-tolerance


@AUTOSCALERS.register("slo_attainment")
@dataclass(frozen=True, kw_only=True)
class SloAttainment:
    """More clients while too few requests keep the limits of the slo, fewer while nearly all do.

    below: attainment under which `step` clients are added, in (0, 1].
    above: attainment from which one is removed, in [below, 1], unless requests wait.
    step: clients that are added at a time (>= 1).
    """

    below: float = 0.95
    above: float = 0.995
    step: int = 1

    def __post_init__(self) -> None:
        if not 0 < self.below <= 1:
            raise ValueError(f"below must be in (0, 1], got {self.below}")
        if not self.below <= self.above <= 1:
            raise ValueError(f"above must be in [{self.below}, 1], got {self.above}")
        if self.step < 1:
            raise ValueError(f"step must be >= 1, got {self.step}")

    def wanted(self, group: GroupView) -> int:
        """Return more clients below the lower attainment, one fewer above the upper one."""
        if group.attainment < self.below:
            return group.num_clients if group.num_starting else group.num_clients + self.step
        if group.attainment >= self.above and not group.num_waiting:
            return max(group.num_clients - 1, 0)
        return group.num_clients


@AUTOSCALERS.register("schedule")
@dataclass(frozen=True, kw_only=True)
class Schedule:
    """As many clients as a plan says.

    at: when the number changes, ascending from 0 s on.
    clients: how many there are from each of these times on.
    period: after which the plan begins again; None: never.
    """

    at: tuple[Seconds, ...]
    clients: tuple[int, ...]
    period: Seconds | None = None

    def __post_init__(self) -> None:
        require_plan("clients", self.at, self.clients, self.period)
        if min(self.clients) < 0:
            raise ValueError(f"clients must be >= 0, got {min(self.clients)}")

    def wanted(self, group: GroupView) -> int:
        """Return the number that the schedule gives for this time."""
        time = group.now if self.period is None else group.now % self.period
        return self.clients[bisect_right(self.at, time) - 1]


def _ceil(number: float) -> int:
    return math.ceil(number - _EPSILON)
