"""The seam between a group of clients and a policy that says how many of them should be up."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from mist_sim.registry import Registry

AUTOSCALERS = Registry("autoscalers")


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupView:
    """An autoscaler's view of its group.

    now: seconds. num_up, num_starting: clients that take requests, and that will soon.
    num_waiting, num_running: requests waiting in these clients or for one to come, and requests in
        work.
    busy: share of the time since the last look in which a client had a request, mean over clients
        that are up; NaN without any.
    kv_usage: share of the KV blocks that requests hold, over clients that are up; NaN without any.
    attainment: share of the requests which ended since the last look that kept the limits of the
    scenario's slo; NaN without any.
    """

    now: float
    num_up: int
    num_starting: int
    num_waiting: int
    num_running: int
    busy: float
    kv_usage: float
    attainment: float

    @property
    def num_clients(self) -> int:
        """Clients that are up or will soon be."""
        return self.num_up + self.num_starting


@runtime_checkable
class Autoscaler(Protocol):
    """Decides how many clients should be up.

    It is called at every look; its answer is clamped to the group's `min` and `max`. It changes no
    state, and decides only by the view.
    """

    def wanted(self, group: GroupView) -> int:
        """Return how many clients should be up (>= 0)."""
