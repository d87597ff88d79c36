"""The arguments of `vllm serve`, by what becomes of each: a key here, nothing, or a refusal.

Source: `EngineArgs.add_cli_args` in `vllm/engine/arg_utils.py`, the front end's arguments in
`vllm/entrypoints/openai/cli_args.py` (0.12) and `vllm/entrypoints/common/cli_args.py` (0.33), and
`FlexibleArgumentParser` in `vllm/utils/argparse_utils.py`.
"""

from __future__ import annotations

import json
import re
from argparse import ArgumentTypeError
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from mist_sim.errors import brief, cut

_POWERS = {letter: power for power, letter in enumerate("kmgt", start=1)}


def whole_number(text: str) -> int:
    """Return a number such as 8192, 8k (8,000) or 8K (8,192); vLLM's `human_readable_int`."""
    found = re.fullmatch(r"(\d+(?:\.\d+)?)([kmgtKMGT])", text.strip())
    if not found:
        return int(text)
    number, letter = found.groups()
    if letter.islower():
        return round(float(number) * float(1000 ** _POWERS[letter]))
    if "." in number:
        raise ArgumentTypeError(f"decimals are not allowed with {letter}, got {brief(text)}")
    return int(number) * int(1024 ** _POWERS[letter.lower()])


def context_length(text: str) -> int | str:
    """Return a length in tokens; "auto" where vLLM looks for one that fits (`auto`, -1)."""
    return "auto" if text.strip().lower() in ("-1", "auto") else whole_number(text)


def mapping(text: str) -> dict[str, Any]:
    """Return a JSON object."""
    try:
        found = json.loads(text)
    except ValueError as error:
        raise ArgumentTypeError(f"not valid JSON: {error}") from None
    if not isinstance(found, dict):
        raise ArgumentTypeError(f"must be a JSON object, got {cut(text)}")
    return found


@dataclass(frozen=True)
class Honoured:
    """An argument with a counterpart.

    key: its path below a client. read: what reads its text; None for a switch. short: another
    spelling. many: whether it takes several values. choices: all that vLLM takes, where a scenario
    may say more.
    """

    key: str
    read: Callable[[str], Any] | None = str
    short: str = ""
    many: bool = False
    choices: tuple[str, ...] | None = None


@dataclass(frozen=True)
class Refused:
    """An argument that asks for what is not simulated, unless its value is a neutral one.

    reason: why. instead: what to write.
    """

    reason: str
    instead: str
    neutral: tuple[str, ...] = ()
    short: str = ""


HONOURED: Mapping[str, Honoured] = {
    "--model": Honoured("model"),
    "--quantization": Honoured("quantization", short="-q"),
    "--tensor-parallel-size": Honoured("tensor_parallel_size", int, "-tp"),
    "--pipeline-parallel-size": Honoured("pipeline_parallel_size", int, "-pp"),
    "--data-parallel-size": Honoured("data_parallel_size", int, "-dp"),
    "--enable-expert-parallel": Honoured("enable_expert_parallel", None, "-ep"),
    "--max-model-len": Honoured("max_model_len", context_length),
    "--async-scheduling": Honoured("async_scheduling", None),
    "--max-num-seqs": Honoured("scheduler.max_num_seqs", int),
    "--max-num-batched-tokens": Honoured("scheduler.max_num_batched_tokens", whole_number),
    "--long-prefill-token-threshold": Honoured("scheduler.long_prefill_token_threshold", int),
    "--scheduling-policy": Honoured("scheduler.order", choices=("fcfs", "priority")),
    "--scheduler-reserve-full-isl": Honoured("scheduler.scheduler_reserve_full_isl", None),
    "--prefill-schedule-interval": Honoured("scheduler.prefill_schedule_interval", int),
    "--block-size": Honoured("kv_cache.block_size", int),
    "--gpu-memory-utilization": Honoured("kv_cache.gpu_memory_utilization", float),
    "--kv-cache-dtype": Honoured("kv_cache.kv_cache_dtype"),
    "--num-gpu-blocks-override": Honoured("kv_cache.num_gpu_blocks_override", int),
    "--watermark": Honoured("kv_cache.watermark", float),
    "--enable-prefix-caching": Honoured("kv_cache.enable_prefix_caching", None),
    "--kv-offloading-size": Honoured("kv_cache.tiers", float),
    "--enforce-eager": Honoured("predictor.enforce_eager", None),
    "--max-cudagraph-capture-size": Honoured("predictor.max_cudagraph_capture_size", int),
    "--cudagraph-capture-sizes": Honoured("predictor.cudagraph_capture_sizes", int, many=True),
    "--speculative-config": Honoured("speculative_config", mapping, "-sc"),
}

_PARALLEL = "tensor, pipeline, data and expert parallelism alone are simulated"
_NO_OFFLOADING = "weights that lie outside the GPU's memory are not simulated"
_SPREAD = "several nodes are not simulated apart from links"
_BALANCER = "how requests are spread over replicas is the scenario's router"

REFUSED: Mapping[str, Refused] = {
    "--dtype": Refused(
        "weights of 16 bits, or quantized ones, alone are simulated",
        "leave it out, or --quantization",
        ("auto", "half", "float16", "bfloat16"),
    ),
    "--enable-chunked-prefill": Refused(
        "it is another scheduler here", "--set clients.0.scheduler.type=mixed", ("True",)
    ),
    "--kv-cache-memory-bytes": Refused(
        "the cache is given in blocks", "--num-gpu-blocks-override, as the engine logs it"
    ),
    "--decode-context-parallel-size": Refused(_PARALLEL, "leave it out", ("1",), "-dcp"),
    "--prefill-context-parallel-size": Refused(_PARALLEL, "leave it out", ("1",), "-pcp"),
    "--nnodes": Refused(_SPREAD, "leave it out", ("1",), "-n"),
    "--data-parallel-external-lb": Refused(
        _BALANCER, "count: N in place of data_parallel_size", ("False",), "-dpe"
    ),
    "--data-parallel-hybrid-lb": Refused(
        _BALANCER, "count: N in place of data_parallel_size", ("False",), "-dph"
    ),
    "--all2all-backend": Refused(
        "exchanges between experts are timed without backends; with deepep_low_latency and "
        "nixl_ep vLLM takes 256 tokens a step from 0.20 on",
        "leave it out, and say --max-num-batched-tokens",
    ),
    "--enable-eplb": Refused(
        "experts stay where they are", "--set clients.0.expert_load_imbalance=1.0", ("False",)
    ),
    "--enable-dbo": Refused("batches are not overlapped", "leave it out", ("False",)),
    "--disable-custom-all-reduce": Refused(
        "it is a choice of the sum here", "--set clients.0.all_reduce=ring", ("False",)
    ),
    "--cpu-offload-gb": Refused(_NO_OFFLOADING, "leave it out", ("0", "0.0")),
    "--kv-offloading-backend": Refused(
        "offloading has one kind of copy here", "leave it out", ("native",)
    ),
    "--enable-lora": Refused("adapters are not simulated", "leave it out", ("False",)),
    "--hf-overrides": Refused(
        "a model is a config.json", "--model PATH of a config.json with the changes", ("{}",)
    ),
    "--compilation-config": Refused(
        "the sizes of CUDA graphs alone are simulated",
        "--cudagraph-capture-sizes or --max-cudagraph-capture-size",
        ("{}",),
        "-cc",
    ),
    "--attention-backend": Refused("step times know no backends", "leave it out"),
    "--optimization-level": Refused("step times are of compiled models", "leave it out", ("2",)),
    "--config": Refused("a second file is not read", "its keys as arguments"),
    "--performance-mode": Refused(
        "it changes several limits", "--max-num-seqs and --max-num-batched-tokens", ("balanced",)
    ),
    "--max-num-partial-prefills": Refused(
        "vLLM 0.12 to 0.26 do not start with it, newer ones do not have it",
        "--long-prefill-token-threshold",
        ("1",),
    ),
    "--max-long-partial-prefills": Refused("one limit is simulated", "leave it out", ("1",)),
    "--max-num-active-seqs": Refused("one limit is simulated", "--max-num-seqs"),
    "--max-num-queued-reqs": Refused(
        "waiting requests alone are counted here", "--set clients.0.admission.max_num_waiting=N"
    ),
    "--max-num-queued-tokens": Refused(
        "waiting requests alone are counted here", "--set clients.0.admission.max_num_waiting=N"
    ),
    "--long-prefill-token-threshold-adaptive": Refused(
        "the threshold is fixed here", "--long-prefill-token-threshold", ("False",)
    ),
    "--scheduler-cls": Refused("a class of vLLM does not run here", "a scheduler plugin"),
    "--disable-hybrid-kv-cache-manager": Refused(
        "sliding windows have pages of their own", "leave it out", ("False",)
    ),
    "--disable-sliding-window": Refused(
        "windows are part of the model", "--model PATH of a config.json without", ("False",)
    ),
    "--stream-interval": Refused("every token is sent at once", "leave it out", ("1",)),
    "--spec-method": Refused("one form is read", "--speculative-config"),
    "--spec-model": Refused("one form is read", "--speculative-config"),
    "--spec-tokens": Refused("one form is read", "--speculative-config"),
    "--runner": Refused("text generation alone is simulated", "leave it out", ("auto", "generate")),
}

WITHOUT_EFFECT = [
    "--api-key",
    "--chat-template",
    "--chat-template-content-format",
    "--code-revision",
    "--data-parallel-address",
    "--data-parallel-backend",
    "--data-parallel-rpc-port",
    "--data-parallel-size-local",
    "--distributed-executor-backend",
    "--download-dir",
    "--generation-config",
    "--hf-token",
    "--host",
    "--limit-mm-per-prompt",
    "--load-format",
    "--log-level",
    "--max-log-len",
    "--max-logprobs",
    "--mm-processor-kwargs",
    "--override-generation-config",
    "--port",
    "--prefix-caching-hash-algo",
    "--reasoning-parser",
    "--response-role",
    "--revision",
    "--root-path",
    "--seed",
    "--served-model-name",
    "--ssl-certfile",
    "--ssl-keyfile",
    "--structured-outputs-config",
    "--swap-space",
    "--tokenizer",
    "--tokenizer-mode",
    "--tokenizer-revision",
    "--tool-call-parser",
    "--tool-parser-plugin",
    "--uds",
    "--uvicorn-log-level",
    "--api-server-count",
]
"""Arguments with a value that change no simulated time: addresses, names, text."""

SWITCHES_WITHOUT_EFFECT = [
    "--allow-credentials",
    "--disable-fastapi-docs",
    "--disable-log-requests",
    "--disable-log-stats",
    "--disable-uvicorn-access-log",
    "--enable-auto-tool-choice",
    "--enable-force-include-usage",
    "--enable-log-requests",
    "--enable-prompt-tokens-details",
    "--enable-request-id-headers",
    "--enable-server-load-tracking",
    "--enable-sleep-mode",
    "--trust-remote-code",
    "--headless",
    "--enable-reasoning",
]
"""Switches that change no simulated time."""
