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
from mist_sim.metrics import Result
from mist_sim.traces import GeometricLength
from tests.statistical.queueing import NUM_WARMUP, Queue, assert_mean, over_seeds

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


def number_in_system(result: Result, begin: float, end: float) -> float:
    """Return the time average of the number in the system, from arrivals and departures."""
    arrival = result.requests["arrival_time"].to_numpy()
    finish = result.requests["finished_at"].to_numpy()
    stays = np.minimum(finish, end) - np.maximum(arrival, begin)
    return float(np.maximum(stays, 0.0).sum() / (end - begin))


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


@pytest.mark.statistical
@pytest.mark.deep
def test_mean_number_is_rate_times_mean_time():
    """L = lambda E[T] with the nominal rate, between the first counted and the last arrival.

    Measured: false 0.3 %; an error of 2 % in E[T] is noticed 73 %, of 5 % 100 % of the time.
    """

    def excess(seed: np.random.SeedSequence) -> float:
        result = QUEUE.run(seed)
        arrival = result.requests["arrival_time"].to_numpy()[NUM_WARMUP:]
        number = number_in_system(result, arrival[0], arrival[-1])
        return number - RATE * float(result.requests["e2el"].to_numpy()[NUM_WARMUP:].mean())

    number = RATE * SERVICE_S  # in service; those in the queue come on top
    assert_mean(over_seeds(excess, entropy=19), 0.0, 0.035 * number)
