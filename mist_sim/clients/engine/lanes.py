"""How an engine is divided into lanes: batches in flight, seats, and memory."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from mist_sim.clients.kv_cache.capacity import NULL_BLOCKS
from mist_sim.clients.kv_cache.lane_memory import EngineMemory, LaneMemory
from mist_sim.clients.kv_cache.pages import PageRules, StateRules
from mist_sim.clients.scheduling import ChunkedScheduler
from mist_sim.errors import ScenarioError
from mist_sim.eviction import LRU

if TYPE_CHECKING:
    from mist_sim.clients.engine_rules import EngineRules
    from mist_sim.clients.options.engine_config import EngineConfig


@dataclass(frozen=True, slots=True)
class QueueForm:
    """The queue of batches of a pipeline.

    size: batches in it at most. stagger: if steps are planned ahead, the number of plans from one
    plan of a decode to its next; 0: a decode is planned when its last token has come. fills:
    whether plans that compute nothing fill the queue, and the oldest stays in it before the next
    plan. drains: whether a preempted request waits for all batches that compute it; otherwise it
    waits for those that give it a token, or with stagger for none.

    With stagger 1 the first rank waits for the tokens of the batch before, so batches never
    overlap; otherwise for those of the batch `stagger` plans before, unless all its answers ended.
    With three batches or more it also plans steps behind the end of an answer: it goes on until all
    tokens but one have come.

    Source: `max_concurrent_batches` and `EngineCore.step_with_batch_queue` in
    `vllm/v1/engine/core.py`; `AsyncScheduler` in `vllm/v1/core/sched/async_scheduler.py`.
    """

    size: int
    stagger: int = 0
    fills: bool = False
    drains: bool = False

    @property
    def readmits(self) -> bool:
        """Whether a preempted request may be admitted while its tokens are on their way."""
        return self.stagger > 0 and not self.drains


def queue_form(config: EngineConfig, rules: EngineRules, memory: EngineMemory) -> QueueForm | None:
    """Return how the engines of a client queue batches; None if they have virtual engines."""
    num_ranks, ahead = config.pipeline_parallel_size, bool(config.async_scheduling)
    if num_ranks == 1 or not rules.batch_queue or config.no_batch_queue or memory.cache_tiers:
        return None
    staggers = ahead and rules.staggers_decodes and rules.fills_queue
    stagger = (num_ranks if staggers else 1) if ahead else 0
    return QueueForm(
        num_ranks + staggers, stagger, fills=rules.fills_queue, drains=rules.drains_preempted
    )


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


def lane_memory(
    config: EngineConfig, rules: EngineRules, memory: EngineMemory, form: QueueForm | None
) -> LaneMemory:
    """Divide an engine's memory among its lanes: one for each rank, unless a queue has a form.

    Raises ScenarioError for too few blocks and for parts that do not go together.
    """
    kv_cache, scheduler, drafting = config.kv_cache, config.scheduler, config.speculative_config
    num_lanes = 1 if form else config.pipeline_parallel_size
    if memory.num_gpu_blocks < num_lanes:
        raise ScenarioError(
            f"num_gpu_blocks must be >= pipeline_parallel_size ({num_lanes}), "
            f"got {memory.num_gpu_blocks}; every lane of the pipeline has its own"
        )
    if memory.cache_tiers and memory.kv_groups:
        raise ScenarioError(
            "tiers must be empty for a model with sliding windows or states; that combination is "
            "not simulated"
        )
    if kv_cache.eviction != LRU and (memory.kv_groups or not kv_cache.enable_prefix_caching):
        where = (
            "for a model with sliding windows or states; that combination is not simulated"
            if memory.kv_groups
            else "without enable_prefix_caching, which keeps no blocks"
        )
        raise ScenarioError(f"kv_cache.eviction must be lru {where}, got {kv_cache.eviction}")
    if memory.cache_tiers and not kv_cache.enable_prefix_caching:
        raise ScenarioError("tiers must be empty without a prefix cache")
    _check_swap_space(memory, swaps=scheduler is not None and scheduler.swaps)
    overlaps = scheduler is not None and scheduler.swaps_overlap
    if overlaps and (drafting or memory.kv_groups):
        what = "speculative_config" if drafting else "a model with sliding windows or states"
        raise ScenarioError(
            f"scheduler must not have preemption: async_swap with {what}; that combination is "
            "not simulated"
        )
    num_blocks = memory.num_gpu_blocks // num_lanes
    num_recomputed = drafting.num_recomputed_blocks if drafting else 0
    hashes_ahead = rules.hashes_ahead and num_recomputed > 0 and not memory.cache_tiers
    return LaneMemory(
        num_blocks=num_blocks,
        num_in_all=memory.num_gpu_blocks,
        block_size=kv_cache.block_size,
        num_reserved=_reserve(kv_cache.watermark, num_blocks),
        groups=memory.kv_groups,
        page_rules=page_rules(config, rules, form),
        num_drafts=drafting.num_speculative_tokens if drafting else 0,
        num_recomputed=0 if hashes_ahead else num_recomputed,
        hashes_ahead=hashes_ahead,
        caches_prefixes=kv_cache.enable_prefix_caching,
        uncached_first=rules.uncached_first,
        eviction=kv_cache.eviction,
        tiers=tuple(tier.divided_by(num_lanes) for tier in memory.cache_tiers),
        swap_space=memory.swap_space.divided_by(num_lanes) if memory.swap_space else None,
    )


def _reserve(watermark: float, num_blocks: int) -> int:
    """Return the blocks that admissions leave free, at most all but one.

    A share of all blocks, the null block among them (`watermark_blocks` in
    `vllm/v1/core/kv_cache_manager.py`, 0.24).
    """
    return min(int(watermark * (num_blocks + NULL_BLOCKS)), num_blocks - 1)


def _check_swap_space(memory: EngineMemory, *, swaps: bool) -> None:
    """Raise ScenarioError unless there is a swap space when, and only when, it is used."""
    if not swaps:
        if memory.swap_space:
            raise ScenarioError(
                "swap_space must be null unless scheduler.preemption is swap or async_swap"
            )
    elif memory.cache_tiers:
        raise ScenarioError(
            "scheduler must have preemption: recompute with tiers, from which preempted "
            "requests are loaded back"
        )
    elif memory.swap_space is None:
        raise ScenarioError("swap_space is required when scheduler.preemption is swap")


def page_rules(
    config: EngineConfig, rules: EngineRules, form: QueueForm | None = None
) -> PageRules:
    """Return how the pages of a model with windows or states are counted.

    Prompts that take their pages at once count all of them.

    form: how batches of a pipeline are queued; None: no more than one is planned ahead.
    """
    scheduler, most_beside = config.scheduler, None
    num_batches = form.size if form else 1 + bool(config.async_scheduling)
    lags = num_batches > 1 and rules.returns_unseen
    if isinstance(scheduler, ChunkedScheduler) and scheduler.by_piece and not scheduler.swaps:
        caps = rules.caps_windows or not scheduler.scheduler_reserve_full_isl
        num_counted = num_batches if lags else 1
        most_beside = num_counted * scheduler.max_num_batched_tokens if caps else None
    drafting = config.speculative_config
    num_again = drafting.num_recomputed_blocks if drafting and not rules.hashes_ahead else 0
    states = StateRules(
        rules.states_wait,
        rules.states_stop_shared,
        rules.states_go_on,
        num_again=num_again,
        num_unsure=drafting.num_speculative_tokens if drafting and not rules.returns_unseen else 0,
    )
    if isinstance(scheduler, ChunkedScheduler):
        most = scheduler.long_prefill_token_threshold or scheduler.max_num_batched_tokens
        states = states._replace(most=min(most, scheduler.max_num_batched_tokens))
    num_ahead = drafting.num_lookahead_tokens if drafting else 0
    return PageRules(
        most_beside,
        lags,
        num_again,
        rules.hybrid_drops,
        states,
        num_ahead,
        num_ahead_first=num_ahead if rules.admits_lookahead else 0,
        names_verified=drafting is not None and rules.caches_verified,
    )
