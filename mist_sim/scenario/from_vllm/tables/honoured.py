"""Arguments of `vllm serve` that a key of the scenario stands for, and how their values are read.

Source: `EngineArgs.add_cli_args` in `vllm/engine/arg_utils.py`, 0.12 to 0.33.
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


HONOURED: Mapping[str, Honoured] = {
    "--model": Honoured("model"),
    "--quantization": Honoured("quantization", short="-q"),
    "--tensor-parallel-size": Honoured("tensor_parallel_size", int, "-tp"),
    "--pipeline-parallel-size": Honoured("pipeline_parallel_size", int, "-pp"),
    "--prefill-context-parallel-size": Honoured("prefill_context_parallel_size", int, "-pcp"),
    "--decode-context-parallel-size": Honoured("decode_context_parallel_size", int, "-dcp"),
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
