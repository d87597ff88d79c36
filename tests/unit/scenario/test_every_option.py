"""Every option of an engine changes a result; one without a case here fails."""

import tempfile
from dataclasses import dataclass, field
from typing import Any

import pytest

from mist_sim import simulate
from mist_sim.models import load_model
from mist_sim.scenario.options import engine_options
from tests.reference.measured import measured_layers, measured_steps
from tests.reference.regression_files import regression_file
from tests.reference.scenarios import PRESSED, scenario

FOUR = {"tensor_parallel_size": 4}
H100 = {"gpu": "h100-sxm"}
EXPERTS = H100 | {"model": "qwen3-30b-a3b", "tensor_parallel_size": 2}
STEPS = H100 | {"predictor": {"type": "table", "format": "steps", "path": measured_steps()}}
LEARNED = H100 | {"predictor": {"type": "regression", "path": regression_file()}}
LAYERS = measured_layers(load_model("llama-3.1-8b").num_layers)
LINEAR = H100 | {"predictor": {"type": "linear", "step": "10 ms"}}
ASCEND = {"gpu": "ascend-910b3", "predictor": {"type": "bestserve"}}
SMALL = {
    "gpu": "l4",
    "kv_cache.num_gpu_blocks_override": None,
    "kv_cache.gpu_memory_utilization": 0.8,
}
FULL_OF_EXPERTS = H100 | {
    "model": "gpt-oss-20b",
    "kv_cache.num_gpu_blocks_override": None,
    "kv_cache.gpu_memory_utilization": 0.2,
}
SWAPS = {"scheduler.preemption": "swap"}
TIER = {"kv_cache.tiers": [{"name": "cpu", "capacity": "128 MiB"}]}
NGRAM = {"method": "ngram", "num_speculative_tokens": 3, "acceptance_rate": 0.7}
DRAFTS = {"scheduler.max_num_seqs": 64, "tensor_parallel_size": 2, "speculative_config": NGRAM}
ASSUMED = {"speculative_config": {"method": "ngram", "num_speculative_tokens": 3}}
QWEN = {"speculative_config": NGRAM | {"method": "draft_model", "model": "qwen3-4b"}}
DRAFTER = NGRAM | {"method": "draft_model", "model": "llama-3.2-1b"}
ROOM = {"host_memory": "320 MiB"}
STAGES = {
    "gpu": "h100-sxm",
    "scheduler": {"type": "continuous", "max_num_seqs": 4},
    "kv_cache.enable_prefix_caching": False,
    "kv_cache.num_gpu_blocks_override": 200,
    "tensor_parallel_size": 2,
    "resharding": {"pipeline_parallel_size": 2, **ROOM},
}
THRESHOLD = STAGES | {"resharding": {"pipeline_parallel_size": 2, "policy": "threshold"}}
BOUND = STAGES | {
    "resharding": {"pipeline_parallel_size": 2, "policy": "ttft_bound", "ttft_limit": "200 ms"}
}
DEADLINE = {"ttft_deadline": "500 ms"}
TOP_P = {"sampling": {"top_p": 0.9}}
GREEDY = {"sampling": {"temperature": 0.0}}


@dataclass(frozen=True)
class Case:
    """An option and another value of it.

    given: what else the client has, with either value. replaces: the key that is set, where that
    is another one. workload: what the value needs there.
    """

    key: str
    value: Any
    given: dict[str, Any] = field(default_factory=dict)
    replaces: str = ""
    workload: dict[str, Any] = field(default_factory=dict)


CASES = [
    Case("model", "qwen3-4b"),
    Case("gpu", "h200"),
    Case("engine", "vllm-0.14"),
    Case("quantization", "fp8"),
    Case("tensor_parallel_size", 2),
    Case("pipeline_parallel_size", 2),
    Case("decode_context_parallel_size", 2, FOUR | H100 | {"model": "qwen2.5-1.5b"}),
    Case(
        "prefill_context_parallel_size",
        2,
        FOUR | {"gpu": "b300", "model": "deepseek-v3", "enable_expert_parallel": True},
    ),
    Case("virtual_engines", True, {"pipeline_parallel_size": 2}),
    Case("data_parallel_size", 2),
    Case("enable_expert_parallel", True, EXPERTS),
    Case("expert_load_imbalance", 1.5, EXPERTS | {"enable_expert_parallel": True}),
    Case(
        "all2all_backend",
        "deepep_low_latency",
        EXPERTS | {"enable_expert_parallel": True, "data_parallel_size": 4},
    ),
    Case("moe_backend", "marlin", FULL_OF_EXPERTS),
    *(
        Case("all_reduce", way, FOUR)
        for way in ("auto", "ring", "tree", "host_shared", "bestserve")  # the L40S has host
    ),
    *(Case("host", host, FOUR) for host in ("pcie-peer", {"peer_access": False, "pcie_lanes": 8})),
    Case("scheduler.type", "static", replaces="scheduler"),
    Case("scheduler.type", "continuous", replaces="scheduler"),
    Case("scheduler.type", "mixed", replaces="scheduler"),
    Case("scheduler.max_num_seqs", 2),
    Case("scheduler.order", "priority", workload={"priorities": {0: 1.0, 5: 1.0}}),
    Case("scheduler.order", "least_work_left"),
    Case("scheduler.order", "shortest_prompt_first"),
    Case("scheduler.preemption", "swap"),
    Case("scheduler.preemption", "async_swap"),
    Case("scheduler.max_num_batched_tokens", 512),
    Case("scheduler.max_num_batched_tokens", 512, {"scheduler": {"type": "mixed"}}),
    Case("scheduler.long_prefill_token_threshold", 64),
    Case("scheduler.max_num_partial_prefills", 1, {"scheduler.long_prefill_token_threshold": 64}),
    Case("scheduler.scheduler_reserve_full_isl", False),
    Case("scheduler.prefill_schedule_interval", 4),
    Case("kv_cache.block_size", 8),
    Case("kv_cache.gpu_memory_utilization", 0.76, SMALL),
    Case("kv_cache.kv_cache_dtype", "fp8"),
    Case("kv_cache.num_gpu_blocks_override", 90),
    Case("kv_cache.context_memory", "1200 MiB", SMALL),
    Case("kv_cache.watermark", 0.3),
    Case("kv_cache.swap_space", "64 MiB", SWAPS),
    Case("kv_cache.enable_prefix_caching", False),
    Case("kv_cache.tiers.eviction", "fifo", TIER, "kv_cache.tiers.0.eviction"),
    Case("kv_cache.tiers.capacity", "64 MiB", TIER, "kv_cache.tiers.0.capacity"),
    Case("kv_cache.tiers.read_bandwidth", "1 GB/s", TIER, "kv_cache.tiers.0.read_bandwidth"),
    Case("kv_cache.tiers.latency", "5 ms", TIER, "kv_cache.tiers.0.latency"),
    Case("kv_cache.tiers.write_policy", "write_back", TIER, "kv_cache.tiers.0.write_policy"),
    Case("kv_cache.tiers.name", "ssd", TIER, "kv_cache.tiers.0.name"),
    Case("predictor.type", STEPS["predictor"], H100, "predictor"),
    Case("predictor.path", regression_file(slower=2.0), LEARNED),
    Case("predictor.enforce_eager", True, H100),  # on the L40S the host is never the slower one
    Case("predictor.max_cudagraph_capture_size", 16),
    Case("predictor.cudagraph_capture_sizes", [8, 512]),
    Case("predictor.composition", "algorithm_1", ASCEND),
    Case(
        "predictor.format",
        {"type": "table", "format": "layer_profile", "path": LAYERS},
        STEPS,
        "predictor",
    ),
    Case("step_time_scale.prompts", 1.1, replaces="step_time_scale"),
    Case("step_time_scale.prompts", 1.2),
    Case("step_time_scale.decodes", 1.2),
    Case("predictor.step", "12 ms", LINEAR),
    Case("predictor.prefill_token", "20 us", LINEAR),
    Case("predictor.decode", "100 us", LINEAR),
    Case("overhead.step", "5 ms"),
    Case("overhead.prefill_step", "5 ms"),
    Case("overhead.sequence", "40 us"),
    Case("overhead.exposed_step", "1 ms"),
    Case("overhead.exposed_sequence", "40 us"),
    Case("overhead.request", "20 ms"),
    Case("overhead.prompt_token", "20 us"),
    Case("sampling.temperature", 0.0, TOP_P),
    Case("sampling.top_p", 1.0, {"sampling": {"top_k": 20}}),
    Case("sampling.top_k", 20, TOP_P),
    Case("sampling.repetition_penalty", 1.1, GREEDY),
    Case("sampling.presence_penalty", 1.5, GREEDY),
    Case("sampling.frequency_penalty", 0.5, GREEDY),
    Case("sampling.generation_config", "vllm"),
    Case("sampling.sampler", "pytorch", TOP_P),
    Case("speculative_config.num_speculative_tokens", 2, DRAFTS),
    Case("speculative_config.acceptance_rate", 0.9, DRAFTS),
    Case("speculative_config.acceptance_rate", [0.7, 0.7, 0.1], DRAFTS),
    Case("speculative_config.text", "rewrite", ASSUMED),
    Case("speculative_config.drafting_time", "1 ms", DRAFTS),
    Case(
        "speculative_config.method",
        "mtp",
        DRAFTS | {"model": "deepseek-v3", "gpu": "b200", "tensor_parallel_size": 8},
    ),
    Case("speculative_config.method", "eagle", DRAFTS),
    Case("speculative_config.method", DRAFTER, DRAFTS, "speculative_config"),
    Case(
        "speculative_config.model",
        "qwen3-0.6b",
        DRAFTS | {"model": "qwen3-32b", "gpu": "h200"} | QWEN,
    ),
    Case(
        "speculative_config.draft_tensor_parallel_size", 1, DRAFTS | {"speculative_config": DRAFTER}
    ),
    Case("async_scheduling", False),
    Case("admission.max_num_waiting", 3),
    Case("admission.drop_expired", True, workload=DEADLINE),
    Case("admission.early_rejection", True, workload=DEADLINE),
    Case("max_model_len", 300),
    Case("power_limit", "450 W", H100),
    Case("predictor.piggyback", 1.0, H100 | {"predictor": {"type": "seesaw"}}),
    Case(
        "resharding.tensor_parallel_size", {"tensor_parallel_size": 2, **ROOM}, STAGES, "resharding"
    ),
    Case(
        "resharding.pipeline_parallel_size",
        {"pipeline_parallel_size": 4, **ROOM},
        STAGES
        | FOUR
        | {"resharding": {"tensor_parallel_size": 2, "pipeline_parallel_size": 2, **ROOM}},
        "resharding",
    ),
    Case(
        "resharding.policy",
        {"pipeline_parallel_size": 2, "policy": "decode_prioritised"},
        STAGES,
        "resharding",
    ),
    Case("resharding.threshold", 0.1, THRESHOLD),
    Case("resharding.ttft_limit", "2 s", BOUND),
    Case("resharding.to_prefill", 5.0, BOUND),
    Case("resharding.to_decode", 0.0, BOUND),
    Case("resharding.prefetch", False, STAGES),
    Case("resharding.running", "drain", STAGES),
    Case("resharding.host_memory", "200 MiB", STAGES),
    Case("resharding.host_bandwidth", "1 GB/s", STAGES),
    Case("resharding.host_copy_bandwidth", "100 MB/s", STAGES),
    Case("resharding.kv_layout_efficiency", 0.01, STAGES),
]

ELSEWHERE = {
    "attention_backend": "test_backends.py",  # the error bar alone where no figures are known
    "gpu_price": "test_cost.py",
    "language_model_only": "test_images.py",
    "images.mm_encoder_tp_mode": "test_images.py",
    "kv_cache.mamba_cache_mode": "test_state_caching.py",
    "kv_cache.eviction": "../golden/test_mooncake.py",
    "kv_cache.tiers.at": "test_shared_links.py",
    "kv_cache.tiers.loads_in_step": "test_memory_tiers.py",
    "kv_cache.tiers.shared": "test_shared_tiers.py",
    "role": "test_hand_over.py",
    "predictor.subset": "test_tables.py",
    "predictor.timeout": "test_external_sources.py",
    "predictor.command": "test_external_sources.py",
    **dict.fromkeys(
        [f"lora.{key}" for key in ("max_loras", "max_lora_rank", "max_cpu_loras")]
        + ["lora.fully_sharded_loras", "lora.storage_bandwidth"],
        "test_adapters.py",
    ),
}
"""Tests of options that need a package, a file or a program of their own."""


def outcome(client: dict[str, Any], workload: dict[str, Any]) -> list[object]:
    """Return what users see of a run: when tokens came, and from where blocks were loaded."""
    changes = {f"workload__{key}": value for key, value in workload.items()}
    changes |= {f"clients__0__{key}": value for key, value in client.items()}
    result = simulate(scenario(**PRESSED | changes))
    when = result.requests.drop(columns=["energy", "gpu_seconds"])  # nearly all change these
    return [when.to_csv(), result.summary.get("tier_hit_rates")]


def outcome_without(given: dict[str, Any]) -> list[object]:
    """Return the outcome without the option; many cases are given the same."""
    key = repr(given)
    if key not in _WITHOUT:
        _WITHOUT[key] = outcome(given, {})
    return _WITHOUT[key]


_WITHOUT: dict[str, list[object]] = {}


def _name(case):
    """Return a name that is the same in all processes: files lie in folders of their own."""
    text = f"{case.key}: {case.value}"
    return case.key if tempfile.gettempdir() in text else text


@pytest.mark.parametrize("case", CASES, ids=_name)
def test_every_option_changes_a_result(case):
    value = {case.replaces or case.key: case.value}
    assert outcome_without(case.given) != outcome(case.given | value, case.workload)


def test_no_option_is_forgotten():
    """A new option needs a case above, or a test that is named there."""
    assert {case.key for case in CASES} | set(ELSEWHERE) == {o.key for o in engine_options()}
