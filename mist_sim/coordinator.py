"""MIST's Algorithm 1: the coordinator walks every request through its pipeline.

The paper's two events are two kinds of SimPy process here. STAGE-PUSH is `walk`, one process
per request: route, serve, next stage. CLIENT-STEP is the loop inside each client. The event
queue of the algorithm is SimPy's.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence

from simpy.events import Event

from mist_sim.clients.base import Client
from mist_sim.core.events import Recorder, Visit
from mist_sim.core.request import Request, Stage
from mist_sim.core.views import ClientView
from mist_sim.environment import Environment
from mist_sim.errors import InvariantError, ScenarioError
from mist_sim.routers import Router


class Coordinator:
    """Moves requests from stage to stage and counts them.

    num_accepted, num_finished, num_rejected: requests so far; those accepted and neither
    finished nor rejected are on their way.
    """

    def __init__(
        self, env: Environment, clients: Sequence[Client], router: Router, recorder: Recorder
    ) -> None:
        self.env = env
        self.clients = clients
        self.router = router
        self.recorder = recorder
        self.num_accepted = 0
        self.num_finished = 0
        self.num_rejected = 0
        self._candidates: dict[str, list[ClientView]] = {}
        self._client_ids: dict[str, frozenset[int]] = {}

    @property
    def num_in_flight(self) -> int:
        """Requests accepted and not yet finished or rejected."""
        return self.num_accepted - self.num_finished - self.num_rejected

    def walk(self, request: Request) -> Generator[Event, Visit, None]:
        """Take a request that arrives now through all its stages (STAGE-PUSH)."""
        self.num_accepted += 1
        visits: list[Visit] = []
        to_serve = request.stages
        while to_serve:
            client = self._route(request, to_serve[0])
            num_stages = client.takes(to_serve) if client else 0
            if client is None or not num_stages:
                self._reject(request, visits, _nobody_serves(to_serve[0], client))
                return
            visit = yield client.serve(request, to_serve[:num_stages])
            visits.append(visit)
            if visit.rejection is not None:
                self._reject(request, visits, visit.rejection)
                return
            to_serve = to_serve[num_stages:]
        self.num_finished += 1
        self.recorder.record_finish(request, visits, self.env.now)

    def _route(self, request: Request, stage: Stage) -> Client | None:
        """Return the client that the router chooses for a stage; None when none serves it."""
        candidates = self._candidates.get(stage.kind)
        if candidates is None:
            candidates = [client.view for client in self.clients if stage.kind in client.serves]
            self._candidates[stage.kind] = candidates
            self._client_ids[stage.kind] = frozenset(view.client_id for view in candidates)
        if not candidates:
            return None
        client_id = self.router.choose(request, stage, candidates)
        if client_id not in self._client_ids[stage.kind]:
            raise ScenarioError(
                f"{type(self.router).__name__}.choose returned {client_id!r}, which is not the "
                f"client_id of a candidate for {stage.kind}: {[v.client_id for v in candidates]}"
            )
        return self.clients[client_id]

    def _reject(self, request: Request, visits: list[Visit], reason: str) -> None:
        self.num_rejected += 1
        self.recorder.record_rejection(request, visits, self.env.now, reason)

    def check_conservation(self, num_injected: int) -> None:
        """Raise InvariantError unless every injected request finished or was rejected."""
        if num_injected != self.num_finished + self.num_rejected:
            raise InvariantError(
                f"requests were lost: {num_injected} injected, {self.num_finished} finished, "
                f"{self.num_rejected} rejected, {self.num_in_flight} in flight at {self.env.now} s"
            )


def _nobody_serves(stage: Stage, client: Client | None) -> str:
    if client is None:
        return f"no client serves the stage {stage.kind!r}"
    return f"{client.name} serves {stage.kind!r} only after a prefill of its own"
