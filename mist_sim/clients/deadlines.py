"""Deadlines of visits that are not over: one heap, one timer per client."""

from __future__ import annotations

from collections.abc import Callable
from heapq import heappop, heappush
from math import inf

from simpy.events import Event

from mist_sim.core.request import Request
from mist_sim.core.visit import Failure, Visit
from mist_sim.environment import Environment, give_up_phase


def limits_of(request: Request) -> list[tuple[float, str]]:
    """Return when the sender of a request gives up (seconds), and at which limit, in their order.

    At the same instant, time-outs come first and the user's patience last.
    """
    limits = request.limits
    if limits is None or request.arrival_time is None:
        return []
    end, limit = request.sent_at + limits.timeout, "timeout"
    gone_at = request.arrival_time + limits.patience
    if gone_at < end:
        end, limit = gone_at, "patience"
    token_at = request.sent_at + limits.ttft_timeout
    if token_at <= end and not request.has_token:
        return [(token_at, "ttft_timeout"), (end, limit)]
    return [(end, limit)]


def given_up(request: Request, limit: str, now: float) -> Failure:
    """Return how a request ends that is given up at one of its limits."""
    if limit == "patience":
        return Failure("cancelled", now, "the user went away")
    what = "answer" if limit == "timeout" else "first token"
    seconds = getattr(request.limits, limit)
    return Failure("timed_out", now, f"no {what} within the {limit} of {seconds:g} s")


class Deadlines:
    """The deadlines of one client's visits.

    Most visits end before their deadline; such entries are skipped when they come up, so a
    deadline costs a push on a heap, and no event of its own (DESIGN §5).

    client_id: orders clients whose deadlines fall on the same time.
    ring: called with the visit and the limit's name when a limit of an unfinished visit expires.
    """

    def __init__(
        self, env: Environment, client_id: int, ring: Callable[[Visit, str], None]
    ) -> None:
        self._env = env
        self._phase = give_up_phase(client_id)
        self._ring = ring
        self._heap: list[tuple[float, int, Visit, str]] = []
        self._num_added = 0
        self._timer: Event | None = None
        self._set_to = inf

    def add(self, time: float, visit: Visit, limit: str) -> None:
        """Watch a visit; a time (seconds) in the past counts as now, infinity as never."""
        if time < inf:
            time = max(time, self._env.now)
            self._num_added += 1
            heappush(self._heap, (time, self._num_added, visit, limit))
            if time < self._set_to:
                self._set(time)

    def _set(self, time: float) -> None:
        """Set the timer; a timer set earlier for a later time is ignored when it rings."""
        self._set_to = time
        self._timer = timer = self._env.at(time, self._phase)
        timer.callbacks = [self._time_is_up]

    def _time_is_up(self, timer: Event) -> None:
        """Ring for one visit; the next one at the same time rings after the effects of this one.

        A step may end because of it, so that other visits leave before their ring.
        """
        if timer is not self._timer:
            return
        heap = self._heap
        _, _, visit, limit = heappop(heap)
        if not visit.is_over:
            self._ring(visit, limit)
        while heap and heap[0][2].is_over:
            heappop(heap)
        self._set_to = inf
        if heap:
            self._set(heap[0][0])
