"""Translates `vllm bench serve ...` into the workload and limits of a scenario.

Source: `add_cli_args` and `benchmark` in vllm/benchmarks/serve.py, `add_dataset_parser`,
`RandomDataset` and `PrefixRepetitionRandomDataset` in vllm/benchmarks/datasets, with their
defaults; vLLM 0.19 and 0.33.
"""

from __future__ import annotations

import math
from argparse import ArgumentTypeError
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from mist_sim.errors import brief, cut
from mist_sim.hardware.sampling import PENALTIES, said_by_vllm
from mist_sim.scenario.from_vllm.account import Account
from mist_sim.scenario.from_vllm.flags import Arity, Flag, flags_of
from mist_sim.scenario.from_vllm.tables.benchmark import (
    REFUSED,
    REFUSED_SWITCHES,
    SWITCHES,
    WITHOUT_EFFECT,
)
from mist_sim.scenario.from_vllm.tables.honoured import mapping

COMMAND = "vllm bench serve"
_NUM_PROMPTS = 1000
_INPUT_LEN, _OUTPUT_LEN = 1024, 128
_GOODPUT = ("ttft", "tpot", "e2el")  # milliseconds
_DATASETS = ("random", "sharegpt", "prefix_repetition")
_REPETITION = "--prefix-repetition-"

_NUMBERS: Mapping[str, Callable[[str], float]] = {
    **dict.fromkeys(
        (
            "--num-prompts",
            "--max-concurrency",
            "--seed",
            "--input-len",
            "--output-len",
            "--random-input-len",
            "--random-output-len",
            "--random-prefix-len",
            "--num-warmups",
            *(f"{_REPETITION}{each}" for each in ("prefix-len", "suffix-len", "output-len")),
            f"{_REPETITION}num-prefixes",
        ),
        int,
    ),
    **dict.fromkeys(("--request-rate", "--burstiness"), float),
    **dict.fromkeys(("--temperature", "--top-p"), float),
    **{f"--{name.replace('_', '-')}": float for name in PENALTIES},
    "--top-k": int,
}
_SAMPLED = {f"--{n.replace('_', '-')}": n for n in ("temperature", "top_p", "top_k", *PENALTIES)}
_TEXTS = ("--dataset-name", "--dataset-path", "--extra-body", "--random-range-ratio")
_LISTS = ("--goodput", "--lora-modules")
_OF_DATASET = {
    "random": ("--random-", "--input-len", "--output-len"),
    "prefix_repetition": (_REPETITION, "--output-len"),
    "sharegpt": ("--dataset-path",),
}
_GENERAL = {
    "--input-len": ("--random-input-len",),
    "--output-len": ("--random-output-len", f"{_REPETITION}output-len"),
}
"""Flags that replace those of a dataset."""

_ANSWERS = ("--output-len", "--random-output-len", f"{_REPETITION}output-len")
_WARMUPS = (
    "warm-up requests end before the measured ones start; that they leave the first prompt in the "
    "prefix cache is not simulated"
)


def _arities() -> dict[str, Arity]:
    valued = (*_NUMBERS, *_TEXTS, *REFUSED, *WITHOUT_EFFECT)
    found: dict[str, Arity] = dict.fromkeys(valued, "one")
    switches = [f"--{name}" for names in SWITCHES.values() for name in names.split()]
    found |= dict.fromkeys((*switches, *REFUSED_SWITCHES), "switch")
    return found | dict.fromkeys((*_LISTS, "--metadata", "--header"), "many")


ARITIES: Mapping[str, Arity] = _arities()
"""How many values each flag takes."""


SAMPLING = "sampling"
"""Key of what a benchmark says about drawing tokens, which is a key of each client."""


def workload_of(words: Sequence[str]) -> tuple[dict[str, Any], Account]:
    """Return the scenario keys of a benchmark's arguments, and an account of them.

    The keys include `SAMPLING` if the benchmark sets how requests sample tokens.
    """
    account = Account()
    said: dict[str, Any] = {}
    flags = flags_of(words, ARITIES, {})
    last = {flag.name: flag for flag in flags if not flag.fault}
    for flag in flags:
        if flag.fault:
            account.refused(flag.name, flag.fault)
        elif last[flag.name] is not flag:
            account.no_effect(flag.written, f"{flag.name} is given again behind it")
        else:
            _read(flag, said, account)
    requests = _requests(said, account)
    keys: dict[str, Any] = {"workload": {**requests, **_arrivals(said, account)}}
    if names := said.get("--lora-modules"):
        keys["workload"]["adapters"] = dict.fromkeys(names, 1)
        account.applied("--lora-modules", f"workload.adapters: {brief(names)}")
    asked = _sampled(said, account) | _extra_body(said, keys["workload"], account)
    if asked:
        keys[SAMPLING] = said_by_vllm(asked)
    if "--goodput" in said:
        keys["slo"] = _limits(said["--goodput"], account)
    if "--seed" in said:
        keys["seed"] = said["--seed"]
        account.applied(f"--seed {said['--seed']}", "seed")
    return keys, account


def _read(flag: Flag, said: dict[str, Any], account: Account) -> None:
    """Read a flag's value, or note at once that it has no effect, or why it is refused."""
    if not flag.name:
        account.refused(cut(" ".join(flag.values)), "follows no flag that takes it; leave it out")
    elif flag.name in _NUMBERS:
        try:
            said[flag.name] = _NUMBERS[flag.name](flag.value)
        except ValueError:
            account.refused(flag.written, f"must be a number, got {cut(flag.value)!r}")
    elif flag.name in REFUSED:
        why, neutral = REFUSED[flag.name]
        if flag.value == neutral:
            account.no_effect(flag.written, "it asks for what is simulated")
        else:
            account.refused(flag.written, why)
    elif flag.name in REFUSED_SWITCHES:
        account.refused(flag.written, REFUSED_SWITCHES[flag.name])
    elif flag.name in WITHOUT_EFFECT:
        _pass_over(flag, account)
    else:
        said[flag.name] = list(flag.values) if flag.name in _LISTS else flag.value


def _pass_over(flag: Flag, account: Account) -> None:
    if flag.name == "--backend" and any(
        kind in flag.value for kind in ("embed", "rerank", "pooling", "audio")
    ):
        account.refused(flag.written, "text generation alone is simulated; leave it out")
    elif flag.name == "--ignore-eos" and not flag.is_on:
        account.assumed(flag.written, "answers have the lengths of the command")
    else:
        account.no_effect(flag.name, WITHOUT_EFFECT[flag.name])


def _requests(said: Mapping[str, Any], account: Account) -> dict[str, Any]:
    """Return the lengths of the requests, or the trace that has them."""
    name = said.get("--dataset-name", "random")
    num_prompts = said.get("--num-prompts", _NUM_PROMPTS)
    if "--num-warmups" in said:
        account.no_effect("--num-warmups", _WARMUPS)
    if name not in _DATASETS:
        account.refused(
            f"--dataset-name {cut(name)}",
            f"{', '.join(_DATASETS)} alone are read; write workload.trace or workload.lengths in "
            "the scenario",
        )
    else:
        _note(said, name, account)
        for general, own in _GENERAL.items():
            if general in said:
                overruled = [each for each in own if each in said]
                account.overrule(overruled, f"{general} takes its place")
    if name == "sharegpt":
        path = said.get("--dataset-path")
        if path is None:
            account.refused("", "--dataset-path is required with sharegpt")
        return {"trace": {"type": "sharegpt", "path": path, "num_requests": num_prompts}}
    if name == "prefix_repetition":
        return {"lengths": {**_repeated(said), "num_requests": num_prompts}}
    return {"lengths": _random(said, num_prompts, account)}


def _note(said: Mapping[str, Any], name: str, account: Account) -> None:
    """Note which flags of datasets the chosen one reads."""
    for flag, value in said.items():
        if flag in ("--num-prompts", "--dataset-name"):
            account.applied(f"{flag} {value}", "workload")
        elif (
            flag == "--dataset-path"
            or flag.startswith(("--random-", _REPETITION))
            or flag
            in (
                "--input-len",
                "--output-len",
            )
        ):
            if flag.startswith(_OF_DATASET[name]):
                account.applied(f"{flag} {value}", "workload." + _place(name))
            elif (name, flag) == ("sharegpt", "--output-len"):
                account.refused(f"{flag} {value}", REFUSED["--sharegpt-output-len"][0])
            else:
                account.no_effect(flag, "it belongs to another dataset")


def _place(name: str) -> str:
    return "trace" if name == "sharegpt" else "lengths"


def _ratios(text: str) -> tuple[float, float]:
    """Return how far prompts and answers spread, of "0.3" or '{"input": 0.3, "output": 0.5}'."""
    try:
        ratios: list[Any] = [float(text)] * 2
    except ValueError:
        both = mapping(text)
        ratios = [both.get(key) for key in ("input", "output")]
    prompts, answers = (r if isinstance(r, int | float) else math.nan for r in ratios)
    if not (0 <= prompts < 1 and 0 <= answers < 1):
        raise ArgumentTypeError("must be in [0, 1), one for both or of input and output")
    return prompts, answers


def _random(said: Mapping[str, Any], num_prompts: int, account: Account) -> dict[str, Any]:
    written = said.get("--random-range-ratio", "0")
    try:
        spread, spread_out = _ratios(written)
    except (ArgumentTypeError, RecursionError) as error:
        account.refused(f"--random-range-ratio {cut(written)}", str(error))
        spread = spread_out = 0.0
    prompt = said.get("--input-len", said.get("--random-input-len", _INPUT_LEN))
    output = said.get("--output-len", said.get("--random-output-len", _OUTPUT_LEN))
    prefix = said.get("--random-prefix-len", 0)
    lengths = {"num_requests": num_prompts, "output": _length(output, spread_out)}
    if not prefix:
        return {"type": "synthetic", "prompt": _length(prompt, spread), **lengths}
    shared = {"num_prefixes": 1, "prefix_len": prefix}
    return {"type": "prefix_repetition", **shared, "suffix": _length(prompt, spread), **lengths}


def _repeated(said: Mapping[str, Any]) -> dict[str, Any]:
    """Return lengths of requests that share beginnings."""
    output = said.get("--output-len", said.get(f"{_REPETITION}output-len", _OUTPUT_LEN))
    return {
        "type": "prefix_repetition",
        "num_prefixes": said.get(f"{_REPETITION}num-prefixes", 10),
        "prefix_len": said.get(f"{_REPETITION}prefix-len", 256),
        "suffix": _length(said.get(f"{_REPETITION}suffix-len", 256), 0.0),
        "output": _length(output, 0.0),
    }


def _length(mean: int, ratio: float) -> dict[str, Any]:
    """Return whole numbers in [mean (1 - ratio), mean (1 + ratio)], equally likely."""
    if not ratio:
        return {"type": "fixed", "tokens": mean}
    low, high = max(1, math.floor(mean * (1 - ratio))), math.ceil(mean * (1 + ratio))
    return {"type": "uniform", "low": low, "high": high}


def _arrivals(said: Mapping[str, Any], account: Account) -> dict[str, Any]:
    """Return when requests are sent, and how many may be under way."""
    rate, users = said.get("--request-rate", math.inf), said.get("--max-concurrency")
    burstiness = said.get("--burstiness", 1.0)
    if "--request-rate" in said:
        account.applied(f"--request-rate {rate:g}", "workload.arrivals")
    if "--burstiness" in said and rate == math.inf:
        account.no_effect("--burstiness", "without a rate, requests do not wait for their turn")
    elif "--burstiness" in said:
        account.applied(f"--burstiness {burstiness:g}", "workload.arrivals")
    if users is not None:
        key = "arrivals" if rate == math.inf else "max_concurrency"
        account.applied(f"--max-concurrency {users}", f"workload.{key}")
    if rate == math.inf:
        loop = {"type": "closed_loop", "concurrency": users}
        return {"arrivals": {"type": "all_at_once"} if users is None else loop}
    sent: dict[str, Any] = {"type": "poisson", "rate": f"{rate:g} /s"}
    if burstiness != 1.0:
        sent = {"type": "gamma", "rate": f"{rate:g} /s", "burstiness": burstiness}
    return {"arrivals": sent, **({} if users is None else {"max_concurrency": users})}


def _sampled(said: Mapping[str, Any], account: Account) -> dict[str, Any]:
    """Return the sampling parameters of the requests, by vLLM's names.

    Missing ones are the server's; benchmarks before 0.15 send a temperature of 0.
    """
    asked = {name: said[flag] for flag, name in _SAMPLED.items() if flag in said}
    for name, value in asked.items():
        account.applied(f"--{name.replace('_', '-')} {value:g}", f"{SAMPLING}.{name} of the client")
    return asked


def _extra_body(
    said: Mapping[str, Any], workload: dict[str, Any], account: Account
) -> dict[str, Any]:
    """Apply the extra keys of a request body: `max_tokens` replaces a length.

    Return its sampling parameters.
    """
    if "--extra-body" not in said:
        return {}
    try:
        body = mapping(said["--extra-body"])
    except (ArgumentTypeError, RecursionError) as error:
        account.refused("--extra-body", str(error))
        return {}
    sampled = {key: body[key] for key in _SAMPLED.values() if key in body}
    for key, value in body.items():
        written = f"--extra-body {key}={cut(str(value))}"
        if key in ("max_tokens", "max_completion_tokens") and isinstance(value, int):
            _answer(value, workload)
            account.overrule(_ANSWERS, "max_tokens of --extra-body takes its place")
            account.applied(written, "workload")
        elif key in ("max_tokens", "max_completion_tokens") and value is not None:
            account.refused(written, "must be a whole number")
        elif key in ("n", "best_of") and value != 1:
            account.refused(written, "one answer a request is simulated; leave it out")
        elif key in sampled:
            account.applied(written, f"{SAMPLING}.{key} of the client")
        elif key == "min_tokens":
            account.assumed(written, "answers have the lengths of the command")
        else:
            account.no_effect(f"--extra-body {key}", "answers have the lengths of the command")
    return sampled


def _answer(tokens: int, workload: dict[str, Any]) -> None:
    if "lengths" in workload:
        workload["lengths"]["output"] = {"type": "fixed", "tokens": tokens}
    else:
        workload["max_tokens"] = tokens


def _limits(pairs: Sequence[str], account: Account) -> dict[str, str]:
    limits = {}
    known = ", ".join(f"{each}:MS" for each in _GOODPUT)
    for pair in pairs:
        name, _, milliseconds = pair.partition(":")
        if name not in _GOODPUT or not milliseconds:
            account.refused(f"--goodput must be of {known}", f"got {brief(pair)}")
            continue
        try:
            float(milliseconds)
        except ValueError:
            account.refused(f"--goodput {cut(pair)}", f"must be of {known}, in milliseconds")
            continue
        limits[name] = f"{milliseconds} ms"
        account.applied(f"--goodput {pair}", f"slo.{name}")
    return limits
