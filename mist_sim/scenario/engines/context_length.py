"""The longest context of an engine: as set, as its KV cache allows, as the model allows.

As vLLM does when it starts: `_check_enough_kv_cache_memory` and `_auto_fit_max_model_len` in
`vllm/v1/core/kv_cache_utils.py` (0.33: `kv_cache_planning.py`). Here the null block counts as taken
under every version; vLLM does so since 0.31 or a little before, which is one block's difference.
"""

from __future__ import annotations

from bisect import bisect_right
from typing import NamedTuple

from mist_sim.clients import EngineConfig
from mist_sim.clients.engine_checks import AUTO_LENGTH
from mist_sim.clients.kv_cache.lane_memory import LaneMemory
from mist_sim.errors import ScenarioError


class ContextLength(NamedTuple):
    """The most tokens of a prompt and its answer, and whether that is more than fits."""

    max_model_len: int
    is_too_long: bool = False


def context_length(config: EngineConfig, own: int, memory: LaneMemory) -> ContextLength:
    """Return the longest context of an engine.

    own: the model's own, in tokens, which is the default. vLLM does not start if that does not fit;
    here it is accepted, so that short requests need no such option, and requests that do not fit
    are rejected one by one. Raises ScenarioError for a given length that does not fit, and if
    nothing fits.
    """
    said = config.max_model_len
    asked = own if said in (None, AUTO_LENGTH) else int(said or own)
    most = _longest_that_fits(memory, asked)
    if said is None or most == asked:
        return ContextLength(asked, is_too_long=most < asked)
    if said == AUTO_LENGTH and most:
        return ContextLength(most)
    pool = memory.pool()
    counted = config.kv_cache.num_gpu_blocks_override is not None
    raised = "num_gpu_blocks_override" if counted else "gpu_memory_utilization"
    raise ScenarioError(
        f"max_model_len must be <= {most}, got {said}: a request of {asked} tokens takes "
        f"{pool.blocks_alone(asked)} blocks of {pool.block_size}, and there are {pool.num_blocks}; "
        f"raise {raised}, or write max_model_len: auto, which takes what fits"
    )


def _longest_that_fits(memory: LaneMemory, most: int) -> int:
    """Return the tokens of the longest request, up to `most`, that fits alone; 0 if none does."""
    pool = memory.pool()
    return bisect_right(range(1, most + 1), pool.num_blocks, key=pool.blocks_alone)
