"""The engines behind one client: how many there are, and which lanes step together."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from copy import deepcopy

from mist_sim.clients.engine.lane import Lane, LaneEngine
from mist_sim.clients.engine.loop import Engine, least_loaded
from mist_sim.clients.engine.pipelined import PipelineEngine
from mist_sim.clients.engine.plan_ahead import PlanAhead
from mist_sim.clients.scheduling import Scheduler
from mist_sim.clients.sequence_state import SequenceState
from mist_sim.environment import Environment
from mist_sim.errors import ScenarioError
from mist_sim.hardware.predictors.base import Predictor
from mist_sim.hardware.predictors.ranks import PipelinePredictor


class Engines:
    """All engines of a client; a request goes to the least loaded one and stays there.

    schedulers: one a lane, engine by engine. make_lane: gives a lane of an engine, which is
    numbered from 0, its memory.
    lockstep: whether all lanes step together. async_scheduling: whether each plans ahead.
    rank: orders the first engine among those of other clients whose steps end at the same time.
    """

    def __init__(
        self,
        env: Environment,
        schedulers: Sequence[Scheduler],
        predictor: Predictor | PipelinePredictor,
        make_lane: Callable[[Scheduler, int], Lane],
        *,
        lockstep: bool,
        async_scheduling: bool,
        rank: int,
    ) -> None:
        size = len(predictor.ranks) if isinstance(predictor, PipelinePredictor) else 1
        lanes = [
            make_lane(scheduler, number // size) for number, scheduler in enumerate(schedulers)
        ]
        self.lanes = lanes
        groups = [lanes[first : first + size] for first in range(0, len(lanes), size)]
        self.all: list[LaneEngine] = []
        if isinstance(predictor, PipelinePredictor):
            together = [groups] if lockstep else [[group] for group in groups]
            self.all = [
                PipelineEngine(env, each, predictor, rank + number)
                for number, each in enumerate(together)
            ]
            return
        groups = [lanes] if lockstep else groups
        for number, group in enumerate(groups):
            ahead = PlanAhead(group[0], predictor) if async_scheduling else None
            self.all.append(Engine(env, group, predictor, rank + number, ahead))

    def add_request(self, sequence: SequenceState) -> None:
        """Queue a sequence at an engine, where it stays."""
        least_loaded(self.all).add_request(sequence)

    def next_lane(self) -> Lane:
        """Return the lane that the next request would get."""
        return least_loaded(self.all).next_lane()


def lane_schedulers(scheduler: Scheduler, num_engines: int, num_lanes: int) -> list[Scheduler]:
    """Return a scheduler for every lane, engine by engine; a single lane keeps the given one.

    The lanes of an engine share `max_num_seqs` as evenly as they can, the first ones one more.
    Raises ScenarioError when it is not enough for all of them.
    """
    if num_engines == num_lanes == 1:
        return [scheduler]
    share, rest = divmod(scheduler.max_num_seqs, num_lanes)
    if not share:
        raise ScenarioError(
            f"max_num_seqs must be >= pipeline_parallel_size ({num_lanes}), "
            f"got {scheduler.max_num_seqs}; every lane of the pipeline runs at least one"
        )
    schedulers = []
    for lane in list(range(num_lanes)) * num_engines:
        schedulers.append(deepcopy(scheduler))
        schedulers[-1].max_num_seqs = share + (lane < rest)
    return schedulers
