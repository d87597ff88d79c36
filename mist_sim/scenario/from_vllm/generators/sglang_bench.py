"""`python -m sglang.bench_serving`.

Source: the argument parser and the data sets of python/sglang/bench_serving.py (0.5), which is
sglang/benchmark/serving.py and sglang/benchmark/datasets in newer releases.
"""

from __future__ import annotations

from typing import Any

from mist_sim.scenario.from_vllm.generators.table import Load, Row, others, positive, rate, sets
from mist_sim.scenario.from_vllm.generators.workloads import (
    MAY_STOP,
    OWN_LENGTHS,
    arrivals,
    between,
    choose,
    file_of,
    keys_of,
    random_lengths,
    repeated_lengths,
    share,
)
from mist_sim.scenario.from_vllm.tables import mapping

_WHERE = "it gives the server's address and the benchmark's own metadata"
_RESULTS = "it chooses what is printed and saved"
_TEXT = "prompts have the lengths of the command"
_ONE_TURN = "turns of a conversation are sent from traces; leave it out"
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

ROWS: tuple[Row, ...] = (
    sets("num-prompts", "requests", int, "--num-prompt"),
    sets("dataset-name", "dataset", str),
    sets("dataset-path", "path", str),
    sets("random-input-len", "random.prompt", int, "--random-input"),
    sets("random-output-len", "random.output", int, "--random-output"),
    sets("random-range-ratio", "random.spread", share),
    sets("gsp-num-groups", "repeat.number"),
    sets("gsp-prompts-per-group", "repeat.each"),
    sets("gsp-system-prompt-len", "repeat.prefix"),
    sets("gsp-question-len", "repeat.suffix"),
    sets("gsp-output-len", "repeat.output"),
    sets("gsp-range-ratio", "repeat.spread", share),
    sets("mooncake-slowdown-factor", "trace.slowdown", positive),
    sets("request-rate", "rate", rate),
    sets("max-concurrency", "concurrency"),
    sets("seed", "seed"),
    sets("extra-request-body", "body", mapping),
    sets("lora-name", "adapters", str, arity="many"),
    *others(
        _WHERE,
        "backend base-url host port model served-model-name tokenizer tokenizer-path tag "
        "ready-check-timeout-sec top-logprobs-num token-ids-logprob logprob-start-len",
    ),
    *others(_WHERE, "header", arity="many"),
    *others(
        _RESULTS,
        "output-file profile-output-dir profile-prefix profile-steps profile-num-steps "
        "profile-start-step profile-stages plot-throughput",
    ),
    *others(
        _RESULTS,
        "output-details disable-tqdm profile profile-by-stage cache-report print-requests "
        "return-logprob return-routed-experts",
        arity="switch",
    ),
    *others(_WHERE, "pd-separated profile-activities", arity="switch"),
    *others("a run begins with an empty cache", "flush-cache", arity="switch"),
    *others("warm-up requests end before the measured ones start", "warmup-requests"),
    *others(_TEXT, "prompt-suffix"),
    *others(_TEXT, "apply-chat-template tokenize-prompt gsp-ordered gsp-fast-prepare",
            arity="switch"),
    *others(MAY_STOP, "disable-ignore-eos", fate="assumed", arity="switch"),
    *others("requests of a group go where the router sends them", "gsp-send-routing-key",
            fate="assumed", arity="switch"),
    *others("it is the way of mooncake here", "use-trace-timestamps", arity="switch"),
    *others("the file says which it is", "mooncake-workload"),
    *others(_ONE_TURN, "mooncake-num-rounds gsp-num-turns", fate="refused", neutral="1"),
    *others(OWN_LENGTHS, "sharegpt-output-len", fate="refused"),
    *others("longer requests are not left out; leave it out", "sharegpt-context-len",
            fate="refused"),
    *others("answers are streamed; leave it out", "disable-stream", fate="refused",
            arity="switch"),
    *others("adapters are drawn at random; leave it out", "lora-request-distribution",
            fate="refused", neutral="uniform"),
    *others("it belongs to another distribution of adapters", "lora-zipf-alpha"),
    *others("groups are equally likely; leave it out", "gsp-group-distribution",
            fate="refused", neutral="uniform"),
    *others("it belongs to another distribution of groups", "gsp-zipf-alpha"),
    *others("it belongs to another dataset",
            "image-count image-resolution image-format image-content random-image-num-images "
            "random-image-resolution"),
    *others("one rate a run is simulated; write --request-rate, and mist sweep for several",
            "request-rate-range", fate="refused"),
    *others("one rate a run is simulated; write --request-rate", "multi", fate="refused",
            arity="switch"),
)  # fmt: skip


def _length(most: int, ratio: float) -> dict[str, Any]:
    """Return whole numbers from a share of the most on, as `compute_random_lens` draws them."""
    return between(int(most * ratio), most)


def keys(load: Load) -> dict[str, Any]:
    """Return the scenario keys of the benchmark."""
    dataset = load.get("dataset", "sharegpt")
    number = load.get("requests", 1000)
    if not choose(load, dataset, _READS):
        dataset = "random"
    load.said = _DEFAULTS | load.said
    if dataset in ("random", "random-ids"):
        return keys_of(load, {"lengths": random_lengths(load, number, _length)} | arrivals(load))
    if dataset == _GROUPS:
        load.unused(["requests"], "it is groups times prompts per group")
        number = load.get("repeat.number") * load.get("repeat.each")
        return keys_of(load, {"lengths": repeated_lengths(load, number, _length)} | arrivals(load))
    trace: dict[str, Any] = {"path": file_of(load, dataset), "num_requests": number}
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
