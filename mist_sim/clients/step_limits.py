"""Upper limits of an engine's steps, to compute how much room they had."""

from __future__ import annotations

from mist_sim.clients.engine.replicas import lane_shares
from mist_sim.clients.engine_config import EngineConfig
from mist_sim.clients.kv_cache.lane_memory import LaneMemory
from mist_sim.clients.scheduling import ChunkedScheduler
from mist_sim.core.step_limits import StepLimits


def step_limits(config: EngineConfig, memory: LaneMemory) -> StepLimits | None:
    """Return the limits of the steps of a client's engines.

    memory: of each of their lanes. None for schedulers other than the chunked one: whole prompts
        wait for a batch, or for a step in which they fit, so the content of a step does not show
        its room.
    """
    scheduler = config.scheduler
    if not isinstance(scheduler, ChunkedScheduler):
        return None
    groups = memory.groups
    num_groups = groups.num_groups if groups else 1
    num_ranks, most = config.pipeline_parallel_size, scheduler.max_num_seqs
    shares = lane_shares(max(most, num_ranks), config.data_parallel_size, num_ranks)
    return StepLimits(
        tokens=scheduler.max_num_batched_tokens,
        tokens_a_decode=1 + config.num_drafts,
        sequences=tuple(shares),
        num_blocks=memory.num_blocks,
        block_size=memory.block_size,
        blocks_each=num_groups,
    )
