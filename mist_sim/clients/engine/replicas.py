"""The engines behind one client: how many there are, and which lanes step together."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial

from mist_sim.clients.engine.flowing_lane import FlowingLane
from mist_sim.clients.engine.kv_state import EngineKvState
from mist_sim.clients.engine.lane import Lane, LaneEngine
from mist_sim.clients.engine.least_loaded import least_loaded
from mist_sim.clients.engine.lockstep import LockstepEngine
from mist_sim.clients.engine.loop import Engine
from mist_sim.clients.engine.pipelined import PipelineEngine
from mist_sim.clients.engine.plan_ahead import PlanAhead
from mist_sim.clients.engine.still import StillEngine
from mist_sim.clients.scheduling import Scheduler
from mist_sim.clients.sequence_state import SequenceState
from mist_sim.core.flowing import FlowRule
from mist_sim.core.visit import Visit
from mist_sim.environment import Environment, engine_phases
from mist_sim.errors import ScenarioError
from mist_sim.hardware.predictors.base import Predictor
from mist_sim.hardware.predictors.ranks import PipelinePredictor


class Engines:
    """All engines of a client; a request goes to the least loaded one and stays there.

    shares: the sequences that each lane may run at once, engine by engine. make_lane: makes a lane
    with such a share for an engine; engines are numbered from 0.
    lockstep: whether all lanes step together. async_scheduling: whether each plans ahead.
    num_engines: how many there are; each has as many lanes as its part of the shares.
    client_id: orders them among those of other clients whose steps end at the same time.
    """

    def __init__(
        self,
        env: Environment,
        shares: Sequence[int],
        predictor: PipelinePredictor,
        make_lane: Callable[[int, int], Lane],
        *,
        lockstep: bool,
        async_scheduling: bool,
        client_id: int,
        num_engines: int,
        lines: bool = False,
    ) -> None:
        first, size = predictor.ranks[0], len(shares) // num_engines
        self.lanes = lanes = [make_lane(share, n // size) for n, share in enumerate(shares)]
        groups = [lanes[start : start + size] for start in range(0, len(lanes), size)]
        together = [groups] if lockstep else [[group] for group in groups]
        self._lane = lanes[0] if len(lanes) == 1 else None
        self.all: list[LaneEngine] = []
        self._members: list[list[Lane]] = []  # of each engine of `all`
        for number, several in enumerate(together):
            phases = engine_phases(client_id, number)
            members = [lane for group in several for lane in group]
            self._members.append(members)
            if size > 1:
                self.all.append(PipelineEngine(env, several, predictor, phases))
            else:
                if async_scheduling:
                    for lane in members:
                        PlanAhead(lane, first)
                self.all.append(make_engine(env, members, first, phases, lines=lines))

    def add_request(self, sequence: SequenceState) -> None:
        """Queue a sequence at an engine, where it stays."""
        engine = least_loaded(self.all) if self._lane is None else self.all[0]
        engine.add_request(sequence)

    def num_unwritten(self) -> int:
        """Return the output tokens of steps that have ended and are not written down."""
        number = 0
        for lane in self.lanes:
            number += lane.engine.num_unwritten(lane)
        return number

    def turn(self, scheduler: Scheduler, flow: FlowRule | None) -> None:
        """Use another scheduler and another rule for answers that flow, after the step in flight.

        flow: None: keep the rule. All lanes are those of a client whose answers flow.
        """
        for lane in self.lanes:
            if isinstance(lane, FlowingLane):
                lane.turn(scheduler, flow)
        for engine in self.all:
            if isinstance(engine, Engine):
                engine.plan_anew()

    def next_lane(self) -> Lane:
        """Return the lane that the next request would get."""
        return self._lane or least_loaded(self.all).next_lane()

    def kv_state(
        self, env: Environment, block_size: int, stays: Mapping[Visit, SequenceState]
    ) -> EngineKvState:
        """Return what reports on their memory."""
        return EngineKvState(env, self, block_size, stays)

    # --- before and after a change of layout ----------------------------------------------

    def stop(self, look: Callable[[], None]) -> None:
        """Let every engine end with its step in flight, and plan no more.

        look: called whenever an engine has ended (`are_still` tells whether all have), and when
        something comes to its lanes or leaves them afterwards.
        """
        for number, engine in enumerate(list(self.all)):
            if isinstance(engine, Engine | PipelineEngine):
                engine.stop(partial(self._is_still, number, look))

    def _is_still(self, number: int, look: Callable[[], None]) -> None:
        self.all[number] = StillEngine(self._members[number], look)
        look()

    @property
    def are_still(self) -> bool:
        """Whether all have ended after `stop`."""
        return all(isinstance(engine, StillEngine) for engine in self.all)

    def sleep_until(self, time: float) -> None:
        """Plan nothing before a time in seconds; call it when all initial work is queued."""
        for engine in self.all:
            if isinstance(engine, Engine | PipelineEngine):
                engine.sleep_until(time)


def make_engine(
    env: Environment,
    lanes: Sequence[Lane],
    predictor: Predictor,
    phases: tuple[int, int],
    *,
    lines: bool = False,
) -> Engine:
    """Return an engine of lanes that step together.

    lines: time steps of decodes alone by a line (see `Engine.uses_lines`).
    """
    if len(lanes) > 1:
        return LockstepEngine(env, lanes, predictor, phases)
    engine = Engine(env, lanes, predictor, phases)
    engine.uses_lines = lines
    return engine


def lane_shares(max_num_seqs: int, num_engines: int, num_lanes: int) -> list[int]:
    """Return the sequences that each lane may run at once, engine by engine.

    The lanes of an engine share its `max_num_seqs` evenly; the first ones take the remainder.
    Raises ScenarioError if it is less than the number of lanes.
    """
    share, rest = divmod(max_num_seqs, num_lanes)
    if not share:
        raise ScenarioError(
            f"max_num_seqs must be >= pipeline_parallel_size ({num_lanes}), "
            f"got {max_num_seqs}; every lane of the pipeline runs at least one"
        )
    return [share + (lane < rest) for lane in range(num_lanes)] * num_engines
