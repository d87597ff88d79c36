"""`guidellm benchmark` and `guidellm benchmark run`.

Source: the options of `benchmark run` in src/guidellm/__main__.py, and the configuration of
synthetic text in src/guidellm/data (0.3 to 0.6).
"""

from __future__ import annotations

import math
from argparse import ArgumentTypeError
from typing import Any

from mist_sim.bounds import COUNT
from mist_sim.errors import brief, did_you_mean
from mist_sim.scenario.from_vllm.generators.table import Load
from mist_sim.scenario.from_vllm.generators.workloads import (
    arrivals,
    between,
    fixed,
    keys_of,
    normal,
    random_lengths,
)
from mist_sim.scenario.from_vllm.tables import mapping, positive, rows_of

_SWEEP = "several loads are several runs: name one, and look for the most with mist goodput"
_PROFILES = "synchronous, concurrent, throughput, constant, async and poisson"
_FIGURES = ("", "_stdev", "_min", "_max")
_NO_TIME = ("source", "samples", "random_seed", "processor", "type", "kind")
_PREFIX = ("prefix_tokens", "prefix_count", "prefix_buckets")
_KEYS = (
    *(f"{side}_tokens{figure}" for side in ("prompt", "output") for figure in _FIGURES),
    *_PREFIX,
    "turns",
)


def one_rate(text: str) -> float:
    """Return the only number of a list."""
    numbers = text.strip("[]").split(",")
    if len(numbers) > 1:
        raise ArgumentTypeError(
            "one load a run is simulated; name one, and take mist sweep for several"
        )
    return positive(numbers[0])


def synthetic(text: str) -> dict[str, Any]:
    """Return the configuration of texts that are drawn, in JSON or as key=value,key=value."""
    if text.lstrip().startswith("{"):
        return mapping(text)
    if "=" not in text:
        raise ArgumentTypeError(
            "texts of a data set are not read; write --data prompt_tokens=512,output_tokens=128, "
            "or workload.trace in the scenario"
        )
    pairs = (part.partition("=") for part in text.split(",") if part.strip())
    return {key.strip(): _number(value.strip()) for key, _, value in pairs}


def _number(text: str) -> Any:
    return int(text) if text.isdecimal() else text


ROWS = rows_of("guidellm", synthetic, one_rate)


def keys(load: Load) -> dict[str, Any]:
    """Return the scenario keys of the benchmark."""
    has_rate = "load" in load.said or "load" not in load.written
    if has_rate:
        _arrivals(load)
    number = number_of(load, "--max-requests", "--max-seconds") if has_rate else 1
    data = load.get("data")
    if data is None:
        load.account.refused("", "--data is required, as prompt_tokens=512,output_tokens=128")
        data = {"prompt_tokens": 1, "output_tokens": 1}
    _lengths(data, load)
    return keys_of(load, {"lengths": random_lengths(load, number)} | arrivals(load))


def number_of(load: Load, count: str, time: str, default: int | None = None) -> int:
    """Return how many requests are sent: as said, or as many as a rate sends in a time.

    count, time: flags that say one or the other. default: without both.
    """
    number = load.get("requests")
    seconds: float | None = load.get("seconds")
    rate: float = load.get("rate", math.inf)
    if number is not None:
        load.applied("requests", "workload.lengths.num_requests")
        load.unused(["seconds"], f"{count} ends the run")
        return int(number)
    if seconds is not None and rate < math.inf:
        written = load.written["seconds"]
        if seconds * rate > COUNT:
            load.account.refused(written, f"the rate sends more than {COUNT} requests in that time")
            return 1
        sent = max(1, round(seconds * rate))
        load.account.assumed(
            written,
            f"num_requests: {sent}, which the rate sends in that time. All are answered here; a "
            "tool that stops then counts those alone that are answered by then, in an overload "
            "fewer and faster ones",
        )
        return sent
    if default is not None and seconds is None:
        load.account.assumed(f"a line without {count}", f"num_requests: {default}")
        return default
    load.account.refused(
        load.written.get("seconds", ""),
        f"a run without a rate has a number of requests here, not a time; write {count} N in place "
        f"of {time}",
    )
    return 1


def _arrivals(load: Load) -> None:
    """Say when requests are sent, by the profile and its number."""
    profile, number = load.get("profile", "sweep"), load.said.pop("load", None)
    written = load.written.get("profile", "")
    if profile == "synchronous":
        load.said["concurrency"] = 1
    elif profile in ("concurrent", "throughput") and number is not None:
        load.said["concurrency"] = int(number)
        if number != int(number):
            load.account.refused(load.written["load"], "must be a whole number of users")
    elif profile in ("constant", "async", "poisson") and number is not None:
        load.said |= {"rate": number, "pattern": "poisson" if profile == "poisson" else "constant"}
    elif profile == "throughput":
        pass  # all at once
    elif profile in ("concurrent", "constant", "async", "poisson"):
        load.account.refused(written, "--rate is required with it")
        return
    elif profile == "sweep":
        load.account.refused(written or "--profile sweep (its default)", _SWEEP)
        return
    else:
        hint = did_you_mean(profile, _PROFILES.replace(" and", ",").split(", "))
        load.account.refused(written, f"{_PROFILES} are read{hint}")
        return
    load.applied(("profile", "load"), "workload.arrivals")


def _lengths(data: dict[str, Any], load: Load) -> None:
    """Say the lengths of texts that are drawn."""
    account = load.account
    for key in data:
        if key not in (*_KEYS, *_NO_TIME):
            account.refused(f"--data {key}", f"not known{did_you_mean(key, _KEYS)}")
    if data.get("turns", 1) != 1:
        account.refused("--data turns", "turns of a conversation are sent from traces; write 1")
    if data.get("prefix_buckets"):
        account.refused("--data prefix_buckets", "one beginning in common is simulated; write "
                        "prefix_tokens and prefix_count")  # fmt: skip
    for side in ("prompt", "output"):
        figures = [data.get(f"{side}_tokens{figure}") for figure in _FIGURES]
        wrong = [each for each in figures if each is not None and not _is_whole(each)]
        if figures[0] is None or wrong:
            account.refused(
                f"--data {side}_tokens", f"must be a whole number of tokens, got {brief(figures)}"
            )
            figures = [1, None, None, None]
        load.said[side] = _law(figures, f"--data {side}_tokens_stdev", load)
    if data.get("prefix_tokens"):
        load.said["random.prefix"] = data["prefix_tokens"]
        load.said["random.prefixes"] = data.get("prefix_count", 1)
    load.applied("data", "workload.lengths")


def _is_whole(value: Any) -> bool:
    """Whether a value of a configuration is a number of tokens."""
    return type(value) in (int, float) and 0 <= value <= COUNT and value == int(value)


def _law(figures: list[Any], flag: str, load: Load) -> dict[str, Any]:
    """Return the law of (mean, standard deviation, least, most)."""
    mean, std, least, most = figures
    if std:
        if least is not None or most is not None:
            load.account.assumed(flag, "a normal distribution, not cut at the minimum and maximum")
        return normal(float(mean), float(std))
    if least is None and most is None:
        return fixed(int(mean))
    return between(int(mean if least is None else least), int(mean if most is None else most))
