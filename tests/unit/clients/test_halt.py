"""An engine that halts: steps that ended count, the one in flight is lost, all stay where they are.

Every step takes 1 s, and in a pipeline of two ranks 1 s on each. A request of five tokens comes at
0 s; the engine halts, and starts again when one of two tokens comes at 10 s.
"""

import pytest

from mist_sim.clients import LlmClient
from mist_sim.clients.scheduling import (
    ChunkedScheduler,
    ContinuousScheduler,
    MixedScheduler,
)
from mist_sim.core.visit import Failure
from mist_sim.environment import MOVE
from mist_sim.hardware.predictors import PipelinePredictor
from mist_sim.metrics import Result
from mist_sim.simulation import Simulation
from mist_sim.traces import Workload
from tests.reference.engines import llm_engine
from tests.reference.predictors import ConstantPredictor

SECOND = ConstantPredictor(1.0)


class Failing(LlmClient):
    """Its engines halt at some times, behind the requests that come then."""

    halts: tuple[float, ...] = ()
    gives_up: bool = False  # all that are there, just before

    def start(self, env, client_id, recorder):
        super().start(env, client_id, recorder)
        for time in self.halts:
            env.at(time, MOVE).callbacks.append(self._last)

    def _last(self, _):
        self.env.at(self.env.now, MOVE).callbacks.append(lambda _: self._halt())

    def _halt(self):
        for visit in list(self.stays) if self.gives_up else ():
            visit.outcome = Failure("cancelled", self.env.now, "the engine failed")
            self.abort(visit)
        for engine in self.lanes:
            engine.halt()


def served(
    *halts: float, lengths=((10, 5, 0.0), (10, 2, 10.0)), gives_up=False, **options: object
) -> Result:
    more = {"scheduler": ContinuousScheduler(), "predictor": SECOND, "num_gpu_blocks": 100}
    client = llm_engine(kind=Failing, **(more | options))
    client.halts, client.gives_up = halts, gives_up
    workload = Workload.from_lists(*zip(*lengths, strict=True))
    simulation = Simulation(clients=[client], workload=workload)
    result = simulation.run()
    for lane in client.lanes:
        assert lane.core.blocks.num_free == lane.core.blocks.num_blocks
    return result


def ranks(number: int) -> PipelinePredictor:
    return PipelinePredictor((SECOND,) * number, lambda num_tokens: 0.0)


def times(result: Result) -> list[list[float]]:
    return [result.token_times(k).tolist() for k in result.requests["request_id"]]


# what was computed by the end of the step before counts, at its very end, too
LOST_AT = [
    (0.5, []),
    (1.0, [1.0]),
    (1.5, [1.0]),
    (2.0, [1.0, 2.0]),
    (2.5, [1.0, 2.0]),
    (4.75, [1.0, 2.0, 3.0, 4.0]),
]


@pytest.mark.parametrize("ahead", [False, True])
@pytest.mark.parametrize(("halt", "before"), LOST_AT)
@pytest.mark.parametrize("scheduler", [ChunkedScheduler, MixedScheduler])
def test_the_step_in_flight_is_lost(scheduler, halt, before, ahead):
    result = served(halt, scheduler=scheduler(), async_scheduling=ahead)
    after = [11.0, 12.0, 13.0, 14.0, 15.0][: 5 - len(before)]
    assert times(result) == [before + after, [11.0, 12.0]]
    ends = sorted({*before, *after, 11.0, 12.0})
    assert list(result.recorder.step_ends[0]) == ends
    assert result.clients["busy"].item() == len(ends)


@pytest.mark.parametrize("num_ranks", [1, 2])
@pytest.mark.parametrize("halt", [0.0, 4.0, 4.5, 9.5])
def test_an_idle_engine_halts_without_a_trace(halt, num_ranks):
    """It is done at 2 s, or with two ranks at 4 s; at 0 s nobody has come yet."""
    more = {"predictor": ranks(num_ranks), "lengths": ((10, 2, 0.25), (10, 2, 10.0))}
    assert times(served(halt + 0.25 if halt else halt, **more)) == times(served(**more))


def test_who_gave_up_during_lost_step_is_gone():
    for options in ({}, {"async_scheduling": True}, {"predictor": ranks(2)}):
        for halt in (0.5, 1.0, 2.5, 4.0):
            result = served(halt, gives_up=True, **options)
            assert result.requests["status"].tolist() == ["cancelled", "finished"]
            assert result.requests["finished_at"].tolist()[0] == halt
            assert result.stages["finished_at"].max() == 12.0 + 2 * ("predictor" in options)
