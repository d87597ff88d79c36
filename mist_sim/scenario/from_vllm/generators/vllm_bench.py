"""`vllm bench serve`, `throughput` and `latency`, and the benchmark scripts of older versions.

Source: `add_cli_args` in vllm/benchmarks/serve.py, throughput.py and latency.py,
`add_dataset_parser` and the data sets in vllm/benchmarks/datasets, with their defaults; 0.19, 0.33.
"""

from __future__ import annotations

from typing import Any

from mist_sim.core.front_end import TIMES
from mist_sim.scenario.from_vllm.generators.table import Load
from mist_sim.scenario.from_vllm.generators.workloads import (
    BY_COMMAND,
    MAY_STOP,
    arrivals,
    choose,
    has_file,
    keys_of,
    limits,
    note_stops,
    random_lengths,
    ratios,
    repeated_lengths,
)
from mist_sim.scenario.from_vllm.tables import finite, rows_of

_WHERE = "it gives the server's address and the benchmark's own metadata"
_SAMPLE = "the first requests of the file, in their order, in place of others drawn from it"
_GOODPUT = {"ttft": "ttft", "tpot": "tpot", "e2el": "e2el"}
_DEFAULTS = {
    "random.prompt": 1024,
    "random.output": 128,
    "repeat.number": 10,
    "repeat.prefix": 256,
    "repeat.suffix": 256,
    "repeat.output": 128,
    "trace.chunk": 16,
    "trace.multiplier": 1.0,
}
_READS = {
    "random": ("random.", "prompt", "output"),
    "sharegpt": ("path",),
    "prefix_repetition": ("repeat.", "output"),
    "burstgpt": ("path",),
    "timed_trace": ("path", "trace."),
}

_DATASETS = rows_of("vllm-requests", ratios)
"""Flags that say which requests there are; `throughput` has most of them, too."""

_OFFLINE = rows_of("vllm-offline")
SERVE = (*_DATASETS, *rows_of("vllm-bench-serve", finite))
THROUGHPUT = (*_DATASETS, *_OFFLINE, *rows_of("vllm-bench-throughput"))
LATENCY = (*_OFFLINE, *rows_of("vllm-bench-latency"))
AT_ONCE = {"arrivals": {"type": "all_at_once"}}
"""Offline, all requests are there from the start."""

WITHOUT_SERVER = dict.fromkeys(TIMES, "0 s")
"""The front end of offline runs: there is none."""


def serve(load: Load) -> dict[str, Any]:
    """Return the scenario keys of `vllm bench serve`."""
    if any(kind in load.get("backend", "") for kind in ("embed", "rerank", "pooling", "audio")):
        load.account.refused(
            load.written["backend"],
            "text generation alone is simulated: give a line for completions or chats",
        )
    else:
        load.unused(["backend"], _WHERE)
    if load.get("ignore_eos"):
        load.unused(["ignore_eos"], BY_COMMAND)
    elif "ignore_eos" in load.said:
        load.account.assumed(load.written["ignore_eos"], MAY_STOP)
    else:
        note_stops(load, "--ignore-eos")
    workload = _requests(load, load.get("dataset", "random"))
    if "limits" in load.said:
        load.said["goodput"] = limits(load, load.get("limits"), _GOODPUT)
    if "arrivals" not in workload:
        workload |= arrivals(load, stretched=True)
    return keys_of(load, workload)


def throughput(load: Load) -> dict[str, Any]:
    """Return the scenario keys of `vllm bench throughput` but for its engine's."""
    dataset = load.get("dataset", "random" if load.get("path") is None else "sharegpt")
    if dataset == "random" and not {"prompt", "random.prompt"} & load.said.keys():
        load.account.refused("", "--input-len and --output-len are required without a data set")
    return _offline(load, _requests(load, dataset))


def latency(load: Load) -> dict[str, Any]:
    """Return the scenario keys of `vllm bench latency` but for its engine's."""
    load.said = {"prompt": 32, "output": 128, "requests": 8} | load.said
    load.applied(("prompt", "output", "requests"), "workload.lengths")
    return _offline(load, {"lengths": random_lengths(load, load.get("requests"))})


def _offline(load: Load, workload: dict[str, Any]) -> dict[str, Any]:
    load.said |= {"temperature": 1.0, "top_p": 1.0}  # both programs ask for them
    workload.pop("arrivals", None)
    keys = keys_of(load, {**workload, **AT_ONCE})
    return {**keys, "front_end": WITHOUT_SERVER}


def _requests(load: Load, dataset: str) -> dict[str, Any]:
    """Return the requests of a data set, and their arrivals where its file has them."""
    number = load.get("requests", 1000)
    is_known = choose(load, dataset, _READS)
    if not is_known or ("path" in _READS[dataset] and not has_file(load, dataset)):
        dataset = "random"
    load.said = _DEFAULTS | load.said
    if dataset == "prefix_repetition":
        return {"lengths": repeated_lengths(load, number)}
    if dataset == "random":
        return {"lengths": random_lengths(load, number)}
    trace: dict[str, Any] = {"path": load.get("path"), "num_requests": number}
    if dataset == "timed_trace":
        return _timed(load, trace)
    if dataset == "burstgpt":
        load.account.assumed(f"--dataset-name {dataset}", _SAMPLE)
        return {"trace": {"type": dataset, **trace, "only_model": "GPT-4", "skip": "cancelled"}}
    return {"trace": {"type": dataset, **trace}}


def _timed(load: Load, trace: dict[str, Any]) -> dict[str, Any]:
    """Return the trace of `timed_trace`, whose milliseconds are Mooncake's."""
    multiplier = load.get("trace.multiplier")
    form = "mooncake" if multiplier == 0.001 else "timed_trace"
    found: dict[str, Any] = {
        "trace": {"type": form, **trace, "hash_block_size": load.get("trace.chunk")}
    }
    if load.get("trace.self_timed", True):
        load.unused(["rate", "burstiness"], "requests come at the times of the trace")
        if users := load.get("concurrency"):
            load.applied("concurrency", "workload.max_concurrency")
            found["max_concurrency"] = users
        found["arrivals"] = {"type": "trace"}
        if form == "timed_trace" and multiplier != 1:
            found["arrivals"]["speedup"] = 1 / multiplier
    return found
