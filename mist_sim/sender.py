"""Who sends the requests: once, or again after a failure, until each has ended for good."""

from __future__ import annotations

from collections.abc import Generator

from numpy.random import Generator as Rng
from simpy.events import Event

from mist_sim.coordinator import Coordinator
from mist_sim.core.recorder import Recorder
from mist_sim.core.request import Request
from mist_sim.core.visit import Failure, Visit
from mist_sim.environment import Environment
from mist_sim.errors import InvariantError
from mist_sim.traces import Retries


class Sender:
    """Sends requests through the coordinator, counts them, and records how they ended.

    retries: when a request is sent again; None: never. rng: draws the jitter of the waits.
    num_accepted, num_finished, num_failed: requests so far, however often each was sent; those
    accepted and neither finished nor failed are on their way.
    """

    def __init__(
        self,
        env: Environment,
        coordinator: Coordinator,
        recorder: Recorder,
        retries: Retries | None,
        rng: Rng,
    ) -> None:
        self.env = env
        self.coordinator = coordinator
        self.recorder = recorder
        self.retries = retries
        self.num_accepted = 0
        self.num_finished = 0
        self.num_failed = 0
        self._rng = rng

    @property
    def num_ended(self) -> int:
        """Requests that finished or failed."""
        return self.num_finished + self.num_failed

    def send(self, request: Request) -> Generator[Event, Visit, float]:
        """Send a request that arrives now, and return when it ended for its user (seconds).

        After a failure that may be earlier than now: the user goes at once, the work on its
        request ends with the step in flight.
        """
        self.num_accepted += 1
        visits: list[Visit] = []
        failure = yield from self.coordinator.walk(request, visits)
        if failure is None:
            self.num_finished += 1
            self.recorder.record_end(request, visits, self.env.now)
            return self.env.now
        return (yield from self._persist(request, visits, failure))

    def _persist(
        self, request: Request, visits: list[Visit], failure: Failure | None
    ) -> Generator[Event, Visit, float]:
        """Send a request again after a failure, as often as the retries allow."""
        num_attempts = 1
        in_vain: list[Visit] = []
        while failure is not None and (wait := self._wait(failure, num_attempts)) is not None:
            in_vain += visits
            visits = []
            resend_at, gone_at = failure.time + wait, _gone_at(request)
            yield self.env.at(max(self.env.now, min(resend_at, gone_at)))
            if gone_at <= resend_at:
                failure = Failure("cancelled", gone_at, "the user went away between two attempts")
                break
            num_attempts += 1
            failure = yield from self.coordinator.walk(request, visits)
        if failure is None:
            self.num_finished += 1
        else:
            self.num_failed += 1
            in_vain += visits
        end = self.env.now if failure is None else failure.time
        self.recorder.record_end(request, visits, end, failure, num_attempts, in_vain)
        return end

    def _wait(self, failure: Failure, num_attempts: int) -> float | None:
        """Return the seconds from a failure to the next attempt; None when there is none."""
        retries = self.retries
        if retries is None or num_attempts >= retries.max_attempts:
            return None
        hopeless = failure.status == "rejected" and not failure.is_busy
        if failure.status not in retries.on or hopeless:
            return None
        return retries.wait(num_attempts, self._rng.random())

    def check_conservation(self, num_injected: int) -> None:
        """Raise InvariantError unless every injected request ended, once."""
        if num_injected != self.num_ended:
            raise InvariantError(
                f"requests were lost: {num_injected} injected, {self.num_finished} finished, "
                f"{self.num_failed} failed, {self.num_accepted - self.num_ended} in flight "
                f"at {self.env.now} s"
            )


def _gone_at(request: Request) -> float:
    """Return when the user of a request goes away, seconds."""
    if request.limits is None or request.arrival_time is None:
        return float("inf")
    return request.arrival_time + request.limits.patience
