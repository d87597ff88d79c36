"""vLLM's names for the options of an engine's parts; a test holds the list complete.

The engine's own options give their vLLM names in `EngineConfig`.

Source: `vllm serve --help` of vLLM 0.12 (`vllm/engine/arg_utils.py`, `vllm/config/`).
"""

from __future__ import annotations

from collections.abc import Mapping

from mist_sim.clients.engine_options import NO_COUNTERPART

VLLM_NAMES: Mapping[str, str] = {
    # scheduler
    "scheduler.type": "--enable-chunked-prefill (chunked)",
    "scheduler.max_num_seqs": "--max-num-seqs",
    "scheduler.order": "--scheduling-policy (fcfs, priority)",
    "scheduler.preemption": "--preemption-mode (v0)",
    "scheduler.max_num_batched_tokens": "--max-num-batched-tokens",
    "scheduler.long_prefill_token_threshold": "--long-prefill-token-threshold",
    "scheduler.max_num_partial_prefills": "--max-num-partial-prefills",
    "scheduler.scheduler_reserve_full_isl": "--scheduler-reserve-full-isl (from 0.19)",
    "scheduler.prefill_schedule_interval": "--prefill-schedule-interval (from 0.24)",
    # kv_cache
    "kv_cache.block_size": "--block-size",
    "kv_cache.gpu_memory_utilization": "--gpu-memory-utilization",
    "kv_cache.kv_cache_dtype": "--kv-cache-dtype",
    "kv_cache.num_gpu_blocks_override": "--num-gpu-blocks-override",
    "kv_cache.context_memory": NO_COUNTERPART,
    "kv_cache.watermark": "--watermark (from 0.24)",
    "kv_cache.swap_space": "--swap-space (v0)",
    "kv_cache.tiers.name": NO_COUNTERPART,
    "kv_cache.tiers.capacity": "--kv-offloading-size (host memory)",
    "kv_cache.tiers.read_bandwidth": NO_COUNTERPART,
    "kv_cache.tiers.latency": NO_COUNTERPART,
    "kv_cache.tiers.at": NO_COUNTERPART,
    "kv_cache.tiers.shared": "--kv-transfer-config (LMCache or Mooncake store)",
    "kv_cache.tiers.loads_in_step": "--kv-transfer-config (null with LMCacheConnectorV1)",
    "kv_cache.tiers.write_policy": NO_COUNTERPART,
    "kv_cache.enable_prefix_caching": "--enable-prefix-caching",
    "kv_cache.mamba_cache_mode": "--mamba-cache-mode (0.15 to 0.32)",
    # sampling
    "sampling.temperature": "--override-generation-config",
    "sampling.top_p": "--override-generation-config",
    "sampling.top_k": "--override-generation-config",
    "sampling.repetition_penalty": "--override-generation-config",
    "sampling.presence_penalty": NO_COUNTERPART,
    "sampling.frequency_penalty": NO_COUNTERPART,
    "sampling.generation_config": "--generation-config (auto, vllm)",
    "sampling.sampler": NO_COUNTERPART,
    # predictor
    "predictor.type": NO_COUNTERPART,
    "predictor.enforce_eager": "--enforce-eager",
    "predictor.max_cudagraph_capture_size": "--max-cudagraph-capture-size",
    "predictor.cudagraph_capture_sizes": "--cudagraph-capture-sizes",
    "predictor.composition": NO_COUNTERPART,
    "predictor.path": NO_COUNTERPART,
    "predictor.format": NO_COUNTERPART,
    "predictor.subset": NO_COUNTERPART,
    "predictor.command": NO_COUNTERPART,
    "predictor.timeout": NO_COUNTERPART,
    "predictor.step": NO_COUNTERPART,
    "predictor.prefill_token": NO_COUNTERPART,
    "predictor.decode": NO_COUNTERPART,
    "predictor.piggyback": NO_COUNTERPART,
    # step_time_scale
    "step_time_scale.prompts": NO_COUNTERPART,
    "step_time_scale.decodes": NO_COUNTERPART,
    # resharding
    **dict.fromkeys(
        (
            "resharding.tensor_parallel_size",
            "resharding.pipeline_parallel_size",
            "resharding.policy",
            "resharding.threshold",
            "resharding.ttft_limit",
            "resharding.to_prefill",
            "resharding.to_decode",
            "resharding.running",
            "resharding.prefetch",
            "resharding.host_memory",
            "resharding.host_bandwidth",
            "resharding.host_copy_bandwidth",
            "resharding.kv_layout_efficiency",
        ),
        NO_COUNTERPART,
    ),
    # speculative_config
    **dict.fromkeys(
        (
            "speculative_config.method",
            "speculative_config.num_speculative_tokens",
            "speculative_config.model",
            "speculative_config.draft_tensor_parallel_size",
        ),
        "--speculative-config",
    ),
    "speculative_config.acceptance_rate": NO_COUNTERPART,
    "speculative_config.text": NO_COUNTERPART,
    "speculative_config.drafting_time": NO_COUNTERPART,
    # images
    "images.mm_encoder_tp_mode": "--mm-encoder-tp-mode",
    # lora
    "lora.max_loras": "--max-loras",
    "lora.max_lora_rank": "--max-lora-rank",
    "lora.max_cpu_loras": "--max-cpu-loras",
    "lora.fully_sharded_loras": "--fully-sharded-loras",
    "lora.storage_bandwidth": NO_COUNTERPART,
    # admission
    "admission.max_num_waiting": NO_COUNTERPART,
    "admission.drop_expired": NO_COUNTERPART,
    "admission.early_rejection": NO_COUNTERPART,
    # overhead
    "overhead.step": NO_COUNTERPART,
    "overhead.prefill_step": NO_COUNTERPART,
    "overhead.sequence": NO_COUNTERPART,
    "overhead.exposed_step": NO_COUNTERPART,
    "overhead.exposed_sequence": NO_COUNTERPART,
    "overhead.request": NO_COUNTERPART,
    "overhead.prompt_token": NO_COUNTERPART,
}
