"""Makes the lanes of a client in the general loop, and parts that those of the core have, too."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from mist_sim.clients.decode.speculative_clock import Speculation
from mist_sim.clients.draft_paths import DraftPaths
from mist_sim.clients.engine.flowing_lane import FlowingLane
from mist_sim.clients.engine.lane import Lane
from mist_sim.clients.engine.step_records import StepRecords
from mist_sim.clients.engine_config import EngineConfig
from mist_sim.clients.engine_rules import EngineRules
from mist_sim.clients.kv_cache.lane_memory import LaneMemory
from mist_sim.clients.scheduling import LaneState, Scheduler
from mist_sim.clients.scheduling.adapter_slots import AdapterQueue, AdapterSlots, in_use_by
from mist_sim.clients.scheduling.cadence import Cadence, StepCount, cadence_of
from mist_sim.clients.scheduling.flowing_answers import flowing_of
from mist_sim.clients.scheduling.image_times import ImageTimes
from mist_sim.clients.scheduling.order import EntriesFirst, WaitingQueue
from mist_sim.clients.shared_parts import SharedParts
from mist_sim.clients.step_track import TokenCount
from mist_sim.core.flowing import FlowRule
from mist_sim.core.recorder import Recorder
from mist_sim.environment import Environment
from mist_sim.hardware.predictors.ranks import PipelinePredictor
from mist_sim.hardware.predictors.tower_times import TowerTimes
from mist_sim.models.adapters import AdapterMoves
from mist_sim.rng import Streams


@dataclass(frozen=True, kw_only=True)
class LaneMaker:
    """Makes lanes of a client in one layout, with what they have in common.

    config: options of its engines; the fields after it may differ from them in this layout.
    track: the recorder, the client, and the number of the layout, for the tracks of steps.
    lane_type: of lanes without flowing answers.
    flow: rule by which answers leave the client; None: they stay. has_taker: as in `Client`.
    shared: parts that it shares with other clients. tower: encodes images; None: it serves none.
    """

    env: Environment
    config: EngineConfig
    scheduler: Scheduler
    predictor: PipelinePredictor
    memory: LaneMemory
    rules: EngineRules
    lockstep: bool
    async_scheduling: bool
    track: tuple[Recorder, int, int]
    lane_type: type[Lane]
    streams: Streams
    flow: FlowRule | None
    has_taker: Callable[[], bool] | None
    shared: SharedParts | None
    adapter_moves: AdapterMoves
    tower: TowerTimes | None
    streamed: TokenCount
    _step_count: StepCount = field(default_factory=StepCount)

    def lane(self, max_num_seqs: int, **options: Any) -> Lane:
        """Return a new, empty lane. options: those of `Lane` that differ from lane to lane."""
        state = self.state(max_num_seqs)
        recorder, client_id, layout = self.track
        inside = self.predictor.traits.steps_inside
        parts = self.env, self.scheduler, state
        options["records"] = StepRecords(recorder, client_id, inside, layout, self.streamed)
        if self.flow is not None:
            flow = flowing_of(self.flow)
            return FlowingLane(*parts, flow=flow, has_taker=self.has_taker, **options)
        return self.lane_type(*parts, **options)

    def state(self, max_num_seqs: int) -> LaneState:
        """Return the state of a new lane."""
        memory, scheduler, queue = self.memory, self.scheduler, self.queue()
        state = LaneState(
            memory.manager(self.shared.tiers if self.shared else None),
            queue,
            max_num_seqs=max_num_seqs,
            needs_longest_context=self.predictor.traits.needs_longest_context,
            reads_again=self.predictor.traits.reads_again,
            by_piece=scheduler.by_piece,
            rules=self.rules,
            speculation=self.speculation(),
            swap_space=memory.swap_space,
            swaps_overlap=scheduler.swaps_overlap,
            plans_ahead=self.async_scheduling,
            cadence=self.cadence(),
            tells_joins=self.flow is not None,
        )
        if isinstance(queue, AdapterQueue):
            state.adapters = self.adapters()
            queue.watch(partial(in_use_by, state))
        state.images = self.images()
        return state

    def queue(self) -> WaitingQueue:
        """Return the queue of a new lane; one with adapters is to watch it."""
        if self.config.lora is not None:
            return AdapterQueue(self.config.lora.max_loras)
        return EntriesFirst() if self.flow is not None else self.scheduler.new_queue()

    def adapters(self) -> AdapterSlots | None:
        """Return the adapters of a new lane; None: it serves none."""
        lora = self.config.lora
        return None if lora is None else AdapterSlots(lora, self.adapter_moves)

    def images(self) -> ImageTimes | None:
        """Return what adds the times of images to its steps; None: it serves none."""
        return None if self.tower is None else ImageTimes(self.tower)

    def cadence(self) -> Cadence | None:
        """Return when the steps of a lane may carry prompts; None where they always may."""
        if self.lockstep:
            return cadence_of(self.scheduler, self._step_count)
        return cadence_of(self.scheduler) if self.rules.local_cadence else None

    def speculation(self) -> Speculation | None:
        """Return how a new lane drafts; None: it does not."""
        drafting = self.config.speculative_config
        if drafting is None:
            return None
        return Speculation(
            drafting.num_speculative_tokens,
            drafting.num_lookahead_tokens,
            self.config.max_model_len,
            DraftPaths(self.streams, drafting.survival).draw,
            plans_ahead=self.async_scheduling,
        )
