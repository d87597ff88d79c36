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
from mist_sim.scenario.from_vllm.generators.table import Load
from mist_sim.scenario.from_vllm.generators.workloads import (
    arrivals,
    keys_of,
    limits,
    normal,
    note_stops,
    random_lengths,
)
from mist_sim.scenario.from_vllm.tables import finite, rows_of

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


ROWS = rows_of("aiperf", sequences)


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
