"""What the lanes of a client have in common, and the parts that each makes of it for itself."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from mist_sim.clients.draft_paths import DraftPaths, Speculation
from mist_sim.clients.scheduling import WaitingQueue, WholePromptScheduler
from mist_sim.clients.scheduling.adapter_slots import AdapterQueue, AdapterSlots
from mist_sim.clients.scheduling.cadence import Cadence, StepCount, cadence_of
from mist_sim.clients.scheduling.image_times import ImageTimes

if TYPE_CHECKING:
    from mist_sim.clients.engine.lanes import QueueForm
    from mist_sim.clients.engine_rules import EngineRules
    from mist_sim.clients.kv_cache.lane_memory import LaneMemory
    from mist_sim.clients.kv_cache.tiers import SharedTiers
    from mist_sim.clients.options.engine_config import EngineConfig
    from mist_sim.clients.options.overload import Gate
    from mist_sim.core.batch import StepBatch
    from mist_sim.core.flowing import FlowRule
    from mist_sim.core.recorder import Recorder
    from mist_sim.core.visit import Visit
    from mist_sim.hardware.predictors.ranks import PipelinePredictor
    from mist_sim.hardware.predictors.tower_times import TowerTimes
    from mist_sim.models.adapters import AdapterMoves
    from mist_sim.rng import Streams

Leave = Callable[["Visit", str | None], None]
"""Takes a visit that is over, and why it was rejected (None: it was served)."""

PROMPTS_COME = {"beside decodes": 0, "apart": 1, "when idle": 2}
"""When whole prompts come in, as a scheduler and as the core says it (`lane.PROMPTS`)."""


class Replicas:
    """The tokens of a step in each lane of a client whose lanes share their experts."""

    def __init__(self) -> None:
        self._tokens: tuple[int, ...] = ()

    def share(self, tokens: tuple[int, ...]) -> None:
        """Note the tokens of the present step."""
        self._tokens = tokens

    def tell(self, batch: StepBatch) -> None:
        """Tell a batch of the others."""
        batch.replicas = self._tokens


@dataclass(frozen=True, kw_only=True)
class LaneSetup:
    """The lanes of a client in one layout.

    config, rules: options of its engines, and the rules of their version; those of scheduler,
        predictor, memory and so on may differ in this layout. form: how batches of a pipeline are
        queued; None: there is no queue. replicas: of lanes in lockstep; None: they are not.
    recorder, client_id, layout: where the steps are written. leave: takes visits that end, with the
        reason of a rejection. gate: hears of prompts that are computed; None: need not.
    flow: by which answers leave for other clients, None: they stay. has_taker: tells whether
        another client is up that would go on with them; None: there always is one.
    block_bytes: of a block over all GPUs of an engine; NaN: unknown. adapter_moves: until an
        adapter is there. tower: encodes images; None: none. shared: contents of shared tiers.
    """

    config: EngineConfig
    rules: EngineRules
    scheduler: Any  # a `ChunkedScheduler` or a `WholePromptScheduler`
    plans_ahead: bool
    predictor: PipelinePredictor
    form: QueueForm | None
    memory: LaneMemory
    replicas: Replicas | None
    recorder: Recorder
    client_id: int
    layout: int
    leave: Leave
    gate: Gate | None
    flow: FlowRule | None
    has_taker: Callable[[], bool] | None
    block_bytes: float
    streams: Streams
    adapter_moves: AdapterMoves
    tower: TowerTimes | None
    shared: SharedTiers
    _step_count: StepCount = field(default_factory=StepCount)

    @property
    def prompts_come(self) -> int | None:
        """When whole prompts come, as the core says it; None: they are cut."""
        whole = isinstance(self.scheduler, WholePromptScheduler)
        return PROMPTS_COME[self.scheduler.prompts_come] if whole else None

    def queue(self) -> WaitingQueue:
        """Return the queue of a new lane; one with adapters is to watch it."""
        if self.config.lora is not None:
            return AdapterQueue(self.config.lora.max_loras)
        queue: WaitingQueue = self.scheduler.new_queue()
        return queue

    def adapters(self) -> AdapterSlots | None:
        """Return the adapters of a new lane; None: it serves none."""
        lora = self.config.lora
        return None if lora is None else AdapterSlots(lora, self.adapter_moves)

    def images(self) -> ImageTimes | None:
        """Return what adds the times of images to its steps; None: it serves none."""
        return None if self.tower is None else ImageTimes(self.tower)

    def cadence(self) -> Cadence | None:
        """Return when the steps of a lane may carry prompts; None where they always may."""
        if self.replicas is not None:
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
        )
