"""A client that goes from one layout to another between prompts and answers."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, ClassVar

from simpy.events import Event

from mist_sim.clients.engine.lane import Lane
from mist_sim.clients.engine.replicas import Engines
from mist_sim.clients.kv_cache import SerialLink, SwapSpace
from mist_sim.clients.kv_cache.moves.lower_memory import Room
from mist_sim.clients.layouts import EngineLayout
from mist_sim.clients.layouts.laid_out import Transition
from mist_sim.clients.llm import LlmClient
from mist_sim.clients.resharding.buffer import HostBuffer
from mist_sim.clients.resharding.due import DuePrompts
from mist_sim.clients.resharding.phases import PHASES, Phases, StageName
from mist_sim.clients.resharding.prefetch import Prefetched
from mist_sim.clients.resharding.resharding_lane import StagedLane
from mist_sim.clients.resharding.scheduler import StagedScheduler
from mist_sim.clients.resharding_options import Resharding
from mist_sim.clients.scheduling import LaneState
from mist_sim.clients.sequence_state import SequenceState
from mist_sim.clients.stores.base import Stores
from mist_sim.core.recorder import Recorder
from mist_sim.environment import CHANGE, Environment


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardSizes:
    """Sizes moved by transitions and the buffer, for given GPUs and model.

    prefill_weights, decode_weights: bytes of weights on the fullest GPU, by layout.
    block_bytes: of a KV block over all GPUs of an engine. gpus: GPUs per engine.
    host_memory: bytes of the buffer, over all GPUs. host_bandwidth: bytes/s of a GPU's link.
    """

    prefill_weights: float
    decode_weights: float
    block_bytes: float
    gpus: int
    host_memory: float
    host_bandwidth: float


class ReshardingClient(LlmClient):
    """An engine that computes prompts in one layout and answers in another (Seesaw).

    It begins in the layout for answers, given by its own options, and changes to the other one when
    the first prompt arrives. A transition loads the weights of the next layout from host memory,
    over all GPUs' links at once, and takes answers that stay on the GPUs out and in again.
    """

    lane_type: ClassVar[type[Lane]] = StagedLane
    shares_swaps: ClassVar[bool] = True

    def __init__(
        self,
        *args: Any,
        options: Resharding,
        sizes: ShardSizes,
        prefill: EngineLayout,
        **kwargs: Any,
    ) -> None:
        """options: the policy and the buffer. sizes: sizes of moves.

        prefill: the layout for prompts, from a client made with it. Other parameters: as in
        `LlmClient`.
        """
        super().__init__(*args, **kwargs)
        self.resharding = options
        self.sizes = sizes
        scheduler = self.scheduler
        self.scheduler = StagedScheduler(
            max_num_seqs=scheduler.max_num_seqs,
            order=scheduler.order,
            max_num_batched_tokens=getattr(scheduler, "max_num_batched_tokens", None),
            preemption="async_swap" if options.buffers else "recompute",
        )
        space = self._space()
        self.memory = replace(self.memory, swap_space=space)
        self._decode_layout = self.layout
        self._prefill_layout = replace(prefill, memory=replace(prefill.memory, swap_space=space))
        config = self.config
        own = config.tensor_parallel_size, config.pipeline_parallel_size
        other = options.tensor_parallel_size, options.pipeline_parallel_size
        self._is_equal = own == other
        # other policies look at all lanes, so that all have to change together
        self._is_free = self._is_equal and options.policy == "prefill_prioritised"
        self._stage: StageName = "decode"

    @property
    def needs_general_loop(self) -> str:
        """Resharding: it always takes the general loop."""
        return "resharding"

    def _space(self) -> SwapSpace | None:
        """Return the buffer as swap space of the lanes; blocks are those of all engines."""
        if not self.resharding.buffers:
            return None
        num_blocks = int(self.sizes.host_memory // self.sizes.block_bytes)
        return SwapSpace(num_blocks, self._seconds_per_block)

    @property
    def _seconds_per_block(self) -> float:
        """Seconds of a block over the links of an engine's GPUs."""
        reached = self.sizes.host_bandwidth * self.resharding.kv_layout_efficiency
        return self.sizes.block_bytes / (self.sizes.gpus * reached)

    def start(self, env: Environment, client_id: int, recorder: Recorder) -> None:
        """Start with no phase, and with the links to host memory free."""
        self.phases: Phases | None = None
        self._links: dict[tuple[int, str], SerialLink] = {}
        self._shared_at: dict[SequenceState, float] = {}
        super().start(env, client_id, recorder)

    # --- lanes and the buffer -------------------------------------------------------------

    def _make_engines(self) -> Engines:
        engines = super()._make_engines()
        phases = self.phases = self.phases or self._new_phases()
        phases.begin(self._stage, [lane.state for lane in engines.lanes])
        return engines

    def _new_phases(self) -> Phases:
        space = self.memory.swap_space
        room = Room(space.num_blocks) if space else None
        sizes = [each.memory.num_tokens for each in (self._prefill_layout, self._decode_layout)]
        if space:
            sizes.append(space.num_blocks * self.memory.block_size)
        return Phases(
            self.resharding,
            self._stage,
            room,
            self._go_to,
            self._wake_lanes,
            is_free=self._is_free,
            most_tokens=min(sizes),
            due=self._due_prompts(),
            prefetched=self._prefetched(),
        )

    def _due_prompts(self) -> DuePrompts | None:
        limit = self.resharding.ttft_limit
        if limit is None:
            return None
        early, late = (share * limit for share in self.resharding.shares)
        return DuePrompts(lambda: self.env.now, early, late)

    def _prefetched(self) -> Prefetched | None:
        if not self.resharding.buffers or self.resharding.prefetch is False:
            return None
        layout = self._decode_layout
        return Prefetched(layout.num_lanes, layout.memory.num_blocks)

    def _lane(self, max_num_seqs: int, engine: int) -> Lane:
        lane = super()._lane(max_num_seqs, engine)
        if self.phases is None:
            self._stage = "decode" if self._layout_number == 0 else self._stage
            self.phases = self._new_phases()
        self._share(lane.state, self.phases)
        return lane

    def _share(self, state: LaneState, phases: Phases) -> None:
        """Let a lane have the stage and the buffer of the client."""
        state.notes[PHASES] = phases
        if phases.room is not None:
            state.swaps.room = phases.room

    def _stores(self, engine: int) -> Stores:
        stores = super()._stores(engine)
        if not self.resharding.buffers:
            return stores
        copy_rate = self.resharding.host_copy_bandwidth
        sizes = self.sizes
        ways = (
            self._links.setdefault((engine, way), SerialLink()) for way in ("out", "back", "behind")
        )
        buffer = HostBuffer(
            self.env,
            *ways,
            seconds=self._seconds_per_block,
            seconds_behind=sizes.block_bytes / (sizes.gpus * copy_rate) if copy_rate else 0.0,
            block_bytes=sizes.block_bytes,
            shared_at=self._shared_at,
        )
        return replace(stores, swap=buffer)

    def _wake_lanes(self) -> None:
        """Let sleeping lanes look for prompts again, after the present instant."""
        self.env.at(self.env.now, CHANGE).callbacks.append(self._wake_now)

    def _wake_now(self, _: Event) -> None:
        if self.phases is not None:
            for lane in self._engines.lanes:
                if self.phases.may_admit(lane.state):
                    lane.engine.notice(lane)

    # --- transitions ----------------------------------------------------------------------

    def _go_to(self, stage: StageName) -> None:
        """Change to the layout of a stage."""
        self._next_stage: StageName = stage
        layout = self._prefill_layout if stage == "prefill" else self._decode_layout
        weights = self.sizes.prefill_weights if stage == "prefill" else self.sizes.decode_weights
        self.change_layout(layout, weights / self.sizes.host_bandwidth)

    def _change_when_still(self) -> None:
        """Let answers go to the buffer first, where they do not stay on the GPUs."""
        if self.is_changing and self._engines.are_still and self._sets_aside:
            for lane in self._engines.lanes:
                if isinstance(lane, StagedLane):
                    lane.set_aside()
        num_layouts = len(self.layouts)
        super()._change_when_still()
        if len(self.layouts) > num_layouts and self.phases is not None:
            self.phases.carried()

    @property
    def _sets_aside(self) -> bool:
        return self.resharding.buffers and (self.resharding.running or "out") == "out"

    def _transition_time(self, asked: Transition) -> float:
        """Return the seconds for weights, and for entries on the GPUs: out to the host and back.

        Between equal layouts nothing moves; nor do entries prefetched for the layout of answers.
        """
        if self._is_equal:
            return 0.0
        states = [lane.state for lane in self._engines.lanes]
        num_blocks = sum(each.pool.num_blocks - each.pool.num_free for each in states)
        if self._next_stage == "decode":
            prefetched = ((each.pool, moved) for each in states for moved in each.coming.moved)
            num_blocks -= sum(pool.blocks_for(moved.num_brought) for pool, moved in prefetched)
        return asked.seconds + 2 * num_blocks * self._seconds_per_block / self.data_parallel_size

    def _enter(self, asked: Transition, ready: float) -> None:
        self._stage = self._next_stage
        super()._enter(asked, ready)
