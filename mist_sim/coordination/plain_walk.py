"""The plain walk: a request that one client serves whole, from its arrival to its end.

Most runs have only such requests. The coordinator would run a process that waits for the visit;
here the same work is one call at the arrival and one at the end. The order of the records and all
times are bit-identical (`tests/property/test_step_core.py`).
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from simpy.events import Event

from mist_sim.coordination.coordinator import Coordinator
from mist_sim.core.recorder import Recorder
from mist_sim.core.request import Request
from mist_sim.core.visit import SERVED, Failure, Visit
from mist_sim.environment import Environment
from mist_sim.errors import InvariantError
from mist_sim.routers import RefusalError

Ended = Callable[[Request, list[Visit], Failure | None], None]
"""Takes a request that is over, its visit, if there was one, and how it failed."""


class PlainWalk:
    """Walks requests through clients whose traits say `serves_whole`.

    ended: called to record a request that ended. counted: called after that with the request and
        its number of visits. at_once: whether both happen as the step ends rather than in the later
        phase in which requests move: if all requests walk plainly and no other part reads the
        records meanwhile, the result is the same.
    """

    def __init__(
        self,
        env: Environment,
        coordinator: Coordinator,
        recorder: Recorder,
        ended: Ended,
        counted: Callable[[Request, int], None],
        *,
        at_once: bool,
    ) -> None:
        self._env, self._recorder = env, recorder
        self._coordinator, self._route = coordinator, coordinator.dispatch.route
        self._ended, self._counted = ended, counted
        self._leave = self._end if at_once else self._end_soon

    def begin(self, request: Request) -> None:
        """Take a request that arrives now to a client."""
        stages, sent_at = request.stages, request.arrival_time
        request.send(self._env.now if sent_at is None else sent_at)
        try:
            client = self._route(request, stages[0])
        except RefusalError as refusal:
            self._ended(request, [], self._coordinator.refused(refusal))
            return
        if client is None:
            self._ended(request, [], self._coordinator.unserved(request, stages[0], None))
        else:
            client.serve_whole(request, stages, self._leave)

    def _end(self, client_id: int, visit: Visit) -> None:
        """Write down a visit that is over, and the request with it."""
        if visit.outcome is SERVED and visit.first_token_at == visit.first_token_at:
            request = visit.request
            request.to_serve = ()
            self._recorder.record_whole(client_id, visit)
            self._counted(request, 1)
        else:
            self._recorder.record_visit(client_id, visit)
            self._end_now(visit, None)

    def _end_soon(self, client_id: int, visit: Visit) -> None:
        self._recorder.record_visit(client_id, visit)
        event = self._env.at(self._env.now)
        event.callbacks.append(partial(self._end_now, visit))

    def _end_now(self, visit: Visit, _: Event | None) -> None:
        request, outcome = visit.request, visit.outcome
        if outcome is SERVED:
            request.to_serve = ()
            self._ended(request, [visit], None)
        elif isinstance(outcome, Failure):
            self._ended(request, [visit], outcome)
        else:
            raise InvariantError(
                f"a visit of request {request.request_id} ended with {outcome} at "
                f"{self._env.now} s, although its client has the trait serves_whole"
            )
