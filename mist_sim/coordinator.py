"""MIST's Algorithm 1: the coordinator walks every request through its pipeline.

The paper's two events are two kinds of SimPy process here. STAGE-PUSH is `walk`, one process
per request: route, serve, next stage. CLIENT-STEP is the loop inside each client. The event
queue of the algorithm is SimPy's.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence

from simpy.events import Event

from mist_sim.clients.base import Client
from mist_sim.core.events import Failure, Visit
from mist_sim.core.request import Request, Stage
from mist_sim.core.views import ClientView
from mist_sim.environment import Environment
from mist_sim.errors import ScenarioError
from mist_sim.routers import Router


class Coordinator:
    """Moves requests from stage to stage."""

    def __init__(self, env: Environment, clients: Sequence[Client], router: Router) -> None:
        self.env = env
        self.clients = clients
        self.router = router
        self._candidates: dict[str, list[ClientView]] = {}
        self._client_ids: dict[str, frozenset[int]] = {}

    def walk(
        self, request: Request, visits: list[Visit]
    ) -> Generator[Event, Visit, Failure | None]:
        """Take a request that is sent now through all its stages (STAGE-PUSH).

        Its visits are added to `visits` as they end. Returns how it failed, None when it did not.
        """
        request.send(self.env.now)
        to_serve = request.stages
        while to_serve:
            client = self._route(request, to_serve[0])
            num_stages = client.takes(to_serve) if client else 0
            if client is None or not num_stages:
                return Failure("rejected", self.env.now, _nobody_serves(to_serve[0], client))
            visit = yield client.serve(request, to_serve[:num_stages])
            visits.append(visit)
            if visit.failure is not None:
                return visit.failure
            to_serve = to_serve[num_stages:]
        return None

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


def _nobody_serves(stage: Stage, client: Client | None) -> str:
    if client is None:
        return f"no client serves the stage {stage.kind!r}"
    return f"{client.name} serves {stage.kind!r} only after a prefill of its own"
