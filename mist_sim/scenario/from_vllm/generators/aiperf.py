"""`aiperf profile`, and `genai-perf profile` before it.

Source: the command line options of NVIDIA AIPerf (its page on CLI options, 0.2 to 0.13) and of
GenAI-Perf (triton-inference-server/perf_analyzer, genai-perf/docs), whose names AIPerf keeps.
"""

from __future__ import annotations

import json
import math
import re
from argparse import ArgumentTypeError
from typing import Any

from mist_sim.scenario.from_vllm.generators.guidellm import number_of
from mist_sim.scenario.from_vllm.generators.table import (
    Load,
    Row,
    finite,
    not_negative,
    others,
    positive,
    sets,
)
from mist_sim.scenario.from_vllm.generators.workloads import (
    arrivals,
    keys_of,
    limits,
    normal,
    note_stops,
    random_lengths,
)

_WHERE = "it says where the server is and how requests reach it"
_RESULTS = "it chooses what is printed and saved"
_WARMUPS = "warm-up requests end before the measured ones start"
_DATA = "it says which texts are drawn, which takes no time"
_OTHER = "it belongs to audio, video or rankings"
_TURNS = "turns of a conversation are sent from traces; leave it out"
_GOODPUT = {
    "time_to_first_token": "ttft",
    "inter_token_latency": "tpot",  # a mean of each request, so vLLM's TPOT
    "request_latency": "e2el",
}
_DIST = re.compile(r"(\d+)(?:\|([\d.]+))?,(\d+)(?:\|([\d.]+))?:([\d.]+)")


def pairs(values: list[str]) -> dict[str, Any]:
    """Return the inputs of a request, given as key:value or as JSON."""
    found: dict[str, Any] = {}
    for text in values:
        if text.lstrip().startswith("{"):
            try:
                found |= json.loads(text)
            except (ValueError, RecursionError) as error:
                raise ArgumentTypeError(f"not valid JSON: {error}") from None
            continue
        key, _, value = text.partition(":")
        try:
            found[key] = json.loads(value)
        except (ValueError, RecursionError):
            found[key] = value
    return found


def sequences(text: str) -> dict[str, Any]:
    """Return classes of requests of "ISL,OSL:percent;...", with deviations as ISL|stddev.

    Raises ArgumentTypeError for another form, and for percents that do not sum to 100.
    """
    found: dict[str, Any] = {}
    total = 0.0
    for part in text.replace(" ", "").split(";"):
        figures = _DIST.fullmatch(part)
        if figures is None:
            raise ArgumentTypeError("must be ISL,OSL:percent;ISL,OSL:percent")
        prompt, prompt_std, output, output_std, percent = figures.groups()
        name = f"{prompt}-{output}"
        found[f"{name}-{len(found) + 1}" if name in found else name] = {
            "prompt": normal(int(prompt), finite(prompt_std or "0")),
            "output": normal(int(output), finite(output_std or "0")),
            "share": finite(percent) / 100,
        }
        total += finite(percent)
    if not math.isclose(total, 100):
        raise ArgumentTypeError(f"percents must sum to 100, got {total:g}")
    return found


ROWS: tuple[Row, ...] = (
    sets("isl", "random.prompt", int, "--prompt-input-tokens-mean",
         "--synthetic-input-tokens-mean"),
    sets("isl-stddev", "prompt_std", not_negative, "--prompt-input-tokens-stddev",
         "--synthetic-input-tokens-stddev"),
    sets("osl", "random.output", int, "--prompt-output-tokens-mean", "--output-tokens-mean"),
    sets("osl-stddev", "output_std", not_negative, "--prompt-output-tokens-stddev",
         "--output-tokens-stddev"),
    sets("isl-block-size", "trace.chunk", int, "--prompt-input-tokens-block-size",
         "--synthetic-input-tokens-block-size"),
    sets("sequence-distribution", "classes", sequences, "--seq-dist"),
    sets("num-prefix-prompts", "random.prefixes", int, "--prompt-prefix-pool-size",
         "--prefix-prompt-pool-size"),
    sets("prefix-prompt-length", "random.prefix", int, "--prompt-prefix-length"),
    sets("shared-system-prompt-length", "system", int),
    sets("input-file", "path", str),
    sets("custom-dataset-type", "dataset", str),
    sets("synthesis-speedup-ratio", "speedup", positive),
    sets("request-count", "requests", int, "--num-requests"),
    sets("num-sessions", "sessions", int, "--conversation-num", "--num-conversations"),
    sets("benchmark-duration", "seconds", positive),
    sets("concurrency", "concurrency"),
    sets("concurrency-ramp-duration", "ramp_up", not_negative),
    sets("request-rate", "rate", positive),
    sets("arrival-pattern", "pattern", str, "--request-rate-mode"),
    sets("arrival-smoothness", "burstiness", positive, "--vllm-burstiness"),
    sets("random-seed", "seed"),
    sets("goodput", "limits", str, "-g", arity="many"),
    sets("extra-inputs", "inputs", str, arity="many", adds=True),
    *others(
        _WHERE,
        "model|model-names|-m model-selection-strategy|model-selection endpoint|custom-endpoint "
        "endpoint-type url|-u url-strategy request-timeout-seconds api-key "
        "transport|transport-type connection-reuse-strategy service-kind backend "
        "server-metrics-url tokenizer tokenizer-revision num-workers workers-max|max-workers "
        "record-processors record-processor-service-count grpc-method zmq-host zmq-ipc-path",
    ),
    *others(_WHERE, "header|-H server-metrics gpu-telemetry server-metrics-formats", arity="many"),
    *others(
        _WHERE,
        "streaming use-legacy-max-tokens use-server-token-count tokenizer-trust-remote-code "
        "no-gpu-telemetry no-server-metrics set-consistent-seed export-http-trace "
        "show-trace-timing verbose|-v extra-verbose|-vv fixed-schedule fixed-schedule-auto-offset",
        arity="switch",
    ),
    *others(
        _RESULTS,
        "artifact-dir|output-artifact-dir profile-export-file|profile-export-prefix "
        "profile-export-level|export-level slice-duration ui|ui-type log-level checkpoint-dir "
        "profile-run-cooldown-seconds confidence-level stability-percentage|-s",
    ),
    *others(_RESULTS, "generate-plots enable-checkpointing", arity="switch"),
    *others(_WARMUPS, "warmup-request-count|num-warmup-requests warmup-duration "
            "num-warmup-sessions warmup-concurrency warmup-prefill-concurrency warmup-request-rate "
            "warmup-arrival-pattern warmup-grace-period warmup-concurrency-ramp-duration "
            "warmup-prefill-concurrency-ramp-duration warmup-request-rate-ramp-duration"),
    *others(_DATA, "num-dataset-entries|num-prompts dataset-sampling-strategy "
            "prompt-batch-size|batch-size-text|batch-size|-b"),
    *others("requests are all waited for", "benchmark-grace-period"),
    *others("requests come from a number of users or a rate for a number of requests; say it with "
            "--request-count", "measurement-interval|measurement-interval-ms|-p", fate="assumed"),
    *others("one run; mist run --replications N makes several", "num-profile-runs", fate="assumed"),
    *others(_OTHER, "audio-batch-size|batch-size-audio audio-length-mean audio-length-stddev "
            "audio-format audio-depths audio-sample-rates audio-num-channels video-batch-size "
            "video-duration video-fps video-width video-height video-synth-type video-format "
            "video-codec rankings-passages-mean rankings-passages-stddev "
            "rankings-passages-prompt-token-mean rankings-passages-prompt-token-stddev "
            "rankings-query-prompt-token-mean rankings-query-prompt-token-stddev"),
    *others("images of a load are workload.images here; leave it out",
            "image-width-mean image-width-stddev image-height-mean image-height-stddev "
            "image-batch-size|batch-size-image image-format", fate="refused", neutral="0 0.0"),
    *others(_TURNS, "session-turns-mean|conversation-turn-mean", fate="refused", neutral="1"),
    *others(_TURNS, "session-turns-stddev|conversation-turn-stddev "
            "user-context-prompt-length", fate="refused", neutral="0 0.0"),
    *others("a conversation of one turn has no gaps", "session-turn-delay-mean|"
            "conversation-turn-delay-mean session-turn-delay-stddev|conversation-turn-delay-stddev "
            "session-delay-ratio|conversation-turn-delay-ratio"),
    *others("data sets are not fetched; write workload.trace: {type: sharegpt, path: FILE}",
            "public-dataset", fate="refused"),
    *others("a part of a trace is not cut out by time; write num_requests of workload.trace",
            "fixed-schedule-start-offset fixed-schedule-end-offset", fate="refused"),
    *others("prompts of a trace are as they are; leave it out", "synthesis-prefix-len-multiplier "
            "synthesis-prefix-root-multiplier synthesis-prompt-len-multiplier", fate="refused",
            neutral="1 1.0"),
    *others("requests of a trace are as they are; write workload.max_tokens in the scenario",
            "synthesis-max-isl synthesis-max-osl", fate="refused"),
    *others("prompts under way are not limited apart; leave it out", "prefill-concurrency "
            "prefill-concurrency-ramp-duration", fate="refused"),
    *others("not simulated as such; write workload.patience in the scenario",
            "request-cancellation-rate request-cancellation-delay", fate="refused"),
    *others("not simulated as such; write workload.arrivals: {type: closed_loop, think_time: ...}",
            "user-centric-rate num-users", fate="refused"),
    *others("rates that rise are workload.arrivals: {type: schedule, ...}",
            "request-rate-ramp-duration", fate="refused"),
    *others("answers are not judged; leave it out", "accuracy-benchmark accuracy-tasks "
            "accuracy-n-shots accuracy-grader accuracy-system-prompt", fate="refused"),
)  # fmt: skip


def keys(load: Load) -> dict[str, Any]:
    """Return the scenario keys of the benchmark."""
    if "limits" in load.said:
        words = " ".join(load.get("limits")).split()
        load.said["goodput"] = limits(load, words, _GOODPUT)
    if "inputs" in load.said:
        load.written["body"] = load.written["inputs"]
        try:
            load.said["body"] = pairs(load.get("inputs"))
        except ArgumentTypeError as error:
            load.account.refused(load.written["inputs"], str(error))
    note_stops(load, "--extra-inputs ignore_eos:true")
    if load.get("path") is not None:
        return keys_of(load, _replayed(load))
    _arrivals(load)
    users = load.get("concurrency", 1)
    if "sessions" in load.said and "requests" not in load.said:
        load.said["requests"], load.written["requests"] = (
            load.said["sessions"],
            load.written["sessions"],
        )
    number = number_of(load, "--request-count", "--benchmark-duration", max(10, 2 * users))
    lengths = _classes(load, number) if "classes" in load.said else _drawn(load, number)
    return keys_of(load, {"lengths": lengths} | arrivals(load))


def _arrivals(load: Load) -> None:
    pattern = load.get("pattern", "poisson")
    if pattern not in ("poisson", "constant", "gamma", "concurrency_burst"):
        load.account.refused(
            load.written["pattern"], "must be poisson, constant, gamma or concurrency_burst"
        )
    if "rate" not in load.said:
        load.said.setdefault("concurrency", 1)


def _drawn(load: Load, number: int) -> dict[str, Any]:
    if load.get("random.output") is None:
        load.account.refused("", "--osl is required: how long answers are, the model would decide")
    prefix = ("random.prefix", "random.prefixes")
    if "system" in load.said:
        load.said |= {"random.prefix": load.said["system"], "random.prefixes": 1}
        load.unused(prefix, "--shared-system-prompt-length takes its place")
        load.applied("system", "workload.lengths")
    elif load.get("random.prefixes") and load.get("random.prefix"):
        load.applied(prefix, "workload.lengths")
    else:
        load.said.pop("random.prefix", None)
        load.unused(prefix, "prefixes take --num-prefix-prompts and --prefix-prompt-length")
    for side, default in (("prompt", 550), ("output", 1)):
        mean = load.get(f"random.{side}", default)
        load.said[side] = normal(mean, load.get(f"{side}_std", 0.0))
    names = ("random.prompt", "prompt_std", "random.output", "output_std")
    load.applied(names, "workload.lengths")
    return random_lengths(load, number)


def _classes(load: Load, number: int) -> dict[str, Any]:
    load.applied("classes", "workload.lengths.classes")
    load.unused(["random.prompt", "random.output"], "--sequence-distribution takes its place")
    return {"type": "mix", "num_requests": number, "classes": load.get("classes")}


def _replayed(load: Load) -> dict[str, Any]:
    """Return the workload of a file."""
    kind = load.get("dataset", "mooncake_trace")
    trace: dict[str, Any] = {"type": "mooncake", "path": load.get("path")}
    if kind != "mooncake_trace":
        load.account.refused(
            load.written["dataset"], "mooncake_trace alone is read; texts have no lengths here"
        )
    if "trace.chunk" in load.said:
        trace["hash_block_size"] = load.get("trace.chunk")
    if "requests" in load.said:
        trace["num_requests"] = load.get("requests")
    load.applied(("path", "dataset", "trace.chunk", "requests"), "workload.trace")
    load.unused(["rate", "pattern", "burstiness"], "requests come at the times of the trace")
    load.unused(["random.prompt", "random.output"], "the trace has its lengths")
    sent: dict[str, Any] = {"type": "trace"}
    if speedup := load.get("speedup"):
        sent["speedup"] = speedup
        load.applied("speedup", "workload.arrivals.speedup")
    workload: dict[str, Any] = {"trace": trace, "arrivals": sent}
    if users := load.get("concurrency"):
        workload["max_concurrency"] = users
        load.applied("concurrency", "workload.max_concurrency")
    return workload
