"""What every client is: a named serving unit that takes visits and reports what came of them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence

from simpy.events import Event

from mist_sim.core.events import Recorder, Visit
from mist_sim.core.request import Request, Stage
from mist_sim.core.views import ClientState
from mist_sim.environment import MOVE, Environment
from mist_sim.rng import Streams


class Client(ABC):
    """A serving unit: a scheduler on a cluster of hardware (MIST §III-D).

    Subclasses say which stages they serve and fill `_accept`; this class keeps the counts that
    routers see and hands finished visits back. A client belongs to one simulation.

    name: unique in the simulation. serves: the stage kinds it can serve.
    streams: where it draws random numbers from; those of the run when it starts.
    num_gpu_blocks: its KV-cache blocks; 0 when it has no cache.
    estimate: where its step times come from, for the summary; None where they are given.
    """

    streams: Streams = Streams(0)
    num_gpu_blocks: int = 0
    estimate: str | None = None

    def __init__(self, name: str, serves: frozenset[str]) -> None:
        self.name = name
        self.serves = serves

    def start(self, env: Environment, client_id: int, recorder: Recorder) -> None:
        """Join a simulation: begin empty, at its time zero."""
        self.env = env
        self.client_id = client_id
        self.recorder = recorder
        self.view = ClientState(client_id, self.name)
        self._ends: dict[Visit, Event] = {}

    def serve(self, request: Request, stages: tuple[Stage, ...]) -> Event:
        """Queue a request for consecutive stages; the event's value is the finished `Visit`.

        A visit that can never be served ends at once, with its `rejection` set.
        """
        visit = Visit(request, stages, self.env.now)
        end = self._ends[visit] = self.env.event()
        self.view.num_outstanding += 1
        self._accept(visit)
        return end

    def takes(self, stages: Sequence[Stage]) -> int:
        """Return how many of the next stages the client serves in one visit, from the first."""
        num_stages = 0
        for stage in stages:
            if stage.kind not in self.serves:
                break
            num_stages += 1
        return num_stages

    @abstractmethod
    def _accept(self, visit: Visit) -> None:
        """Take a visit in; call `_finish` or `_reject` when it ends."""

    def _finish(self, visit: Visit) -> None:
        """Hand a served visit back; its request moves on at the present time."""
        visit.finished_at = self.env.now
        self.view.num_outstanding -= 1
        self.recorder.record_visit(self.client_id, visit)
        self.env.trigger(self._ends.pop(visit), self.env.now, MOVE, visit)

    def _reject(self, visit: Visit, reason: str) -> None:
        """Hand back a visit that cannot be served."""
        visit.rejection = f"{self.name}: {reason}"
        self._finish(visit)
