"""The engines behind one client: how many there are, what each has, and who gets a request."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from copy import deepcopy
from typing import Protocol

from mist_sim.clients.engine.lane import Lane
from mist_sim.clients.engine.lockstep import LockstepEngine, least_loaded
from mist_sim.clients.engine.loop import Engine
from mist_sim.clients.engine.pipelined import PipelineEngine
from mist_sim.clients.engine.planning_ahead import AsyncEngine
from mist_sim.clients.scheduling import Scheduler
from mist_sim.clients.sequence_state import SequenceState
from mist_sim.environment import Environment
from mist_sim.errors import ScenarioError
from mist_sim.hardware.predictors.base import Predictor
from mist_sim.hardware.predictors.ranks import PipelinePredictor


class AnyEngine(Protocol):
    """What a client needs of an engine: requests in and out, and to see how busy it is."""

    @property
    def num_waiting(self) -> int: ...
    @property
    def num_running(self) -> int: ...
    def add_request(self, sequence: SequenceState) -> Lane: ...
    def abort(self, sequence: SequenceState, lane: Lane) -> None: ...


class Engines:
    """All engines of a client; a request goes to the least loaded one and stays there.

    schedulers: one a lane, engine by engine. make_lane: gives a lane of an engine, which is
    numbered from 0, its memory.
    lockstep: whether all lanes step together. async_scheduling: whether each plans ahead.
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
    ) -> None:
        size = len(predictor.ranks) if isinstance(predictor, PipelinePredictor) else 1
        lanes = [
            make_lane(scheduler, number // size) for number, scheduler in enumerate(schedulers)
        ]
        self._engines: list[AnyEngine]
        if isinstance(predictor, PipelinePredictor):
            groups = [lanes[first : first + size] for first in range(0, len(lanes), size)]
            together = [groups] if lockstep else [[group] for group in groups]
            self._engines = [
                PipelineEngine(env, each, predictor, number) for number, each in enumerate(together)
            ]
        elif lockstep:
            self._engines = [LockstepEngine(env, lanes, predictor)]
        else:
            kind = AsyncEngine if async_scheduling else Engine
            self._engines = [
                kind(env, lane, predictor, number) for number, lane in enumerate(lanes)
            ]
        lanes_each = len(lanes) // len(self._engines)
        self._engine_of = {
            lane: self._engines[number // lanes_each] for number, lane in enumerate(lanes)
        }

    def add_request(self, sequence: SequenceState) -> Lane:
        """Queue a sequence at an engine; return the lane in which it stays."""
        return least_loaded(self._engines).add_request(sequence)

    def abort(self, sequence: SequenceState, lane: Lane) -> None:
        """Let a sequence of a lane go, as soon as no step computes it."""
        self._engine_of[lane].abort(sequence, lane)


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
