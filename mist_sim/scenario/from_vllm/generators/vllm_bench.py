"""`vllm bench serve`, `throughput` and `latency`, and the benchmark scripts of older versions.

Source: `add_cli_args` in vllm/benchmarks/serve.py, throughput.py and latency.py,
`add_dataset_parser` and the data sets in vllm/benchmarks/datasets, with their defaults; 0.19, 0.33.
"""

from __future__ import annotations

from typing import Any

from mist_sim.core.front_end import TIMES
from mist_sim.scenario.from_vllm.generators.table import (
    Load,
    Row,
    finite,
    others,
    positive,
    rate,
    sets,
)
from mist_sim.scenario.from_vllm.generators.workloads import (
    BY_COMMAND,
    MAY_STOP,
    ONE_ANSWER,
    OWN_LENGTHS,
    SAMPLED,
    arrivals,
    choose,
    file_of,
    keys_of,
    limits,
    note_stops,
    random_lengths,
    ratios,
    repeated_lengths,
)
from mist_sim.scenario.from_vllm.tables import mapping

_WHERE = "it gives the server's address and the benchmark's own metadata"
_NO_TIME = "it takes no time here; top-p, top-k and penalties do"
_RESULTS = "it chooses what is printed and saved"
_OTHER_DATA = "it belongs to another dataset"
_WARMUPS = (
    "warm-up requests end before the measured ones start; that they leave the first prompt in the "
    "prefix cache is not simulated"
)
_RAMP = "it belongs to --ramp-up-strategy; leave it out"
_REPETITION = "prefix-repetition-"
_LABEL = "the reader's keys are timestamp, input_length, output_length and hash_ids; rename yours"
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

_DATASETS: tuple[Row, ...] = (
    sets("num-prompts", "requests"),
    sets("dataset-name", "dataset", str),
    sets("dataset-path", "path", str),
    sets("input-len", "prompt"),
    sets("output-len", "output"),
    sets("random-input-len", "random.prompt"),
    sets("random-output-len", "random.output"),
    sets("random-prefix-len", "random.prefix"),
    sets("random-range-ratio", "random.spread", ratios),
    *(
        sets(f"{_REPETITION}{name}", f"repeat.{key}")
        for name, key in (
            ("prefix-len", "prefix"),
            ("suffix-len", "suffix"),
            ("output-len", "output"),
            ("num-prefixes", "number"),
        )
    ),
    sets("timed-trace-chunk-hash-size", "trace.chunk"),
    sets("timed-trace-sec-multiplier", "trace.multiplier", positive),
    sets("self-timed", "trace.self_timed", arity="switch"),
    *(
        row
        for name in ("timestamp", "input-length", "output-length", "hash-ids")
        for row in others(
            _LABEL,
            f"timed-trace-label-{name}",
            fate="refused",
            neutral=name.replace("-", "_"),
        )
    ),
    *others(
        _OTHER_DATA,
        "sonnet-input-len sonnet-output-len sonnet-prefix-len spec-bench-output-len "
        "spec-bench-category custom-output-len hf-subset hf-split hf-name hf-output-len "
        "blazedit-min-distance blazedit-max-distance random-mm-base-items-per-request "
        "random-mm-limit-mm-per-prompt random-mm-bucket-config random-mm-num-mm-items-range-ratio "
        "asr-max-audio-len-sec asr-min-audio-len-sec bfcl-categories",
    ),
    *others(BY_COMMAND, "no-oversample disable-shuffle no-reranker", arity="switch"),
    *others(OWN_LENGTHS, "sharegpt-output-len", fate="refused"),
    *others(
        "one prompt a request is simulated; leave it out",
        "random-batch-size",
        fate="refused",
        neutral="1",
    ),
    *others(
        "beams are not simulated; leave it out", "use-beam-search", fate="refused", arity="switch"
    ),
)
"""Flags that say which requests there are; `throughput` has most of them, too."""

SERVE: tuple[Row, ...] = (
    *_DATASETS,
    sets("request-rate", "rate", rate),
    sets("burstiness", "burstiness", positive),
    sets("max-concurrency", "concurrency"),
    sets("seed", "seed"),
    sets("goodput", "limits", str, arity="many"),
    sets("lora-modules", "adapters", str, arity="many"),
    sets("extra-body", "body", mapping),
    *(
        sets(name.replace("_", "-"), name, int if name == "top_k" else finite)
        for name in SAMPLED
    ),
    *others(
        _WHERE,
        "base-url endpoint endpoint-type host port label model served-model-name tokenizer "
        "tokenizer-mode ready-check-timeout-sec request-id-prefix timeout probe-request-rate "
        "chat-template-kwargs",
    ),
    *others(_WHERE, "metadata header", arity="many"),
    *others(
        _WHERE,
        "insecure trust-remote-code skip-tokenizer-init skip-chat-template enable-multimodal-chat "
        "custom-ensure-client-side-data",
        arity="switch",
    ),
    *others(_NO_TIME, "min-p logprobs"),
    *others(
        _RESULTS,
        "metric-percentiles percentile-metrics result-dir result-filename timeline-itl-thresholds",
    ),
    *others(
        _RESULTS,
        "append-result disable-tqdm profile save-detailed save-result plot-timeline "
        "plot-dataset-stats",
        arity="switch",
    ),
    *others(_WARMUPS, "num-warmups"),
    sets("ignore-eos", "ignore_eos", arity="switch"),
    sets("backend", "backend", str),
    *others(
        "not simulated as such; write workload.arrivals: {type: closed_loop, ramp_up: ...}, or a "
        "trace",
        "ramp-up-strategy",
        fate="refused",
    ),
    *others(_RAMP, "ramp-up-start-rps ramp-up-end-rps", fate="refused"),
    *others("adapters are drawn at random; leave it out", "lora-assignment", fate="refused",
            neutral="random"),
    *others("answers are streamed; leave it out", "no-stream", fate="refused", arity="switch"),
)  # fmt: skip

_NO_DETOKENIZING = "times of the front end are left out of offline runs, detokenizing among them"
_OFFLINE: tuple[Row, ...] = (
    *others(ONE_ANSWER, "n", fate="refused", neutral="1"),
    *others(_RESULTS, "output-json"),
    *others(_RESULTS, "profile", arity="switch"),
    *others(_NO_DETOKENIZING, "disable-detokenize", arity="switch"),
)
THROUGHPUT: tuple[Row, ...] = (
    *_DATASETS,
    *_OFFLINE,
    sets("dataset", "path", str),
    sets("prefix-len", "random.prefix"),
    *others(
        "vLLM's engine alone is simulated; leave it out", "backend", fate="refused", neutral="vllm"
    ),
    *others("it belongs to another back end", "hf-max-batch-size"),
    *others(_NO_DETOKENIZING, "async-engine disable-frontend-multiprocessing", arity="switch"),
    *others("write workload.adapters in the scenario, and lora of the client", "lora-path",
            fate="refused"),
)  # fmt: skip
LATENCY: tuple[Row, ...] = (
    *_OFFLINE,
    sets("input-len", "prompt"),
    sets("output-len", "output"),
    sets("batch-size", "requests"),
    *others("beams are not simulated; leave it out", "use-beam-search", fate="refused",
            arity="switch"),
    *others("all rounds are alike, so one is simulated", "num-iters num-iters-warmup"),
)  # fmt: skip
AT_ONCE = {"arrivals": {"type": "all_at_once"}}
"""Offline, all requests are there from the start."""

WITHOUT_SERVER = dict.fromkeys(TIMES, "0 s")
"""The front end of offline runs: there is none."""


def serve(load: Load) -> dict[str, Any]:
    """Return the scenario keys of `vllm bench serve`."""
    if any(kind in load.get("backend", "") for kind in ("embed", "rerank", "pooling", "audio")):
        load.account.refused(
            load.written["backend"], "text generation alone is simulated; leave it out"
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
        workload |= arrivals(load)
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
    if not choose(load, dataset, _READS):
        dataset = "random"
    load.said = _DEFAULTS | load.said
    if dataset == "prefix_repetition":
        return {"lengths": repeated_lengths(load, number)}
    if dataset == "random":
        return {"lengths": random_lengths(load, number)}
    trace: dict[str, Any] = {"path": file_of(load, dataset), "num_requests": number}
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
