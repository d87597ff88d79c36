"""The rules of vLLM by release, 0.10 to 0.33, in one table.

A row is a rule: its values, each from a release on, with the place in vLLM's package that has it.
Where a value came was looked up in the source distributions of all these releases on PyPI; what
is no value of the package was measured (`Default.seen`).
"""

from __future__ import annotations

from collections.abc import Mapping
from math import inf

from mist_sim.clients.engine_checks import AUTO_LENGTH as AUTO
from mist_sim.clients.kv_cache.profile_run import BesideTorch
from mist_sim.core.front_end import PARSE, TEMPLATE
from mist_sim.models import attention_backends, moe_backends
from mist_sim.models.speculative import METHODS
from mist_sim.scenario.engines.engine_version import (
    ATTENTION,
    EXPERTS,
    FIRST_PATCH,
    GIB,
    HIDES,
    INTERVAL,
    LARGEST_GRAPH,
    LATER,
    LATEST,
    LIMITS,
    OLDEST,
    PARSES,
    PARTIAL,
    RELEASES,
    RESERVE,
    SAMPLER,
    TEMPLATES,
    Default,
    EngineVersion,
    Hidden,
    Lack,
    LargestGraph,
    LimitsByMemory,
    Note,
    Releases,
    ServerLimits,
)

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

_CHAT = "resolve_chat_template_kwargs in vllm/entrypoints/chat_utils.py"
_BURSTS = "not in the package; bursts of GPUStack's lab (mist_sim/core/front_end.py)"
_PAIRS = (
    "not in the package; median gaps of 0.11.0 with and without it, four pairs of GPUStack's lab: "
    "gpt-oss-120b and 20b on A100 (4, 200 and 256 sequences), 20b on H100"
)
_LOGS = "not in the package; logs (docs/background/memory.md)"
_AVAILABLE = "Worker.determine_available_memory in vllm/v1/worker/gpu_worker.py"
_WORKSPACE = "WorkspaceManager in vllm/v1/worker/workspace.py"

_NO_STAGGER = "AsyncScheduler in vllm/v1/core/sched/async_scheduler.py"


def _experts(
    name: str, *of: tuple[int, Mapping[str, moe_backends.Choices], str]
) -> tuple[Default, ...]:
    """Return the kernels of experts of a format, each from a release on, with its place."""
    return tuple(Default(choices[name], source, since) for since, choices, source in of)


_FIRST_EXPERTS = (
    OLDEST,
    moe_backends.OF_0_12,
    (
        "get_fp8_moe_backend, get_mxfp4_backend in vllm/model_executor/layers/quantization, or "
        "UnquantizedFusedMoEMethod in fused_moe"
    ),
)
_ORACLE_EXPERTS = (17, moe_backends.OF_0_19, f"_get_priority_backends {_ORACLE}")

DEFAULTS: Mapping[str, tuple[Default, ...]] = {
    "async_scheduling": (
        Default(False, f"SchedulerConfig.async_scheduling {_SCHEDULER}"),
        Default(True, _POST_INIT, 14),
    ),
    LIMITS: (
        Default(LimitsByMemory(_SMALL, (_70_GIB,)), _BATCH_DEFAULTS),
        Default(
            LimitsByMemory(
                _SMALL,
                ((160 * GIB, True, _LARGE._replace(max_num_batched_tokens=16384)), _70_GIB),
                always_small=("gb10",),
            ),
            _BATCH_DEFAULTS,
            28,
        ),
    ),
    "scheduler.order": (Default("fcfs", f"SchedulerConfig.policy {_SCHEDULER}"),),
    "scheduler.long_prefill_token_threshold": (
        Default(None, f"SchedulerConfig.long_prefill_token_threshold, 0, {_SCHEDULER}"),
    ),
    "kv_cache.gpu_memory_utilization": (
        Default(0.9, f"CacheConfig.gpu_memory_utilization {_CACHE}"),
        Default(0.92, f"CacheConfig.gpu_memory_utilization {_CACHE}", 20),
    ),
    "kv_cache.block_size": (
        Default(16, "CudaPlatform.check_and_update_config in vllm/platforms/cuda.py"),
        Default(16, f"CacheConfig.DEFAULT_BLOCK_SIZE {_CACHE}", 18),
    ),
    "kv_cache.enable_prefix_caching": (
        Default(True, f"CacheConfig.enable_prefix_caching {_CACHE}"),
    ),
    "kv_cache.mamba_cache_mode": (
        Default("none", _HYBRID_CACHE),
        Default("align", _HYBRID_CACHE, 26),
    ),
    "kv_cache.watermark": (
        Default(0.0, "no such option; nothing in vllm/v1/core keeps one"),
        Default(0.0, f"SchedulerConfig.watermark {_SCHEDULER}", 24),
    ),
    LARGEST_GRAPH: (
        Default(LargestGraph(512, 512, with_drafts=False), _GRAPH_SIZES),
        Default(LargestGraph(512, 512), _GRAPH_SIZES, 13),
        Default(LargestGraph(512, 1024), _GRAPH_SIZES, 28),
    ),
    SAMPLER: (
        Default("flashinfer", f"{_SAMPLE}, where it is installed, as in vLLM's images"),
        Default("pytorch", f"{_SAMPLE}; flashinfer with VLLM_USE_FLASHINFER_SAMPLER=1", LATER),
        Default("triton", f"{_SAMPLE}, from 8 rows on; vLLM pull request 33538", 17),
        Default("flashinfer", f"{_SAMPLE}; vLLM pull request 40376", 21),
    ),
    RESERVE: (
        Default(False, "no such option; Scheduler.schedule in vllm/v1/core/sched asks for a chunk"),
        Default(True, f"SchedulerConfig.scheduler_reserve_full_isl {_SCHEDULER}", 19),
    ),
    INTERVAL: (
        Default(1, "no such option; any step of Scheduler.schedule computes prompts"),
        Default(1, f"SchedulerConfig.prefill_schedule_interval {_SCHEDULER}", 24),
    ),
    f"{EXPERTS}bf16": _experts(
        "bf16",
        _FIRST_EXPERTS,
        (
            20,
            moe_backends.OF_0_24,
            f"_get_priority_backends {_ORACLE}; on Hopper FlashInfer's to 0.22, not timed here",
        ),
    ),
    f"{EXPERTS}fp8": _experts("fp8", _FIRST_EXPERTS),
    f"{EXPERTS}fp8_static": _experts("fp8_static", _FIRST_EXPERTS, _ORACLE_EXPERTS),
    f"{EXPERTS}fp8_block": _experts(
        "fp8_block",
        _FIRST_EXPERTS,
        (14, moe_backends.OF_0_14, f"select_fp8_moe_backend {_ORACLE}"),
        _ORACLE_EXPERTS,
        (29, moe_backends.OF_0_33, f"resolve_fp8_moe_weight_block_shape {_ORACLE}"),
    ),
    f"{EXPERTS}int4": _experts("int4", _FIRST_EXPERTS),
    f"{EXPERTS}int8": _experts("int8", _FIRST_EXPERTS),
    f"{EXPERTS}mxfp4": _experts(
        "mxfp4",
        (
            OLDEST,
            moe_backends.OF_0_11,
            (
                "get_mxfp4_backend in vllm/model_executor/layers/quantization/mxfp4.py: "
                "has_triton_kernels, a package that 0.11 neither has nor requires"
            ),
        ),
        (12, *_FIRST_EXPERTS[1:]),
    ),
    f"{EXPERTS}mxfp4_afp8": _experts("mxfp4_afp8", _FIRST_EXPERTS),
    f"{EXPERTS}nvfp4": _experts("nvfp4", _FIRST_EXPERTS, _ORACLE_EXPERTS),
    ATTENTION: (
        Default(attention_backends.OF_0_12, _PRIORITIES),
        Default(attention_backends.OF_0_19, _PRIORITIES, 16),
    ),
    PARSES: (
        Default(PARSE, _BURSTS, seen=(11,)),
        Default(0.0, "not measured: a part of front_end.request like any other", 12),
    ),
    TEMPLATES: (
        Default(0.0, f"{_CHAT} has none"),
        Default(TEMPLATE, f"{_CHAT}; {_BURSTS}", 11, seen=(11,)),
        Default(0.0, f"{_CHAT}: kept", LATER),
    ),
    "memory.keeps_buffers": (
        Default(False, "fused_experts_impl in vllm/model_executor/layers"),
        Default(True, _WORKSPACE, 14),
    ),
    "memory.beside_torch": (
        Default(
            BesideTorch(0.13 * GIB, 0.55 * GIB, 0.55 * GIB),
            f"{_LOGS} on H100s",
            seen=tuple(range(11, 18)),
        ),
        Default(
            BesideTorch(0.25 * GIB, 0.25 * GIB, 2.1 * GIB),
            f"{_LOGS}: 0.18 and 0.19 on H100s, 0.27 on other GPUs",
            18,
            seen=(18, 19, 27),
        ),
    ),
    "memory.counts_graphs": (
        Default(False, f"{_AVAILABLE} knows none"),
        Default(
            True, f"VLLM_MEMORY_PROFILER_ESTIMATE_CUDAGRAPHS in vllm/envs.py; {_AVAILABLE}", 20
        ),
    ),
    "rules.uncached_first": (Default(False, _FREE_BLOCKS), Default(True, _FREE_BLOCKS, 24)),
    "rules.threshold_spares_one": (Default(False, _SCHEDULE), Default(True, _SCHEDULE, 31)),
    "rules.pass_goes_on": (Default(False, _SCHEDULE), Default(True, _SCHEDULE, 33)),
    "rules.local_cadence": (Default(False, _SCHEDULE), Default(True, _SCHEDULE, 33)),
    "rules.held_spares_hits": (Default(False, _SCHEDULE), Default(True, _SCHEDULE, 25)),
    "rules.batch_queue": (Default(True, _QUEUE),),
    "rules.async_pipelines": (
        Default(False, f"{_POST_INIT}, which turns it off in 0.14"),
        Default(
            True,
            "GPUModelRunner._pp_receive_prev_sampled_token_ids_to_input_batch in "
            "vllm/v1/worker/gpu_model_runner.py: the first rank waits for the tokens of each batch",
            16,
        ),
    ),
    "rules.staggers_decodes": (
        Default(False, _NO_STAGGER),
        Default(True, f"{_NO_STAGGER}, with model runner V2", 24),
    ),
    "rules.fills_queue": (Default(False, _QUEUE), Default(True, _QUEUE, 23)),
    "rules.drains_preempted": (
        Default(False, _SCHEDULE),
        Default(True, f"{_SCHEDULE}: num_stale_output_tokens", 27),
    ),
    "rules.caches_verified": (Default(False, _UPDATE), Default(True, _UPDATE, 33)),
    "rules.pads_prompts": (
        Default(False, _SCHEDULE),
        Default(True, f"{_SCHEDULE}: pad_spec_decode", 25),
    ),
    "rules.hashes_ahead": (
        Default(False, _HASH),
        Default(True, f"num_hash_lookahead_tokens of {_HASH}", 33),
    ),
    "rules.hybrid_drops": (
        Default(1, f"{_HYBRID}: full attention and windows each lose a block"),
        Default(None, f"{_HYBRID}: windows lose a block in every round", 14),
        Default(1, f"{_HYBRID}: is_simple_hybrid ends after one round", 16),
        Default(0, f"{_HYBRID}: windows look one block further", 20),
    ),
    HIDES: (
        Default(Hidden(0.58e-3, 19e-6), _PAIRS, seen=(FIRST_PATCH,)),
        Default(Hidden(0.0, 0.0), _ITL_OF_0_11, LATER, seen=(LATER,)),
        Default(
            Hidden(inf, inf),
            "not in the package; runs of 0.15 and 0.19 (docs/validation.md)",
            14,
            seen=(15, 19),
        ),
    ),
    "rules.keeps_counts": (
        Default(False, f"SamplingMetadata.output_token_ids {_V1_SAMPLE}"),
        Default(
            True,
            "PenaltiesState in vllm/v1/worker/gpu/sample/penalties.py, with model runner V2",
            24,
        ),
    ),
    "rules.admits_lookahead": (
        Default(False, f"{_SCHEDULE}: effective_lookahead_tokens"),
        Default(True, f"{_SCHEDULE}: limit_lookahead_tokens", 23),
    ),
    "rules.caps_windows": (
        Default(False, "no such cap; get_num_blocks_to_allocate counts all tokens"),
        Default(True, _CAP, 20),
    ),
    "rules.returns_unseen": (
        Default(False, f"{_SLOTS}: total_computed_tokens"),
        Default(True, f"{_SLOTS}: num_in_flight_tokens", 26),
    ),
    "rules.states_wait": (
        Default(False, f"{_MAMBA} notes no blocks of a step"),
        Default(True, f"cached_blocks_this_step of {_MAMBA}", 17),
    ),
    "rules.states_stop_shared": (
        Default("never", f"{_SCHEDULE} ends no piece for states"),
        Default("at_first", f"num_uncached_common_prefix_tokens of {_ALIGNED}", 24),
        Default("always", f"shared_prefix_boundary of {_ALIGNED}", 26),
    ),
    "rules.states_go_on": (
        Default(False, f"{_SCHEDULE} ends no piece for states"),
        Default(True, f"next_block_boundary of {_ALIGNED}", 26),
    ),
    "rules.reserves_prefills": (
        Default(False, f"{_SCHEDULE}: allocate_slots of a load"),
        Default(True, f"{_SCHEDULE}: _inflight_prefill_reserved_blocks", 23),
    ),
    "rules.loaded_first": (
        Default(False, f"{_SCHEDULE}: skipped_waiting"),
        Default(True, f"{_SCHEDULE}: kv_holding_waiting", 31),
    ),
    "rules.preempted_first": (
        Default(True, f"{_SCHEDULE}: skipped_waiting_requests are prepended"),
        Default(False, f"{_SCHEDULE}: _select_waiting_queue_for_scheduling", 18),
    ),
    "rules.defers_frees": (
        Default(False, f"{_SCHEDULE}: _preempt_request"),
        Default(True, f"{_SCHEDULE}: defer_block_free", 24),
    ),
    "rules.spares_in_flight": (
        Default(False, f"{_SCHEDULE}: _preempt_request"),
        Default(True, f"{_SCHEDULE}: _request_blocks_can_be_freed", 30),
    ),
    "rules.async_drafts": (
        Default(("mtp", "eagle", "eagle3"), f"EagleModelTypes of {_POST_INIT}"),
        Default(("draft_model", "mtp", "eagle", "eagle3"), _POST_INIT, 28),
        Default(
            METHODS,
            f"use_v2_model_runner of {_HASH}: model runner V2 drafts with all of them",
            33,
        ),
    ),
    "rules.async_any_drafts": (
        Default(False, f"{_POST_INIT} in 0.14"),
        Default(True, f"{_POST_INIT}: draft_model, and ngram_gpu", 18),
    ),
}

_THRESHOLD = "scheduler.long_prefill_token_threshold"

LACKS: Mapping[str, tuple[Lack, ...]] = {
    "scheduler.preemption": (
        Lack(("recompute",), "v1 computes a preempted request again", "recompute, or leave it out"),
    ),
    "kv_cache.swap_space": (
        Lack((None,), "v1 swaps nothing", "kv_cache.tiers for blocks in host memory"),
    ),
    "kv_cache.watermark": (Lack((0.0,), until=23),),
    "max_model_len": (
        Lack(
            (),
            "auto came in 0.14",
            "the tokens that fit, or engine: vllm-0.14 or newer",
            (AUTO,),
            until=13,
        ),
    ),
    PARTIAL: (
        Lack(
            (None,),
            "it does not start with it: Concurrent Partial Prefill is not supported",
            _THRESHOLD,
            until=26,
        ),
        Lack((None,), "it was removed in 0.27", _THRESHOLD, since=27),
    ),
    "kv_cache.mamba_cache_mode": (
        Lack((), "", "all", ("align",), until=14),
        Lack((), "all was removed in 0.32", "align, or leave it out", ("all",), since=32),
    ),
    RESERVE: (Lack((False,), until=18),),
    INTERVAL: (Lack((1,), until=23),),
    "prefill_context_parallel_size": (
        Lack(
            (1,),
            "its attention asserts supports_pcp, which no back end has before 0.33",
            "engine: vllm-0.33, or leave it out",
            until=32,
        ),
    ),
}

NOTES: Mapping[str, Note] = {
    "block size": Note(
        "some attention backends raise it, mostly to 64: say kv_cache.block_size", OLDEST
    ),
    "tokens of a step, experts exchanged by deepep_low_latency or nixl_ep": Note(
        "256 (use_batched_dp_moe in vllm/config/parallel.py, since 0.20): say "
        "max_num_batched_tokens",
        20,
    ),
    "preemption with a step in flight": Note(
        "the request waits until that step is over, which it is when the next one but one is "
        "planned (Scheduler.schedule, since 0.27); not so in a pipeline",
        27,
    ),
}

_RELEASES = Releases(DEFAULTS, LACKS, NOTES)

VERSIONS: Mapping[str, EngineVersion] = {
    version.name: version for version in (EngineVersion(minor, _RELEASES) for minor in RELEASES)
}
"""By name, the oldest first."""

NEWEST = VERSIONS[f"vllm-0.{LATEST}"]
"""The engine that is imitated by default: what `pip install vllm` gives."""
