"""An installed vLLM's scheduler for a workload, with stand-ins for what it asks and never needs."""

from __future__ import annotations

import inspect
from types import SimpleNamespace
from typing import Any

from conformance.vllm_side.connector import Store, connected, transfer_config

_LONGEST = 10**7  # tokens of a context
INTERVAL = "prefill_schedule_interval"  # since 0.24; in engines of their own since 0.33


class NoImages:
    """A registry of a model that reads text alone."""

    def supports_multimodal_inputs(self, model: Any) -> bool:
        """Return False."""
        return False


class NoGrammar:
    """A manager of structured output that nobody asks."""

    def should_advance(self, request: Any) -> bool:
        """Return False."""
        return False

    def validate_tokens(self, request: Any, tokens: Any) -> Any:
        """Return all (0.33)."""
        return tokens

    def accept_tokens(self, request: Any, tokens: Any) -> bool:
        """Return True (0.33)."""
        return True


def scheduler_of(
    spec: dict[str, Any], asynchronous: bool, options: dict[str, Any], store: Store | None
) -> Any:
    """Return vLLM's scheduler for a workload. store: behind its connector; None: it has none."""
    import torch
    from vllm.v1.core.sched.async_scheduler import AsyncScheduler
    from vllm.v1.core.sched.scheduler import Scheduler
    from vllm.v1.kv_cache_interface import (
        FullAttentionSpec,
        KVCacheConfig,
        KVCacheGroupSpec,
        MambaSpec,
        SlidingWindowSpec,
    )

    size, num_blocks = spec["block_size"], spec["num_gpu_blocks"]
    shape = {"block_size": size, "num_kv_heads": 1, "head_size": 1, "dtype": torch.float32}
    num_window_groups, window = spec["windows"]
    layers = [FullAttentionSpec(**shape)]
    layers += [SlidingWindowSpec(**shape, sliding_window=window) for _ in range(num_window_groups)]
    mode = spec["state_cache"]
    whole = size * (_LONGEST // size)  # without prefix caching a state's block is the context
    in_blocks = size if mode != "none" else whole
    state = {"shapes": ((1,),), "dtypes": (torch.float32,), "block_size": in_blocks}
    state |= {"num_speculative_blocks": spec["drafts"][1]}
    if "mamba_cache_mode" in inspect.signature(MambaSpec).parameters:
        state |= {"mamba_cache_mode": mode}
    if spec["states_inside"]:
        state |= {"num_prefill_checkpoint_blocks": 1, "prefill_checkpoint_alignment": 1}
    layers += [MambaSpec(**state) for _ in range(spec["states"])]
    kv_cache = KVCacheConfig(
        num_blocks=num_blocks,
        kv_cache_tensors=[],
        kv_cache_groups=[
            KVCacheGroupSpec([f"layer {number}"], layer) for number, layer in enumerate(layers)
        ],
    )
    config = config_of(spec, asynchronous, options)
    config.kv_transfer_config = transfer_config() if store is not None else None
    kind = AsyncScheduler if asynchronous else Scheduler
    hashes = {"hash_block_size": size} if spec["states"] and mode == "none" else {}
    with connected(store):
        return kind(
            config,
            kv_cache,
            NoGrammar(),
            whole if hashes else size,
            **hashes,
            mm_registry=NoImages(),
            log_stats=False,
        )


def lacks(spec: dict[str, Any]) -> str:
    """Return the option that a workload needs and this version of vLLM does not have; empty: none.

    Without it vLLM would run another workload. What a version refuses by itself is not told here.
    """
    from vllm.config import SchedulerConfig
    from vllm.v1.kv_cache_interface import MambaSpec

    of_states = inspect.signature(MambaSpec).parameters
    if spec[INTERVAL] > 1 and INTERVAL not in inspect.signature(SchedulerConfig).parameters:
        return f"it has no {INTERVAL}"
    if spec["state_cache"] != "none" and "mamba_cache_mode" not in of_states:
        return "it has no mamba_cache_mode"
    if spec["states_inside"] and "num_prefill_checkpoint_blocks" not in of_states:
        return "it saves no states inside pieces of prompts"
    return ""


def config_of(spec: dict[str, Any], asynchronous: bool, options: dict[str, Any]) -> Any:
    """Return what the schedulers of vLLM 0.12 to 0.33 read of a `VllmConfig`."""
    from vllm.config import SchedulerConfig

    longest, interval = _LONGEST, spec[INTERVAL]
    method, num_drafts = spec["drafts"]
    is_eagle = method == "eagle"
    has_interval = INTERVAL in inspect.signature(SchedulerConfig).parameters
    scheduler_config = SchedulerConfig(
        max_num_seqs=spec["max_num_seqs"],
        max_num_batched_tokens=spec["max_num_batched_tokens"],
        max_model_len=longest,
        is_encoder_decoder=False,
        long_prefill_token_threshold=spec["long_prefill_token_threshold"],
        enable_chunked_prefill=True,
        async_scheduling=asynchronous,
        policy=spec["policy"],
        **({INTERVAL: interval} if has_interval else {}),
        **options,
    )
    return SimpleNamespace(
        scheduler_config=scheduler_config,
        cache_config=SimpleNamespace(
            num_gpu_blocks=spec["num_gpu_blocks"],
            enable_prefix_caching=spec["enable_prefix_caching"],
            block_size=spec["block_size"],
            mamba_cache_mode=spec["state_cache"],
            enable_mamba_shared_prefix_checkpoint=False,
        ),
        parallel_config=SimpleNamespace(
            data_parallel_index=0,
            data_parallel_rank=0,
            data_parallel_size=1,
            decode_context_parallel_size=1,
            prefill_context_parallel_size=1,
            pipeline_parallel_size=len(spec["ranks"]),
        ),
        observability_config=SimpleNamespace(
            kv_cache_metrics=False, enable_mfu_metrics=False, per_request_spec_decode_metrics=None
        ),
        model_config=SimpleNamespace(
            is_encoder_decoder=False,
            is_diffusion=False,
            max_model_len=longest,
            enable_return_routed_experts=False,
            return_sampling_mask=False,
            runner_type="generate",
            supports_multimodal_inputs=False,
            uses_mrope=False,
        ),
        ec_manager_config=SimpleNamespace(get_encoder_cache_manager_obj=lambda: None),
        aux_output_config=SimpleNamespace(enabled=False),
        is_mm_encoder_only=False,
        max_concurrent_batches=batches_in_flight(spec, asynchronous),
        max_in_flight_tokens=spec["max_num_batched_tokens"] * batches_in_flight(spec, asynchronous),
        num_hash_lookahead_tokens=int(is_eagle and spec["enable_prefix_caching"]),
        num_lookahead_tokens=num_drafts if is_eagle else 0,
        num_prefill_lookahead_tokens=int(is_eagle),
        num_speculative_tokens=num_drafts,
        use_v2_model_runner=True,
        lora_config=None,
        kv_events_config=None,
        ec_transfer_config=None,
        speculative_config=drafting_of(method, num_drafts) if num_drafts else None,
    )


def drafting_of(method: str, num_drafts: int) -> Any:
    """Return what the schedulers read of a `SpeculativeConfig`."""
    is_eagle = method == "eagle"
    return SimpleNamespace(
        method=method,
        num_speculative_tokens=num_drafts,
        num_speculative_tokens_per_batch_size=None,
        max_num_new_slots_for_drafting=0,
        disable_eagle_block_drop=False,
        use_eagle=lambda: is_eagle,
        use_eagle_block_drop=lambda: is_eagle,
        needs_eagle_block_drop=lambda: is_eagle,
        uses_draft_model=lambda: False,
        use_dflash=lambda: False,
    )


def batches_in_flight(spec: dict[str, Any], asynchronous: bool) -> int:
    """Return `max_concurrent_batches` of the multiprocess executor, or of the config since 0.24."""
    size = len(spec["ranks"])
    if asynchronous and (size == 1 or fills_queue()):
        return size + 1
    return size


def fills_queue() -> bool:
    """Tell whether empty batches fill the queue, and a decode is planned every so many steps.

    That came by 0.24, with model runner V2.
    """
    import vllm

    return tuple(int(part) for part in vllm.__version__.split(".")[:2]) >= (0, 24)
