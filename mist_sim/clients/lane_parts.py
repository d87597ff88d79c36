"""Makes the parts that the lanes of a client have, each its own."""

from __future__ import annotations

from dataclasses import dataclass, field

from mist_sim.clients.draft_paths import DraftPaths, Speculation
from mist_sim.clients.engine_config import EngineConfig
from mist_sim.clients.engine_rules import EngineRules
from mist_sim.clients.scheduling import Scheduler, WaitingQueue
from mist_sim.clients.scheduling.adapter_slots import AdapterQueue, AdapterSlots
from mist_sim.clients.scheduling.cadence import Cadence, StepCount, cadence_of
from mist_sim.clients.scheduling.image_times import ImageTimes
from mist_sim.hardware.predictors.tower_times import TowerTimes
from mist_sim.models.adapters import AdapterMoves
from mist_sim.rng import Streams


@dataclass(frozen=True, kw_only=True)
class LaneParts:
    """Makes parts for the lanes of a client in one layout.

    config: options of its engines; the fields after it may differ from them in this layout.
    tower: encodes images; None: it serves none.
    """

    config: EngineConfig
    scheduler: Scheduler
    rules: EngineRules
    lockstep: bool
    streams: Streams
    adapter_moves: AdapterMoves
    tower: TowerTimes | None
    _step_count: StepCount = field(default_factory=StepCount)

    def queue(self) -> WaitingQueue:
        """Return the queue of a new lane; one with adapters is to watch it."""
        if self.config.lora is not None:
            return AdapterQueue(self.config.lora.max_loras)
        return self.scheduler.new_queue()

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
        )
