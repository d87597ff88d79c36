"""vLLM's defaults by version: the one table of them.

A version is an entry of `VERSIONS`; it names its differences from the entry before. Each value
names where vLLM's package has it; all were read in the wheels of these versions on PyPI, and the
releases between them (0.13, 0.18.1, 0.20.0, 0.27.1, 0.28.0) say when a change came.
"""

from __future__ import annotations

from collections.abc import Mapping

from mist_sim.clients.engine_checks import AUTO_LENGTH as AUTO
from mist_sim.clients.kv_cache.profile_run import BesideTorch
from mist_sim.models import attention_backends, moe_backends
from mist_sim.models.speculative import METHODS
from mist_sim.scenario.engines.engine_version import (
    ATTENTION,
    EXPERTS,
    GIB,
    INTERVAL,
    LARGEST_GRAPH,
    LIMITS,
    PARTIAL,
    RESERVE,
    SAMPLER,
    Default,
    EngineVersion,
    Lack,
    LargestGraph,
    LimitsByMemory,
    ServerLimits,
    after,
)

_SAMPLER_BYTES = "memory.sampler_bytes"
_KEEPS_BUFFERS = "memory.keeps_buffers"
_BESIDE_TORCH = "memory.beside_torch"
_COUNTS_GRAPHS = "memory.counts_graphs"
_UNCACHED_FIRST = "rules.uncached_first"
_SPARES_ONE = "rules.threshold_spares_one"
_GOES_ON = "rules.pass_goes_on"
_LOCAL_CADENCE = "rules.local_cadence"
_SPARES_HITS = "rules.held_spares_hits"
_BATCH_QUEUE = "rules.batch_queue"
_ASYNC_PIPELINES = "rules.async_pipelines"
_STAGGERS = "rules.staggers_decodes"
_FILLS = "rules.fills_queue"
_DRAINS = "rules.drains_preempted"
_CACHES_VERIFIED = "rules.caches_verified"
_PADS = "rules.pads_prompts"
_HASHES_AHEAD = "rules.hashes_ahead"
_HYBRID_DROPS = "rules.hybrid_drops"
_HIDES_HOST = "rules.hides_host"
_KEEPS_COUNTS = "rules.keeps_counts"
_ADMITS_LOOKAHEAD = "rules.admits_lookahead"
_CAPS_WINDOWS = "rules.caps_windows"
_RETURNS_UNSEEN = "rules.returns_unseen"
_STATES_WAIT = "rules.states_wait"
_STOP_SHARED = "rules.states_stop_shared"
_STATES_GO_ON = "rules.states_go_on"
_RESERVES = "rules.reserves_prefills"
_LOADED_FIRST = "rules.loaded_first"
_PREEMPTED_FIRST = "rules.preempted_first"
_DEFERS_FREES = "rules.defers_frees"
_SPARES = "rules.spares_in_flight"
_ASYNC_DRAFTS = "rules.async_drafts"
_ASYNC_ANY = "rules.async_any_drafts"
_LARGE = ServerLimits(1024, 8192)
_SMALL = ServerLimits(256, 2048)
_70_GIB = (70 * GIB, False, _LARGE)
_BATCH_DEFAULTS = "EngineArgs.get_batch_defaults in vllm/engine/arg_utils.py"
_GRAPH_SIZES = "VllmConfig._set_cudagraph_sizes in vllm/config/vllm.py"
_POST_INIT = "VllmConfig.__post_init__ in vllm/config/vllm.py"
_SAMPLE = "TopKTopPSampler in vllm/v1/sample/ops/topk_topp_sampler.py"
_CACHE = "in vllm/config/cache.py"
_HYBRID_CACHE = "ModelConfig.is_prefix_caching_supported in vllm/config/model.py"
_V1_SAMPLE = "in vllm/v1/sample/metadata.py"
_SCHEDULER = "in vllm/config/scheduler.py"
_SCHEDULE = "Scheduler.schedule in vllm/v1/core/sched/scheduler.py"
_HYBRID = "HybridKVCacheCoordinator.find_longest_cache_hit in vllm/v1/core/kv_cache_coordinator.py"
_HASH = "VllmConfig in vllm/config/vllm.py"
_UPDATE = "Scheduler.update_from_output in vllm/v1/core/sched/scheduler.py"
_SLOTS = "KVCacheManager.allocate_slots in vllm/v1/core/kv_cache_manager.py"
_MAMBA = "MambaManager in vllm/v1/core/single_type_kv_cache_manager.py"
_ALIGNED = "Scheduler._mamba_block_aligned_split in vllm/v1/core/sched/scheduler.py"
_CAP = "max_admission_blocks_per_request in vllm/v1/kv_cache_interface.py"
_QUEUE = "EngineCore.step_with_batch_queue in vllm/v1/engine/core.py"
_ORACLE = "in vllm/model_executor/layers/fused_moe/oracle"
_PRIORITIES = "_get_backend_priorities in vllm/platforms/cuda.py"
_FREE_BLOCKS = "BlockPool.free_blocks in vllm/v1/core/block_pool.py"

_ITL_OF_0_11 = (
    "not in the package; what 57 median inter-token latencies of 0.11.1 show, which ran with it "
    "(ML.ENERGY; python -m benchmarks.measured_itl)"
)

_LOGS = "not in the package; logs (docs/background/memory.md)"
_AVAILABLE = "Worker.determine_available_memory in vllm/v1/worker/gpu_worker.py"
_WORKSPACE = "WorkspaceManager in vllm/v1/worker/workspace.py"

_NO_STAGGER = "AsyncScheduler in vllm/v1/core/sched/async_scheduler.py"


def _experts(
    of: Mapping[str, moe_backends.Choices], source: str, formats: str = ""
) -> dict[str, Default]:
    """Return the kernels of experts by format; formats: those that changed, empty for all."""
    chosen = formats.split() or list(of)
    return {f"{EXPERTS}{name}": Default(of[name], source) for name in chosen}


V0_12 = EngineVersion(
    "vllm-0.12",
    {
        "async_scheduling": Default(False, f"SchedulerConfig.async_scheduling {_SCHEDULER}"),
        LIMITS: Default(LimitsByMemory(_SMALL, (_70_GIB,)), _BATCH_DEFAULTS),
        "scheduler.order": Default("fcfs", f"SchedulerConfig.policy {_SCHEDULER}"),
        "scheduler.long_prefill_token_threshold": Default(
            None, f"SchedulerConfig.long_prefill_token_threshold, 0, {_SCHEDULER}"
        ),
        "kv_cache.gpu_memory_utilization": Default(
            0.9, f"CacheConfig.gpu_memory_utilization {_CACHE}"
        ),
        "kv_cache.block_size": Default(
            16, "CudaPlatform.check_and_update_config in vllm/platforms/cuda.py"
        ),
        "kv_cache.enable_prefix_caching": Default(
            True, f"CacheConfig.enable_prefix_caching {_CACHE}"
        ),
        "kv_cache.mamba_cache_mode": Default("none", _HYBRID_CACHE),
        "kv_cache.watermark": Default(0.0, "no such option; nothing in vllm/v1/core keeps one"),
        LARGEST_GRAPH: Default(LargestGraph(512, 512, with_drafts=False), _GRAPH_SIZES),
        SAMPLER: Default("pytorch", f"{_SAMPLE}; flashinfer with VLLM_USE_FLASHINFER_SAMPLER=1"),
        RESERVE: Default(
            False, "no such option; Scheduler.schedule in vllm/v1/core/sched asks for a chunk"
        ),
        INTERVAL: Default(1, "no such option; any step of Scheduler.schedule computes prompts"),
        **_experts(
            moe_backends.OF_0_12,
            "get_fp8_moe_backend, get_mxfp4_backend in vllm/model_executor/layers/quantization, or "
            "UnquantizedFusedMoEMethod in fused_moe",
        ),
        ATTENTION: Default(attention_backends.OF_0_12, _PRIORITIES),
        _SAMPLER_BYTES: Default(38.6, f"{_LOGS} of 0.11 to 0.16"),
        _KEEPS_BUFFERS: Default(False, "fused_experts_impl in vllm/model_executor/layers"),
        _BESIDE_TORCH: Default(
            BesideTorch(0.13 * GIB, 0.55 * GIB, 0.55 * GIB), f"{_LOGS} of 0.11 to 0.17 on H100s"
        ),
        _COUNTS_GRAPHS: Default(False, f"{_AVAILABLE} knows none"),
        _UNCACHED_FIRST: Default(False, _FREE_BLOCKS),
        _SPARES_ONE: Default(False, _SCHEDULE),
        _GOES_ON: Default(False, _SCHEDULE),
        _LOCAL_CADENCE: Default(False, _SCHEDULE),
        _SPARES_HITS: Default(False, _SCHEDULE),
        _BATCH_QUEUE: Default(True, _QUEUE),
        _ASYNC_PIPELINES: Default(False, f"{_POST_INIT}, which turns it off in 0.14"),
        _STAGGERS: Default(False, _NO_STAGGER),
        _FILLS: Default(False, _QUEUE),
        _DRAINS: Default(False, _SCHEDULE),
        _CACHES_VERIFIED: Default(False, _UPDATE),
        _PADS: Default(False, _SCHEDULE),
        _HASHES_AHEAD: Default(False, _HASH),
        _HYBRID_DROPS: Default(1, f"{_HYBRID}: full attention and windows each lose a block"),
        _HIDES_HOST: Default(False, _ITL_OF_0_11),
        _KEEPS_COUNTS: Default(False, f"SamplingMetadata.output_token_ids {_V1_SAMPLE}"),
        _ADMITS_LOOKAHEAD: Default(False, f"{_SCHEDULE}: effective_lookahead_tokens"),
        _CAPS_WINDOWS: Default(False, "no such cap; get_num_blocks_to_allocate counts all tokens"),
        _RETURNS_UNSEEN: Default(False, f"{_SLOTS}: total_computed_tokens"),
        _STATES_WAIT: Default(False, f"{_MAMBA} notes no blocks of a step"),
        _STOP_SHARED: Default("never", f"{_SCHEDULE} ends no piece for states"),
        _STATES_GO_ON: Default(False, f"{_SCHEDULE} ends no piece for states"),
        _RESERVES: Default(False, f"{_SCHEDULE}: allocate_slots of a load"),
        _LOADED_FIRST: Default(False, f"{_SCHEDULE}: skipped_waiting"),
        _PREEMPTED_FIRST: Default(True, f"{_SCHEDULE}: skipped_waiting_requests are prepended"),
        _DEFERS_FREES: Default(False, f"{_SCHEDULE}: _preempt_request"),
        _SPARES: Default(False, f"{_SCHEDULE}: _preempt_request"),
        _ASYNC_DRAFTS: Default(("mtp", "eagle"), f"EagleModelTypes of {_POST_INIT}"),
        _ASYNC_ANY: Default(False, f"{_POST_INIT} in 0.14"),
    },
    lacks={
        "scheduler.preemption": Lack(
            ("recompute",), "v1 computes a preempted request again", "recompute, or leave it out"
        ),
        "kv_cache.swap_space": Lack(
            (None,), "v1 swaps nothing", "kv_cache.tiers for blocks in host memory"
        ),
        "kv_cache.watermark": Lack(
            (0.0,), "it came in 0.24", "engine: vllm-0.24 or newer, or leave it out"
        ),
        "max_model_len": Lack(
            (), "auto came in 0.14", "the tokens that fit, or engine: vllm-0.14 or newer", (AUTO,)
        ),
        PARTIAL: Lack(
            (None,),
            "it does not start with it: Concurrent Partial Prefill is not supported",
            "scheduler.long_prefill_token_threshold",
        ),
        "kv_cache.mamba_cache_mode": Lack(
            (), "align came in 0.15", "all, or engine: vllm-0.19 or newer", ("align",)
        ),
        RESERVE: Lack((False,), "it came in 0.19", "engine: vllm-0.19 or newer, or leave it out"),
        INTERVAL: Lack((1,), "it came in 0.24", "engine: vllm-0.24 or newer, or leave it out"),
        "prefill_context_parallel_size": Lack(
            (1,),
            "its attention asserts supports_pcp, which no back end of 0.24 has",
            "engine: vllm-0.33, or leave it out",
        ),
    },
    notes={
        "block size": "some attention backends raise it, mostly to 64: say kv_cache.block_size",
    },
)

V0_11 = after(
    V0_12,
    "vllm-0.11",
    _experts(
        moe_backends.OF_0_11,
        "get_mxfp4_backend in vllm/model_executor/layers/quantization/mxfp4.py: "
        "has_triton_kernels, a package that 0.11.0 neither has nor requires",
        "mxfp4",
    ),
)
"""What was looked up in 0.11.0; all else as in 0.12."""

V0_14 = after(
    V0_12,
    "vllm-0.14",
    {
        "async_scheduling": Default(True, _POST_INIT),
        _HIDES_HOST: Default(
            True, "not in the package; runs of 0.15 and 0.19 (docs/validation.md)"
        ),
        LARGEST_GRAPH: Default(LargestGraph(512, 512), f"{_GRAPH_SIZES}, since 0.13"),
        **_experts(moe_backends.OF_0_14, f"select_fp8_moe_backend {_ORACLE}", "fp8_block"),
        _HYBRID_DROPS: Default(None, f"{_HYBRID}: windows lose a block in every round"),
    },
    gains=("max_model_len",),
)

V0_19 = after(
    V0_14,
    "vllm-0.19",
    {
        "kv_cache.block_size": Default(16, f"CacheConfig.DEFAULT_BLOCK_SIZE {_CACHE}"),
        SAMPLER: Default("triton", f"{_SAMPLE}, from 8 rows on; vLLM pull request 33538"),
        **_experts(
            moe_backends.OF_0_19, f"_get_priority_backends {_ORACLE}", "fp8_static fp8_block nvfp4"
        ),
        ATTENTION: Default(attention_backends.OF_0_19, _PRIORITIES),
        _SAMPLER_BYTES: Default(15.3, f"{_LOGS} of 0.17 to 0.26"),
        _KEEPS_BUFFERS: Default(True, _WORKSPACE),
        _BESIDE_TORCH: Default(
            BesideTorch(0.25 * GIB, 0.25 * GIB, 2.1 * GIB),
            f"{_LOGS} of 0.18 and 0.19 on H100s, of 0.27 on other GPUs",
        ),
        RESERVE: Default(True, f"SchedulerConfig.scheduler_reserve_full_isl {_SCHEDULER}"),
        _ASYNC_PIPELINES: Default(
            True,
            "GPUModelRunner._pp_receive_prev_sampled_token_ids_to_input_batch in "
            "vllm/v1/worker/gpu_model_runner.py: the first rank waits for the tokens of each batch",
        ),
        _ASYNC_ANY: Default(True, f"{_POST_INIT}: draft_model, and ngram_gpu"),
        _HYBRID_DROPS: Default(1, f"{_HYBRID}: is_simple_hybrid ends after one round"),
        _PREEMPTED_FIRST: Default(False, f"{_SCHEDULE}: _select_waiting_queue_for_scheduling"),
        _STATES_WAIT: Default(True, f"cached_blocks_this_step of {_MAMBA}"),
    },
    gains=(RESERVE, "kv_cache.mamba_cache_mode"),
)

V0_24 = after(
    V0_19,
    "vllm-0.24",
    {
        "kv_cache.gpu_memory_utilization": Default(
            0.92, f"CacheConfig.gpu_memory_utilization {_CACHE}, since 0.20"
        ),
        "kv_cache.watermark": Default(0.0, f"SchedulerConfig.watermark {_SCHEDULER}"),
        INTERVAL: Default(1, f"SchedulerConfig.prefill_schedule_interval {_SCHEDULER}"),
        _UNCACHED_FIRST: Default(True, f"{_FREE_BLOCKS}, not yet in 0.22"),
        SAMPLER: Default("flashinfer", f"{_SAMPLE}; vLLM pull request 40376"),
        **_experts(moe_backends.OF_0_24, f"_get_priority_backends {_ORACLE}", "bf16"),
        _COUNTS_GRAPHS: Default(
            True,
            f"VLLM_MEMORY_PROFILER_ESTIMATE_CUDAGRAPHS in vllm/envs.py, since 0.20; {_AVAILABLE}",
        ),
        _STAGGERS: Default(True, f"{_NO_STAGGER}, with model runner V2"),
        _FILLS: Default(True, _QUEUE),
        _KEEPS_COUNTS: Default(
            True, "PenaltiesState in vllm/v1/worker/gpu/sample/penalties.py, with model runner V2"
        ),
        _ADMITS_LOOKAHEAD: Default(True, f"{_SCHEDULE}: limit_lookahead_tokens"),
        _CAPS_WINDOWS: Default(True, _CAP),
        _STOP_SHARED: Default("at_first", f"num_uncached_common_prefix_tokens of {_ALIGNED}"),
        _HYBRID_DROPS: Default(0, f"{_HYBRID}: windows look one block further"),
        _DEFERS_FREES: Default(True, f"{_SCHEDULE}: defer_block_free"),
        _RESERVES: Default(True, f"{_SCHEDULE}: _inflight_prefill_reserved_blocks"),
    },
    gains=("kv_cache.watermark", INTERVAL),
    notes={
        "tokens of a step, experts exchanged by deepep_low_latency or nixl_ep": "256 (use_batched_"
        "dp_moe in vllm/config/parallel.py, since 0.20): say max_num_batched_tokens",
    },
)

V0_33 = after(
    V0_24,
    "vllm-0.33",
    {
        LIMITS: Default(
            LimitsByMemory(
                _SMALL,
                ((160 * GIB, True, _LARGE._replace(max_num_batched_tokens=16384)), _70_GIB),
                always_small=("gb10",),
            ),
            f"{_BATCH_DEFAULTS}, since 0.28",
        ),
        LARGEST_GRAPH: Default(LargestGraph(512, 1024), f"{_GRAPH_SIZES}, since 0.28"),
        **_experts(
            moe_backends.OF_0_33,
            f"resolve_fp8_moe_weight_block_shape {_ORACLE}, since 0.29",
            "fp8_block",
        ),
        _SPARES_ONE: Default(True, f"{_SCHEDULE}, not yet in 0.28"),
        _GOES_ON: Default(True, f"{_SCHEDULE}, not yet in 0.31"),
        _LOCAL_CADENCE: Default(True, f"{_SCHEDULE}, not yet in 0.32"),
        _SPARES_HITS: Default(True, f"{_SCHEDULE}, in 0.31"),
        _DRAINS: Default(True, f"{_SCHEDULE}: num_stale_output_tokens"),
        _CACHES_VERIFIED: Default(True, _UPDATE),
        _PADS: Default(True, f"{_SCHEDULE}: pad_spec_decode"),
        _HASHES_AHEAD: Default(True, f"num_hash_lookahead_tokens of {_HASH}"),
        _RETURNS_UNSEEN: Default(True, f"{_SLOTS}: num_in_flight_tokens"),
        "kv_cache.mamba_cache_mode": Default("align", _HYBRID_CACHE),
        _STOP_SHARED: Default("always", f"shared_prefix_boundary of {_ALIGNED}"),
        _STATES_GO_ON: Default(True, f"next_block_boundary of {_ALIGNED}"),
        _LOADED_FIRST: Default(True, f"{_SCHEDULE}: kv_holding_waiting"),
        _SPARES: Default(True, f"{_SCHEDULE}: _request_blocks_can_be_freed"),
        _ASYNC_DRAFTS: Default(
            tuple(each for each in METHODS if each != "eagle3"),  # read as eagle
            f"use_v2_model_runner of {_HASH}: model runner V2 drafts with all of them",
        ),
    },
    gains=("prefill_context_parallel_size",),
    loses={
        "kv_cache.mamba_cache_mode": Lack(
            (), "all was removed in 0.33", "align, or leave it out", ("all",)
        ),
        PARTIAL: Lack((None,), "it was removed in 0.27", "scheduler.long_prefill_token_threshold"),
    },
    notes={
        "preemption with a step in flight": "the request waits until that step is over, which it "
        "is when the next one but one is planned (Scheduler.schedule, since 0.27); not so in a "
        "pipeline",
    },
)

VERSIONS: Mapping[str, EngineVersion] = {
    version.name: version for version in (V0_11, V0_12, V0_14, V0_19, V0_24, V0_33)
}
"""By name, the oldest first."""

NEWEST = V0_33
"""The engine that is imitated by default: what `pip install vllm` gives."""
