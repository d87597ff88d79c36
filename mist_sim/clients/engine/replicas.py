"""The engines behind one client: how many there are, what each has, and who gets a request."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from mist_sim.clients.engine.lane import Lane
from mist_sim.clients.engine.lockstep import LockstepEngine, least_loaded
from mist_sim.clients.engine.loop import Engine
from mist_sim.clients.engine.pipelined import PipelineEngine
from mist_sim.clients.engine.planning_ahead import AsyncEngine
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

    shares: the sequences that each lane may run at once, engine by engine. make_lane: makes one of
    such a share for an engine, which is numbered from 0.
    lockstep: whether all lanes step together. async_scheduling: whether each plans ahead.
    """

    def __init__(
        self,
        env: Environment,
        shares: Sequence[int],
        predictor: Predictor | PipelinePredictor,
        make_lane: Callable[[int, int], Lane],
        *,
        lockstep: bool,
        async_scheduling: bool,
    ) -> None:
        size = len(predictor.ranks) if isinstance(predictor, PipelinePredictor) else 1
        lanes = [make_lane(share, number // size) for number, share in enumerate(shares)]
        self._engines: list[AnyEngine]
        if isinstance(predictor, PipelinePredictor):
            groups = [lanes[first : first + size] for first in range(0, len(lanes), size)]
            together = [groups] if lockstep else [[group] for group in groups]
            self._engines = [PipelineEngine(env, each, predictor) for each in together]
        elif lockstep:
            self._engines = [LockstepEngine(env, lanes, predictor)]
        else:
            kind = AsyncEngine if async_scheduling else Engine
            self._engines = [kind(env, lane, predictor) for lane in lanes]
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


def lane_shares(max_num_seqs: int, num_engines: int, num_lanes: int) -> list[int]:
    """Return the sequences that each lane may run at once, engine by engine.

    The lanes of an engine share its `max_num_seqs` as evenly as they can, the first ones one more.
    Raises ScenarioError when it is not enough for all of them.
    """
    share, rest = divmod(max_num_seqs, num_lanes)
    if not share:
        raise ScenarioError(
            f"max_num_seqs must be >= pipeline_parallel_size ({num_lanes}), "
            f"got {max_num_seqs}; every lane of the pipeline runs at least one"
        )
    return [share + (lane < rest) for lane in range(num_lanes)] * num_engines
