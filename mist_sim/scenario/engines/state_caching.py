"""Which states of a model a prefix cache keeps: by vLLM's version, the model and the options.

Source: `MambaModelConfig.verify_and_update_config` in `vllm/model_executor/models/config.py`, and
`_align_hybrid_block_size` in `vllm/platforms/interface.py`.
"""

from __future__ import annotations

from math import lcm
from typing import NamedTuple

from mist_sim.clients import EngineConfig
from mist_sim.clients.scheduling import ChunkedScheduler
from mist_sim.errors import ScenarioError
from mist_sim.hardware import Cluster
from mist_sim.models import ModelSpec
from mist_sim.models.cache_layout import CacheLayout
from mist_sim.models.kv_groups import StateCache
from mist_sim.models.layers import mixers_of
from mist_sim.models.mixers import LinearMixer
from mist_sim.scenario.engines.versions import version_of

MODE = "kv_cache.mamba_cache_mode"

_BLOCK_STEP = 16  # tokens; attention kernels take blocks of multiples of it

# FlashInfer's kernel of Gated DeltaNet, which vLLM takes on these GPUs, saves states at multiples
# of so many tokens (`FLASHINFER_GDN_CHECKPOINT_ALIGNMENT` in vllm/v1/attention/backends/gdn_attn.py
# and `_resolve_gdn_prefill_backend` in model_executor/layers/mamba/gdn/qwen_gdn_linear_attn.py).
_FLASHINFER_STEP = 64
_FLASHINFER = ("hopper", "blackwell", "blackwell-ultra", "blackwell-rtx")


class StateCaching(NamedTuple):
    """Which states are kept, the tokens of a block, and whether pieces save states inside."""

    mode: StateCache
    block_size: int
    saves_inside: bool = False


def state_caching(
    config: EngineConfig, model: ModelSpec, cluster: Cluster, layout: CacheLayout
) -> StateCaching:
    """Return how an engine keeps the states of a model.

    Raises ScenarioError where the options ask for what the model or the engine cannot.
    """
    mixers = [mixer for mixer in mixers_of(model.layers) if isinstance(mixer, LinearMixer)]
    asked, rules = config.kv_cache.mamba_cache_mode, version_of(config.engine).rules
    why = _why_not(config, mixers)
    if asked not in (None, "none") and why:
        raise ScenarioError(f"{MODE} must be none {why}, got {asked}; that is not simulated")
    if asked == "all" and any(mixer.kind != "mamba2" for mixer in mixers):
        raise ScenarioError(
            f"{MODE} must be none or align for {model.name}, got all; vLLM keeps the states of all "
            "blocks for Mamba-2 alone"
        )
    mode: StateCache = asked or version_of(config.engine).default(MODE)
    if why or not config.kv_cache.enable_prefix_caching:
        mode = "none"
    least = max(config.kv_cache.block_size, layout.block_size)
    if mode == "all":
        step = lcm(_BLOCK_STEP, *(mixer.chunk_size for mixer in mixers))
        return StateCaching(mode, -(-least // step) * step)
    inside = mode == "align" and rules.states_go_on and _save_inside(mixers, cluster)
    by_flashinfer = inside and any(mixer.kind == "gdn" for mixer in mixers)
    step = _FLASHINFER_STEP if by_flashinfer else _BLOCK_STEP
    size = -(-least // step) * step
    if mode == "align" and not rules.states_go_on:
        _check_pieces(config, size)
    return StateCaching(mode, size, inside)


def _why_not(config: EngineConfig, mixers: list[LinearMixer]) -> str:
    """Return where no states are kept; empty: they can be."""
    scheduler, drafting = config.scheduler, config.speculative_config
    if not mixers:
        return "for a model with compressed entries"
    if not isinstance(scheduler, ChunkedScheduler | None) or config.resharding is not None:
        return "with a scheduler that does not cut prompts"
    if scheduler is not None and scheduler.swaps:
        return "where preempted requests are swapped"
    rules = version_of(config.engine).rules
    if drafting is not None and not rules.caches_verified:
        if rules.states_go_on:
            return "with drafts from vllm-0.26 to 0.32"
        if config.kv_cache.mamba_cache_mode == "all":
            return "or align with drafts"
    return ""


def _save_inside(mixers: list[LinearMixer], cluster: Cluster) -> bool:
    """Tell whether all kernels of prompts save states before a piece ends.

    Mamba-2's do (`MambaMixer2.get_kv_cache_spec`), and FlashInfer's of Gated DeltaNet.
    """
    if any(mixer.kind == "kda" for mixer in mixers):
        return False
    is_flashinfer = cluster.gpu.architecture in _FLASHINFER
    return is_flashinfer or all(mixer.kind == "mamba2" for mixer in mixers)


def _check_pieces(config: EngineConfig, size: int) -> None:
    """Raise ScenarioError for steps or pieces that never have room for a block."""
    scheduler = config.scheduler
    for name in ("max_num_batched_tokens", "long_prefill_token_threshold"):
        tokens = getattr(scheduler, name, None)
        if tokens is not None and tokens < size:
            raise ScenarioError(
                f"scheduler.{name} must be >= {size}, the tokens of a block, with {MODE}: align "
                f"before vllm-0.26, got {tokens}; set it, or mamba_cache_mode: none"
            )
