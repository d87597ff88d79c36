"""From what a load generator says to the workload and the limits of a scenario."""

from __future__ import annotations

import math
from argparse import ArgumentTypeError
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from mist_sim.errors import brief, cut
from mist_sim.hardware.sampling import PENALTIES, said_by_vllm
from mist_sim.scenario.from_vllm.account import Account
from mist_sim.scenario.from_vllm.generators.table import Load
from mist_sim.scenario.from_vllm.tables import mapping, positive

SAMPLING = "sampling"
"""Key of what a benchmark says about drawing tokens, which is a key of each client."""

SAMPLED = ("temperature", "top_p", "top_k", *PENALTIES)
OWN_LENGTHS = "answers of the file have their own lengths; instead: --set workload.max_tokens=N"
BY_COMMAND = "answers have the lengths of the command"
MAY_STOP = "answers take all tokens that are asked for; a model may end them earlier"
ONE_ANSWER = "one answer a request is simulated; leave it out"
_CAPS = ("max_tokens", "max_completion_tokens")

Length = Callable[[int, float], dict[str, Any]]
"""Makes a law of lengths of a figure and of how far lengths spread around it."""


def fixed(tokens: int) -> dict[str, Any]:
    """Return a law of one length."""
    return {"type": "fixed", "tokens": tokens}


def between(low: int, high: int) -> dict[str, Any]:
    """Return whole numbers between two, equally likely; below 1 there are none."""
    return fixed(high) if low == high else {"type": "uniform", "low": max(1, low), "high": high}


def around(mean: int, ratio: float) -> dict[str, Any]:
    """Return whole numbers in [mean (1 - ratio), mean (1 + ratio)], as vLLM draws them."""
    if not ratio:
        return fixed(mean)
    return between(math.floor(mean * (1 - ratio)), math.ceil(mean * (1 + ratio)))


def normal(mean: float, std: float) -> dict[str, Any]:
    """Return a normal law, of one length without a deviation."""
    return {"type": "normal", "mean": mean, "std": std} if std else fixed(round(mean))


def random_lengths(load: Load, num_requests: int, length: Length = around) -> dict[str, Any]:
    """Return lengths that are drawn, with a beginning in common if one is said."""
    spread = load.get("random.spread", 0.0)
    spread_in, spread_out = spread if isinstance(spread, tuple) else (spread, spread)
    prompt = load.get("prompt", load.get("random.prompt"))
    output = load.get("output", load.get("random.output"))
    lengths = {"num_requests": num_requests, "output": _law(output, spread_out, length)}
    prefix = load.get("random.prefix", 0)
    if not prefix:
        return {"type": "synthetic", "prompt": _law(prompt, spread_in, length), **lengths}
    shared = {"num_prefixes": load.get("random.prefixes", 1), "prefix_len": prefix}
    suffix = _law(prompt, spread_in, length)
    return {"type": "prefix_repetition", **shared, "suffix": suffix, **lengths}


def repeated_lengths(load: Load, num_requests: int, length: Length = around) -> dict[str, Any]:
    """Return lengths of requests that share beginnings."""
    spread = load.get("repeat.spread", 0.0)
    prompt = _law(load.get("repeat.suffix"), spread, length)
    output = _law(load.get("output", load.get("repeat.output")), spread, length)
    lengths = {"num_requests": num_requests, "output": output}
    prefix = load.get("repeat.prefix")
    if not prefix:
        return {"type": "synthetic", "prompt": prompt, **lengths}
    shared = {"num_prefixes": load.get("repeat.number"), "prefix_len": prefix}
    return {"type": "prefix_repetition", **shared, "suffix": prompt, **lengths}


def _law(value: Any, spread: float, length: Length) -> Any:
    return value if isinstance(value, dict) else length(value, spread)


def ratios(text: str) -> tuple[float, float]:
    """Return how far prompts and answers spread, of "0.3" or '{"input": 0.3, "output": 0.5}'."""
    try:
        found: list[Any] = [float(text)] * 2
    except ValueError:
        both = mapping(text)
        found = [both.get(key) for key in ("input", "output")]
    prompts, answers = (r if isinstance(r, int | float) else math.nan for r in found)
    if not (0 <= prompts < 1 and 0 <= answers < 1):
        raise ArgumentTypeError("must be in [0, 1), one for both or of input and output")
    return prompts, answers


def share(text: str) -> float:
    """Return a number from 0 to 1."""
    value = float(text)
    if not 0 <= value <= 1:
        raise ArgumentTypeError("must be in [0, 1]")
    return value


def has_file(load: Load, dataset: str) -> bool:
    """Tell whether the command names the dataset's file; refused if it does not."""
    if load.get("path") is None:
        load.account.refused(
            "", f"--dataset-path is required with {dataset}, and no file is fetched"
        )
        return False
    return True


def choose(load: Load, dataset: str, reads: Mapping[str, Sequence[str]], known: str = "") -> bool:
    """Note which flags of lengths the dataset reads; return whether it is a known one.

    reads: the beginnings of the keys that each dataset reads. known: text in place of their names.
    """
    if dataset not in reads:
        load.account.refused(
            f"--dataset-name {cut(dataset)}",
            f"{known or ', '.join(reads)} alone are read; write workload.trace or "
            "workload.lengths in the scenario",
        )
        return False
    mine = tuple(reads[dataset])
    place = "workload.lengths" if "path" not in mine else "workload.trace"
    load.applied(("requests", "dataset"), "workload")
    for key in (*load.starting(""),):
        family = key.partition(".")[0]
        if family in ("random", "repeat", "trace", "path", "prompt", "output"):
            if key.startswith(mine):
                load.applied(key, place)
            elif key == "output" and "path" in mine:
                load.account.refused(load.written[key], OWN_LENGTHS)
            else:
                load.unused([key], "it belongs to another dataset")
    for general in ("prompt", "output"):
        own = [key for each in mine for key in load.starting(each) if key.endswith(f".{general}")]
        if general in load.said and own and general in mine:
            written = [load.written[key].partition(" ")[0] for key in own]
            why = f"{load.written[general].partition(' ')[0]} takes its place"
            load.account.overrule(written, why)
    return True


def arrivals(load: Load, *, stretched: bool = False) -> dict[str, Any]:
    """Return when requests are sent, and how many may be under way.

    stretched: whether the tool sends the last of n requests at n / rate.
    """
    rate, users = load.get("rate", math.inf), load.get("concurrency")
    burstiness, pattern = load.get("burstiness", 1.0), load.get("pattern", "poisson")
    load.applied(("rate", "pattern"), "workload.arrivals")
    if rate == math.inf:
        load.unused(["burstiness"], "without a rate, requests do not wait for their turn")
        load.applied("concurrency", "workload.arrivals")
        loop = {"type": "closed_loop", "concurrency": users}
        if users is not None and load.get("ramp_up"):
            loop["ramp_up"] = f"{_digits(load.get('ramp_up'))} s"
            load.applied("ramp_up", "workload.arrivals.ramp_up")
        return {"arrivals": {"type": "all_at_once"} if users is None else loop}
    load.applied("burstiness", "workload.arrivals")
    load.applied("concurrency", "workload.max_concurrency")
    sent: dict[str, Any] = {"type": "constant" if pattern == "constant" else "poisson"}
    sent["rate"] = f"{_digits(rate)} /s"
    if burstiness != 1.0 and pattern != "constant":
        sent |= {"type": "gamma", "burstiness": burstiness}
    if stretched:
        sent["stretched"] = True
    return {"arrivals": sent, **({} if users is None else {"max_concurrency": users})}


def _digits(value: float) -> str:
    """Return a number with all its digits, and no more than it takes."""
    short = f"{value:g}"
    return short if float(short) == value else repr(value)


def keys_of(load: Load, workload: dict[str, Any]) -> dict[str, Any]:
    """Return the scenario keys of a load whose requests and arrivals are known.

    They include `SAMPLING` if it says how requests sample tokens.
    """
    keys: dict[str, Any] = {"workload": workload}
    if names := load.get("adapters"):
        keys["workload"]["adapters"] = dict.fromkeys(names, 1)
        flag = load.written["adapters"].partition(" ")[0]
        load.account.applied(flag, f"workload.adapters: {brief(names)}")
    asked = {name: load.get(name) for name in SAMPLED if name in load.said}
    for name in asked:
        load.applied(name, f"{SAMPLING}.{name} of the client")
    asked |= _body(load, workload)
    if asked:
        keys[SAMPLING] = said_by_vllm(asked)
    if "goodput" in load.said:
        keys["slo"] = load.get("goodput")
    if "seed" in load.said:
        keys["seed"] = load.get("seed")
        load.applied("seed", "seed")
    return keys


def note_stops(load: Load, remedy: str) -> None:
    """Note that answers are as long as asked for, unless the model is told not to stop.

    remedy: the flag that tells it.
    """
    body = load.get("body", {})
    if not any(body.get(key) for key in ("ignore_eos", "min_tokens")):
        load.account.assumed(f"a line without {remedy}", MAY_STOP)


def _body(load: Load, workload: dict[str, Any]) -> dict[str, Any]:
    """Apply the extra keys of a request body: `max_tokens` replaces a length.

    Return its sampling parameters.
    """
    body, account = load.get("body", {}), load.account
    flag = load.written.get("body", "").partition(" ")[0]
    for key, value in body.items():
        written = f"{flag} {key}={cut(str(value))}"
        if key in _CAPS and isinstance(value, int):
            _answer(value, workload)
            answers = [
                load.written[k]
                for k in ("output", "random.output", "repeat.output")
                if k in load.written
            ]
            names = [each.partition(" ")[0] for each in answers]
            account.overrule(names, f"{key} of {flag} takes its place")
            account.applied(written, "workload")
        elif key in _CAPS and value is not None:
            account.refused(written, "must be a whole number")
        elif key in ("n", "best_of") and value != 1:
            account.refused(written, ONE_ANSWER)
        elif key in SAMPLED:
            account.applied(written, f"{SAMPLING}.{key} of the client")
        elif key == "min_tokens":
            account.assumed(written, BY_COMMAND)
        else:
            account.no_effect(f"{flag} {key}", BY_COMMAND)
    return {key: body[key] for key in SAMPLED if key in body}


def _answer(tokens: int, workload: dict[str, Any]) -> None:
    if "lengths" in workload:
        workload["lengths"]["output"] = fixed(tokens)
    else:
        workload["max_tokens"] = tokens


def limits(
    load: Load, pairs: Sequence[str], names: Mapping[str, str], flag: str = "--goodput"
) -> dict[str, str]:
    """Return the limits of pairs NAME:MS. names: the key of a limit by the generator's name."""
    found = {}
    known = ", ".join(f"{each}:MS" for each in names)
    account: Account = load.account
    for pair in pairs:
        name, _, milliseconds = pair.partition(":")
        if name not in names or not milliseconds:
            account.refused(f"{flag} must be of {known}", f"got {brief(pair)}")
            continue
        try:
            positive(milliseconds)
        except (ArgumentTypeError, ValueError):
            account.refused(f"{flag} {cut(pair)}", f"must be of {known}, in milliseconds")
            continue
        found[names[name]] = f"{milliseconds} ms"
        account.applied(f"{flag} {pair}", f"slo.{names[name]}")
    return found
