"""From `vllm bench serve ...` to the workload and the limits of a scenario.

Source: `add_cli_args` in `vllm/benchmarks/serve.py` and `add_dataset_parser` in
`vllm/benchmarks/datasets`, with their defaults; vLLM 0.33.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from mist_sim.errors import ScenarioError, brief, cut
from mist_sim.scenario.from_vllm.command_line import Parser

_COMMAND = "vllm bench serve"
_NUM_PROMPTS = 1000
_INPUT_LEN, _OUTPUT_LEN = 1024, 128
_GOODPUT = ("ttft", "tpot", "e2el")  # milliseconds

_WITHOUT_EFFECT = [
    "--backend",
    "--base-url",
    "--endpoint",
    "--endpoint-type",
    "--host",
    "--label",
    "--metadata",
    "--metric-percentiles",
    "--model",
    "--percentile-metrics",
    "--port",
    "--ready-check-timeout-sec",
    "--request-id-prefix",
    "--result-dir",
    "--result-filename",
    "--served-model-name",
    "--temperature",
    "--tokenizer",
    "--tokenizer-mode",
    "--top-k",
    "--top-p",
]
_SWITCHES = [
    "--append-result",
    "--disable-tqdm",
    "--ignore-eos",
    "--insecure",
    "--save-detailed",
    "--save-result",
    "--trust-remote-code",
]
_REFUSED = {
    "--ramp-up-strategy": "workload.arrivals: {type: closed_loop, ramp_up: ...}, or a trace",
    "--num-warmups": "warmup: 10 s, which leaves out what arrives before",
    "--random-prefix-len": "workload.lengths: {type: prefix_repetition, ...}",
    "--lora-modules": "no adapters, which are not simulated",
}


def workload_of(words: Sequence[str]) -> tuple[dict[str, Any], list[str]]:
    """Return the keys of a scenario that a benchmark's arguments say, and flags without effect.

    Raises ScenarioError for an argument that cannot be honoured, with what to write instead.
    """
    said = _parser().parsed(words)
    for flag, instead in _REFUSED.items():
        if said.get(flag) not in (None, "0"):
            raise ScenarioError(f"{_COMMAND} {flag}: not simulated as such; write {instead}")
    found: dict[str, Any] = {"workload": {**_requests(said), "arrivals": _arrivals(said)}}
    if "--goodput" in said:
        found["slo"] = _limits(said["--goodput"])
    if "--seed" in said:
        found["seed"] = said["--seed"]
    return found, [flag for flag in said if flag in (*_WITHOUT_EFFECT, *_SWITCHES)]


def _parser() -> Parser:
    parser = Parser(_COMMAND)
    for flag in ("--num-prompts", "--max-concurrency", "--seed", "--input-len", "--output-len"):
        parser.add_argument(flag, type=int)
    for flag in ("--random-input-len", "--random-output-len"):
        parser.add_argument(flag, type=int)
    for flag in ("--request-rate", "--burstiness", "--random-range-ratio"):
        parser.add_argument(flag, type=float)
    parser.add_argument("--goodput", nargs="+")
    for flag in ("--dataset-name", "--dataset-path", *_REFUSED, *_WITHOUT_EFFECT):
        parser.add_argument(flag)
    parser.add_switches(_SWITCHES)
    return parser


def _requests(said: Mapping[str, Any]) -> dict[str, Any]:
    """Return the lengths of the requests, or the trace that has them."""
    name, num_prompts = (
        said.get("--dataset-name", "random"),
        said.get("--num-prompts", _NUM_PROMPTS),
    )
    if name == "sharegpt":
        if "--dataset-path" not in said:
            raise ScenarioError(f"{_COMMAND}: --dataset-path is required with sharegpt")
        path = said["--dataset-path"]
        return {"trace": {"type": "sharegpt", "path": path, "num_requests": num_prompts}}
    if name != "random":
        raise ScenarioError(
            f"{_COMMAND} --dataset-name {cut(name)}: random and sharegpt alone are read; write "
            "workload.trace or workload.lengths in the scenario"
        )
    ratio = said.get("--random-range-ratio", 0.0)
    prompt = said.get("--input-len", said.get("--random-input-len", _INPUT_LEN))
    output = said.get("--output-len", said.get("--random-output-len", _OUTPUT_LEN))
    lengths = {"prompt": _length(prompt, ratio), "output": _length(output, ratio)}
    return {"lengths": {"type": "synthetic", "num_requests": num_prompts, **lengths}}


def _length(mean: int, ratio: float) -> dict[str, Any]:
    """Return whole numbers in [mean (1 - ratio), mean (1 + ratio)], equally likely."""
    if not 0 <= ratio < 1:
        raise ScenarioError(f"{_COMMAND} --random-range-ratio must be in [0, 1), got {ratio}")
    if not ratio:
        return {"type": "fixed", "tokens": mean}
    low, high = max(1, math.floor(mean * (1 - ratio))), math.ceil(mean * (1 + ratio))
    return {"type": "uniform", "low": low, "high": high}


def _arrivals(said: Mapping[str, Any]) -> dict[str, Any]:
    rate, users = said.get("--request-rate", math.inf), said.get("--max-concurrency")
    burstiness = said.get("--burstiness", 1.0)
    if users is not None and rate != math.inf:
        raise ScenarioError(
            f"{_COMMAND} --max-concurrency with --request-rate: an open loop whose senders wait is "
            "not simulated; write one of them"
        )
    if users is not None:
        return {"type": "closed_loop", "concurrency": users}
    if rate == math.inf:
        return {"type": "all_at_once"}
    if burstiness == 1.0:
        return {"type": "poisson", "rate": f"{rate:g} /s"}
    return {"type": "gamma", "rate": f"{rate:g} /s", "burstiness": burstiness}


def _limits(pairs: Sequence[str]) -> dict[str, str]:
    limits = {}
    for pair in pairs:
        name, _, milliseconds = pair.partition(":")
        if name not in _GOODPUT or not milliseconds:
            known = ", ".join(f"{each}:MS" for each in _GOODPUT)
            raise ScenarioError(f"{_COMMAND} --goodput must be of {known}, got {brief(pair)}")
        limits[name] = f"{milliseconds} ms"
    return limits
