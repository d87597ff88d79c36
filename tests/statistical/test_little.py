"""Little's law: mean number = arrival rate x mean time, as an identity and over seeds."""

from typing import Any

import numpy as np
import pytest
from simpy.events import Event

from mist_sim.clients import LlmClient
from mist_sim.core.recorder import Recorder
from mist_sim.core.request import Request, Stage
from mist_sim.core.visit import Visit
from mist_sim.environment import Environment
from mist_sim.traces import GeometricLength
from tests.statistical.queueing import Queue

TOKENS = 50
SERVICE_S = 1.0
RATE = 2.4
QUEUE = Queue(
    rate=RATE, output=GeometricLength(mean=TOKENS), step=SERVICE_S / TOKENS, servers=4,
    num_requests=4_000,
)  # fmt: skip


class WatchedClient(LlmClient):
    """Integrates over time the number of requests that its view shows to routers."""

    def start(self, env: Environment, client_id: int, recorder: Recorder) -> None:
        super().start(env, client_id, recorder)
        self.area = 0.0
        self.changed_at = 0.0

    def watch(self) -> None:
        self.area += (self.env.now - self.changed_at) * self.view.num_outstanding
        self.changed_at = self.env.now

    def serve(self, request: Request, stages: tuple[Stage, ...], *args: Any, **more: Any) -> Event:
        self.watch()
        return super().serve(request, stages, *args, **more)

    def finish(self, visit: Visit) -> None:
        self.watch()
        super().finish(visit)


def test_the_watched_number_is_sum_of_all_times():
    """From empty to empty, the area under a view's count is the sum of times in the system."""
    client = QUEUE.client(WatchedClient)
    result = QUEUE.run(np.random.SeedSequence(7), client)
    assert client.area == pytest.approx(result.requests["e2el"].sum(), rel=1e-9)


def test_the_work_in_steps_is_the_sum_of_all_times_in_service():
    """Steps weighted with their members are the times from the first step to the last."""
    result = QUEUE.run(np.random.SeedSequence(7))
    steps, requests = result.steps, result.requests
    members = steps["num_decodes"] + steps["num_chunks"]
    in_steps = ((steps["end"] - steps["start"]) * members).sum()
    in_service = (requests["e2el"] - requests["queued"]).sum()
    assert in_steps == pytest.approx(in_service, rel=1e-9)
    tokens = requests["num_output_tokens"].sum()
    assert in_steps == pytest.approx(tokens * QUEUE.step, rel=1e-9)
