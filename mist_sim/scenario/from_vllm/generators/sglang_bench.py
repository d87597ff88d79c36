"""`python -m sglang.bench_serving`.

Source: the argument parser and the data sets of python/sglang/bench_serving.py (0.5), which is
sglang/benchmark/serving.py and sglang/benchmark/datasets in newer releases.
"""

from __future__ import annotations

from typing import Any

from mist_sim.scenario.from_vllm.generators.table import Load
from mist_sim.scenario.from_vllm.generators.workloads import (
    arrivals,
    between,
    choose,
    has_file,
    keys_of,
    random_lengths,
    repeated_lengths,
    share,
)
from mist_sim.scenario.from_vllm.tables import rows_of

_GROUPS = "generated-shared-prefix"
_READS = {
    "random": ("random.",),
    "random-ids": ("random.",),
    "sharegpt": ("path",),
    _GROUPS: ("repeat.",),
    "mooncake": ("path", "trace."),
}
_DEFAULTS = {
    "random.prompt": 1024,
    "random.output": 1024,
    "repeat.number": 64,
    "repeat.each": 16,
    "repeat.prefix": 2048,
    "repeat.suffix": 128,
    "repeat.output": 256,
    "repeat.spread": 1.0,
}

ROWS = rows_of("sglang", share)


def _length(most: int, ratio: float) -> dict[str, Any]:
    """Return whole numbers from a share of the most on, as `compute_random_lens` draws them."""
    return between(int(most * ratio), most)


def keys(load: Load) -> dict[str, Any]:
    """Return the scenario keys of the benchmark."""
    dataset = load.get("dataset", "sharegpt")
    number = load.get("requests", 1000)
    is_known = choose(load, dataset, _READS)
    if not is_known or ("path" in _READS[dataset] and not has_file(load, dataset)):
        dataset = "random"
    load.said = _DEFAULTS | load.said
    if "temperature" not in load.get("body", {}):
        load.said["temperature"] = 0  # it sends that
        load.account.applied("a line without a temperature", "sampling.temperature: 0")
    if dataset in ("random", "random-ids"):
        return keys_of(load, {"lengths": random_lengths(load, number, _length)} | arrivals(load))
    if dataset == _GROUPS:
        load.unused(["requests"], "it is groups times prompts per group")
        number = load.get("repeat.number") * load.get("repeat.each")
        return keys_of(load, {"lengths": repeated_lengths(load, number, _length)} | arrivals(load))
    trace: dict[str, Any] = {"path": load.get("path"), "num_requests": number}
    if dataset == "sharegpt":
        load.account.assumed(
            "--dataset-name sharegpt", "all turns of a conversation, where it sends the first alone"
        )
        return keys_of(load, {"trace": {"type": dataset, **trace}} | arrivals(load))
    load.unused(["rate"], "requests come at the times of the trace")
    load.applied("concurrency", "workload.max_concurrency")
    workload: dict[str, Any] = {"trace": {"type": dataset, **trace}, "arrivals": {"type": "trace"}}
    if slowdown := load.get("trace.slowdown"):
        workload["arrivals"]["speedup"] = 1 / slowdown
    if users := load.get("concurrency"):
        workload["max_concurrency"] = users
    return keys_of(load, workload)
