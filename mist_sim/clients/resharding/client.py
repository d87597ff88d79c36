"""A client that prefills in one layout of its model and decodes in another (Seesaw).

Su et al., "Seesaw: High-throughput LLM Inference via Model Re-sharding" (2025):
`docs/background/seesaw.md`. Which stage its lanes compute says `clients/resharding/staging.py`.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, ClassVar

from simpy.events import Event

from mist_sim.clients.engine.stepped import SteppedEngines, Stepper
from mist_sim.clients.kv_cache import SerialLink, SwapSpace
from mist_sim.clients.kv_cache.moves import HOST, KvMove, Room
from mist_sim.clients.layouts import EngineLayout, Transition
from mist_sim.clients.llm import LlmClient
from mist_sim.clients.options.resharding_options import Resharding
from mist_sim.clients.resharding.staging import DuePrompts, Phases, Prefetched, StageName
from mist_sim.clients.scheduling import ContinuousScheduler
from mist_sim.clients.sequence_state import SequenceState
from mist_sim.clients.stores import MemoryBelow, Stores
from mist_sim.core.recorder import Recorder
from mist_sim.environment import CHANGE, MOVE, Environment

__all__ = ["ReshardingClient"]


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
        self._most_of_a_step: int | None = getattr(scheduler, "max_num_batched_tokens", None)
        self.scheduler = ContinuousScheduler(
            max_num_seqs=scheduler.max_num_seqs,
            order=scheduler.order,
            max_num_batched_tokens=self._most_of_a_step,
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
        self._has_stages = not self._is_equal or options.policy != "prefill_prioritised"
        self._stage: StageName = "decode"

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
        self._shared_at: dict[SequenceState, float] = {}  # from when entries can be read back
        super().start(env, client_id, recorder)

    @property
    def _most_tokens(self) -> int:
        """Tokens of the longest request that lanes of both layouts and the buffer can hold."""
        sizes = [each.memory.num_tokens for each in (self._prefill_layout, self._decode_layout)]
        if space := self.memory.swap_space:
            sizes.append(space.num_blocks * self.memory.block_size)
        return min(sizes)

    def _refusal(self, sequence: SequenceState) -> str | None:
        """Return why a sequence can never be served in both layouts, or None."""
        most = self._most_tokens
        if sequence.num_tokens > most:
            return (
                f"{sequence.num_tokens} tokens exceed the {most} that lanes of both layouts and "
                "the host's buffer can hold"
            )
        return super()._refusal(sequence)

    def _surely_fit(self) -> float:
        """Return how many tokens a sequence may have that fits in both layouts."""
        return min(super()._surely_fit(), self._most_tokens)

    # --- lanes and the buffer -------------------------------------------------------------

    def _make_engines(self) -> SteppedEngines:
        engines = super()._make_engines()
        if self._has_stages:
            if self.phases is None:
                self._stage = "decode" if self._layout_number == 0 else self._stage
                self.phases = self._new_phases()
            self.phases.begin(self._stage, engines.lanes)
        return engines

    def _new_phases(self) -> Phases:
        space = self.memory.swap_space
        return Phases(
            self.resharding,
            Room(space.num_blocks) if space else None,
            self._go_to,
            self._wake_lanes,
            due=self._due_prompts(),
            prefetched=self._prefetched(),
        )

    def _due_prompts(self) -> DuePrompts | None:
        limit = self.resharding.ttft_limit
        if limit is None:
            return None
        early, late = (share * limit for share in self.resharding.shares)
        return DuePrompts(Stepper.of(self.env).now, early, late)

    def _prefetched(self) -> Prefetched | None:
        if not self.resharding.buffers or self.resharding.prefetch is False:
            return None
        layout = self._decode_layout
        return Prefetched(layout.num_lanes, layout.memory.num_blocks, self._most_of_a_step)

    def _stores(self, engine: int) -> Stores:
        stores = super()._stores(engine)
        if not self.resharding.buffers:
            return stores
        return replace(stores, swap=self._buffer(engine))

    def _buffer(self, engine: int) -> MemoryBelow:
        """Return the host's memory below an engine (Seesaw 4.2, figure 7).

        Every GPU copies its part over its own link, all at once, so an engine's links act as one;
        copies follow one another in each direction. Arrived entries lie in pinned memory; the host
        then copies them, one after the other, to memory shared by the processes of all GPUs, from
        where they can be read back, in a form that both layouts can read.
        """
        env, sizes, copy_rate = self.env, self.sizes, self.resharding.host_copy_bandwidth
        seconds, shared_at = self._seconds_per_block, self._shared_at
        behind = sizes.block_bytes / (sizes.gpus * copy_rate) if copy_rate else 0.0
        links = [
            self._links.setdefault((engine, way), SerialLink()) for way in ("out", "back", "behind")
        ]

        def out(move: KvMove) -> tuple[Event, float]:
            end = links[0].send(move.num_blocks * seconds, env.now)
            if behind:
                shared_at[move.sequence] = links[2].send(move.num_blocks * behind, end)
            return env.at(end, MOVE), 0.0

        def back(move: KvMove) -> tuple[Event, float]:
            begins = max(env.now, shared_at.pop(move.sequence, 0.0))
            return env.at(links[1].send(move.num_blocks * seconds, begins), MOVE), 0.0

        return MemoryBelow(HOST, sizes.block_bytes, back, out)

    def _wake_lanes(self) -> None:
        """Let sleeping lanes look for prompts again, after the present instant."""
        self.env.at(self.env.now, CHANGE).callbacks.append(self._wake_now)

    def _wake_now(self, _: Event) -> None:
        if self.phases is not None:
            self.phases.wake_lanes()

    # --- transitions ----------------------------------------------------------------------

    def _go_to(self, stage: StageName) -> None:
        """Change to the layout of a stage."""
        self._next_stage: StageName = stage
        layout = self._prefill_layout if stage == "prefill" else self._decode_layout
        weights = self.sizes.prefill_weights if stage == "prefill" else self.sizes.decode_weights
        self.change_layout(layout, weights / self.sizes.host_bandwidth)

    def _change_when_still(self) -> None:
        """Let answers go to the buffer first, where they do not stay on the GPUs."""
        if self.is_changing and self._engines.are_still and self._sets_aside and self.phases:
            self.phases.set_all_aside()
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
        cores = [lane.core for lane in self.lanes]
        num_blocks = sum(int(each.num_in_use()) for each in cores)
        if self._next_stage == "decode":
            num_blocks -= sum(int(each.to_come(slot)[0]) for each in cores for slot in each.moved)
        return asked.seconds + 2 * num_blocks * self._seconds_per_block / self.data_parallel_size

    def _enter(self, asked: Transition, ready: float) -> None:
        self._stage = self._next_stage
        super()._enter(asked, ready)
