"""Words of other tools, and the matching keys and values of a scenario.

Sources: the arguments of `vllm serve` and `vllm bench serve` (`vllm/engine/arg_utils.py`,
`vllm/benchmarks/`, 0.33), of SGLang's server (`python/sglang/srt/server_args.py`, 0.5) and
TensorRT-LLM (`TorchLlmArgs`, 1.3), of AIPerf and of the routers of llm-d and Dynamo.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

_POISSON = "workload.arrivals: {type: poisson, rate: 10 /s}"
_USERS = "workload.arrivals: {type: closed_loop, concurrency: 16}"
_PROMPT = "workload.lengths.prompt with type: synthetic, such as {type: fixed, tokens: 1000}"
_OUTPUT = "workload.lengths.output of drawn lengths, such as {type: fixed, tokens: 100}"
_PREFIXES = "clients.N.kv_cache.enable_prefix_caching"

KEYS: Mapping[str, str] = {
    # load
    "request_rate": _POISSON,
    "qps": _POISSON,
    "rps": _POISSON,
    "burstiness": "workload.arrivals: {type: gamma, rate: 10 /s, burstiness: 0.5}",
    "max_concurrency": f"workload.max_concurrency, or without a rate {_USERS}",
    "concurrency": _USERS,
    "num_prompts": "workload.lengths.num_requests or workload.trace.num_requests",
    "request_count": "workload.lengths.num_requests or workload.trace.num_requests",
    "dataset_name": "workload.lengths or workload.trace",
    "dataset_path": "workload.trace: {type: ..., path: ...}",
    **dict.fromkeys(("input_len", "random_input_len", "isl", "input_tokens"), _PROMPT),
    **dict.fromkeys(("output_len", "random_output_len", "osl", "output_tokens"), _OUTPUT),
    "num_warmups": "warmup, a duration",
    "goodput": "slo: {ttft: 500 ms, tpot: 50 ms, e2el: 9 s}",
    # network, in the wrong place
    **{word: f"network.{word}" for word in ("spans_nodes", "topology", "nodes", "granularity")},
    # engine, in the wrong place
    **{
        word: f"clients.N.{word}"
        for word in (
            "gpu",
            "quantization",
            "tensor_parallel_size",
            "pipeline_parallel_size",
            "data_parallel_size",
            "enable_expert_parallel",
            "speculative_config",
            "scheduler",
            "kv_cache",
            "async_scheduling",
            "max_model_len",
        )
    },
    **{
        word: f"clients.N.scheduler.{word}"
        for word in ("max_num_seqs", "max_num_batched_tokens", "long_prefill_token_threshold")
    },
    **{
        word: f"clients.N.kv_cache.{word}"
        for word in (
            "block_size",
            "gpu_memory_utilization",
            "kv_cache_dtype",
            "num_gpu_blocks_override",
            "enable_prefix_caching",
            "watermark",
        )
    },
    # engine
    "scale": "clients.N.step_time_scale, of any predictor",
    "dtype": "clients.N.quantization, for weights of less than 16 bits",
    "tp": "clients.N.tensor_parallel_size",
    "tp_size": "clients.N.tensor_parallel_size",
    "pp": "clients.N.pipeline_parallel_size",
    "pp_size": "clients.N.pipeline_parallel_size",
    "dp": "clients.N.data_parallel_size",
    "dp_size": "clients.N.data_parallel_size",
    "ep_size": "clients.N.enable_expert_parallel",
    "enable_chunked_prefill": "clients.N.scheduler.type: chunked (on) or mixed (off)",
    "chunked_prefill_size": "clients.N.scheduler.max_num_batched_tokens",
    "max_num_tokens": "clients.N.scheduler.max_num_batched_tokens",
    "max_batch_size": "clients.N.scheduler.max_num_seqs",
    "max_running_requests": "clients.N.scheduler.max_num_seqs",
    "policy": "clients.N.scheduler.order",
    "scheduling_policy": "clients.N.scheduler.order",
    "schedule_policy": "clients.N.scheduler.order",
    "preemption_mode": "clients.N.scheduler.preemption",
    "mem_fraction_static": "clients.N.kv_cache.gpu_memory_utilization",
    "free_gpu_memory_fraction": "clients.N.kv_cache.gpu_memory_utilization",
    "num_gpu_blocks": "clients.N.kv_cache.num_gpu_blocks_override",
    "page_size": "clients.N.kv_cache.block_size",
    "disable_radix_cache": f"{_PREFIXES}: false",
    "enable_block_reuse": _PREFIXES,
    "context_length": "clients.N.max_model_len",
    "max_seq_len": "clients.N.max_model_len",
    "cuda_graph_max_bs": "clients.N.predictor.max_cudagraph_capture_size",
    "disable_cuda_graph": "clients.N.predictor.enforce_eager",
    "disable_overlap_schedule": "clients.N.async_scheduling: false",
    "kv_offloading_size": "clients.N.kv_cache.tiers: [{name: cpu, capacity: 64 GiB}]",
    "kv_transfer_config": "clients.N.role, and network between clients",
    "disaggregation_mode": "clients.N.role, and network between clients",
    "max_num_queued_reqs": "clients.N.admission.max_num_waiting",
    "num_speculative_tokens": "clients.N.speculative_config.num_speculative_tokens",
    "model_path": "model",
    "vllm_version": "engine",
    "skip_failed": "workload.trace.skip: cancelled",
    "skip_empty": "workload.trace.skip: bad",
    "num_replicas": "clients.N.count",
    "replicas": "clients.N.count",
}
"""Keys, and the path that they have here."""

_AWQ = "quantization: int4, or a model whose config.json says how it is quantized"
_AS_IT_IS = "null, or leave the key out: then it is as the checkpoint has it, and fp8 is fewer bits"

VALUES: Mapping[str, str] = {
    # units of times
    **dict.fromkeys(("sec", "secs", "second", "seconds"), "s"),
    **dict.fromkeys(("msec", "millis", "millisecond", "milliseconds"), "ms"),
    **dict.fromkeys(("µs", "μs", "usec", "micros", "microsecond", "microseconds"), "us"),
    **dict.fromkeys(("nsec", "nanos", "nanosecond", "nanoseconds"), "ns"),
    # quantization
    **dict.fromkeys(("none", "auto", "bf16", "bfloat16", "fp16", "float16", "half"), _AS_IT_IS),
    "awq": _AWQ,
    "awq_marlin": _AWQ,
    "gptq": _AWQ,
    "gptq_marlin": _AWQ,
    "modelopt": "quantization: fp8",
    "w8a8_int8": "quantization: int8",
    # schedulers
    "lpm": "order: fcfs; prefix-aware orders are not simulated",
    "dfs-weight": "order: fcfs; prefix-aware orders are not simulated",
    "lof": "order: shortest_prompt_first or least_work_left, the nearest that there are",
    "max_utilization": "type: chunked, which admits and preempts",
    "guaranteed_no_evict": "type: chunked; reserving the longest answer is not simulated",
    # routers
    "prefix_aware": "prefix_affinity",
    "cache_aware": "prefix_affinity",
    "kv_aware": "prefix_affinity",
    "kv": "prefix_affinity",
    "consistent_hash": "session_affinity",
    "consistent_hashing": "session_affinity",
    "session": "session_affinity",
    "least_loaded": "least_outstanding",
    "least_request": "least_outstanding",
    "p2c": "power_of_two",
    "power_of_two_choices": "power_of_two",
    "roundrobin": "round_robin",
    # arrivals and lengths
    "inf": "arrivals: all_at_once",
    "concurrency": "type: closed_loop",
    "closed": "type: closed_loop",
    "random": "type: synthetic",
}
"""Values of options that choose by name, and what to write instead."""


def where(key: str) -> str:
    """Return a sentence with the key here for another tool's key; empty if there is none."""
    place = KEYS.get(_plain(key))
    return f"; here it is {place}." if place else ""


def instead(value: str, known: Iterable[str]) -> str:
    """Return a sentence with the value to write in place of another tool's; empty if unknown.

    known: what may be written there.
    """
    text = VALUES.get(_plain(value)) or VALUES.get(value.lower(), "")
    return f"; here write {text}." if any(name in text for name in known) else ""


def _plain(word: str) -> str:
    return word.lower().lstrip("-").replace("-", "_")
