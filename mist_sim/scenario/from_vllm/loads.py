"""What the command line of a load generator says, and the workload that it means."""

from __future__ import annotations

import math
from argparse import ArgumentTypeError
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from mist_sim.errors import brief, cut
from mist_sim.hardware.sampling import PENALTIES, said_by_vllm
from mist_sim.scenario.from_vllm.account import Account
from mist_sim.scenario.from_vllm.flags import Flag, flags_of
from mist_sim.scenario.from_vllm.tables import ARITIES, SHORT, Row, mapping, positive, table_of


@dataclass(eq=False)
class Load(Account):
    """What a command line says of a load, by key, and the account of its flags.

    said: values. written: their flags, as written, and those of values that are refused.
    """

    said: dict[str, Any] = field(default_factory=dict)
    written: dict[str, str] = field(default_factory=dict)

    def get(self, key: str, default: Any = None) -> Any:
        """Return a value that is said, or the default."""
        return self.said.get(key, default)

    def use(self, keys: str | Sequence[str], place: str) -> None:
        """Note the flags of keys that are said as applied. place: in the scenario."""
        for key in [keys] if isinstance(keys, str) else keys:
            if key in self.written:
                self.applied(self.written[key], place)

    def unused(self, keys: Sequence[str], why: str) -> None:
        """Note the flags of keys that are said as without effect."""
        for key in keys:
            if key in self.written:
                self.no_effect(self.written[key].partition(" ")[0], why)


def read_load(
    words: Sequence[str], rows: Sequence[Row], *, has_engine: bool
) -> tuple[Load, list[Flag]]:
    """Return what a command line says by a table, and the flags that it has beside.

    has_engine: whether these may be flags of `vllm serve`.
    """
    by_name = {row.flag: row for row in rows}
    short = {**(SHORT if has_engine else {})}
    short |= {alias: row.flag for row in rows for alias in row.aliases}
    arities = {**(ARITIES if has_engine else {}), **{row.flag: row.takes for row in rows}}
    flags = flags_of(words, arities, short)
    last = {flag.name: flag for flag in flags if not flag.fault}
    load, rest = Load(), list[Flag]()
    for flag in flags:
        if flag.fault:
            load.refused(flag.name, flag.fault)
        elif flag.name not in by_name and flag.name:
            rest.append(flag)
        elif flag.name and last[flag.name] is not flag and not by_name[flag.name].adds:
            load.no_effect(flag, f"{flag.name} is given again behind it")
        elif not flag.name:
            loose = cut(" ".join(flag.values))
            load.refused(loose, "follows no flag that takes it; leave it out")
        else:
            _read(flag, by_name[flag.name], load)
    return load, rest


def _read(flag: Flag, row: Row, load: Load) -> None:
    if row.fate == "refused" and row.asks_for_nothing(flag):
        load.no_effect(flag, "it asks for what is simulated")
    elif row.fate == "refused":
        load.refused(flag, row.why)
    elif row.fate == "assumed":
        load.assumed(flag, row.why)
    elif row.fate == "no effect":
        load.no_effect(flag.name, row.why)
    else:
        load.written[row.key] = flag.written
        try:
            before = load.said.get(row.key, []) if row.adds else []
            value = _value(flag, row)
            load.said[row.key] = [*before, *value] if before else value
        except (ArgumentTypeError, RecursionError) as error:
            load.refused(flag, str(error))
        except ValueError:
            load.refused(flag, f"must be a number, got {cut(flag.value)!r}")


def _value(flag: Flag, row: Row) -> Any:
    if row.takes == "switch":
        return flag.is_on
    return list(flag.values) if row.takes == "many" else row.reads(flag.value)


# --- workloads ----------------------------------------------------------------------------------

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


def random_lengths(load: Load, number: int, length: Length = around) -> dict[str, Any]:
    """Return lengths that are drawn, with a beginning in common if one is said."""
    spread = load.get("random.spread", 0.0)
    spread_in, spread_out = spread if isinstance(spread, tuple) else (spread, spread)
    prompt = _law(load.get("prompt", load.get("random.prompt")), spread_in, length)
    output = _law(load.get("output", load.get("random.output")), spread_out, length)
    shared = load.get("random.prefixes", 1), load.get("random.prefix", 0)
    return _lengths(number, prompt, output, *shared)


def repeated_lengths(load: Load, number: int, length: Length = around) -> dict[str, Any]:
    """Return lengths of requests that share beginnings."""
    spread = load.get("repeat.spread", 0.0)
    prompt = _law(load.get("repeat.suffix"), spread, length)
    output = _law(load.get("output", load.get("repeat.output")), spread, length)
    return _lengths(number, prompt, output, load.get("repeat.number"), load.get("repeat.prefix"))


def _lengths(
    number: int, prompt: Any, output: Any, num_prefixes: int, prefix: int
) -> dict[str, Any]:
    if not prefix:
        return {"type": "synthetic", "prompt": prompt, "num_requests": number, "output": output}
    shared = {"num_prefixes": num_prefixes, "prefix_len": prefix, "suffix": prompt}
    return {"type": "prefix_repetition", **shared, "num_requests": number, "output": output}


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


def choose(load: Load, program: str, dataset: str) -> str:
    """Return which data set is drawn from, after noting which flags of lengths it reads.

    program: whose table says what its data sets read, and the defaults, which are filled in. A set
    that is not known, or whose file is not named, is refused, and `random` takes its place.
    """
    table = table_of(program)
    reads: Mapping[str, Sequence[str]] = table["datasets"]
    if dataset not in reads:
        load.refused(
            f"--dataset-name {cut(dataset)}",
            f"{', '.join(reads)} alone are read; write workload.trace or "
            "workload.lengths in the scenario",
        )
        dataset = "random"
    else:
        _note_lengths(load, tuple(reads[dataset]))
        if "path" in reads[dataset] and load.get("path") is None:
            load.refused("", f"--dataset-path is required with {dataset}, and no file is fetched")
            dataset = "random"
    load.said = table["defaults"] | load.said
    return dataset


def _note_lengths(load: Load, mine: tuple[str, ...]) -> None:
    """Note which flags of lengths a data set reads. mine: the beginnings of their keys."""
    place = "workload.lengths" if "path" not in mine else "workload.trace"
    load.use(("requests", "dataset"), "workload")
    for key in list(load.said):
        if key.partition(".")[0] in ("random", "repeat", "trace", "path", "prompt", "output"):
            if key.startswith(mine):
                load.use(key, place)
            elif key == "output" and "path" in mine:
                load.refused(load.written[key], OWN_LENGTHS)
            else:
                load.unused([key], "it belongs to another dataset")
    for general in ("prompt", "output"):
        own = [
            key
            for each in mine
            for key in load.said
            if key.startswith(each) and key.endswith(f".{general}")
        ]
        if general in load.said and own and general in mine:
            written = [load.written[key].partition(" ")[0] for key in own]
            load.overrule(written, f"{load.written[general].partition(' ')[0]} takes its place")


def arrivals(load: Load, *, stretched: bool = False) -> dict[str, Any]:
    """Return when requests are sent, and how many may be under way.

    stretched: whether the tool sends the last of n requests at n / rate.
    """
    rate, users = load.get("rate", math.inf), load.get("concurrency")
    burstiness, pattern = load.get("burstiness", 1.0), load.get("pattern", "poisson")
    load.use(("rate", "pattern"), "workload.arrivals")
    if rate == math.inf:
        load.unused(["burstiness"], "without a rate, requests do not wait for their turn")
        load.use("concurrency", "workload.arrivals")
        loop = {"type": "closed_loop", "concurrency": users}
        if users is not None and load.get("ramp_up"):
            loop["ramp_up"] = f"{_digits(load.get('ramp_up'))} s"
            load.use("ramp_up", "workload.arrivals.ramp_up")
        return {"arrivals": {"type": "all_at_once"} if users is None else loop}
    load.use("burstiness", "workload.arrivals")
    load.use("concurrency", "workload.max_concurrency")
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
        load.applied(flag, f"workload.adapters: {brief(names)}")
    asked = {name: load.get(name) for name in SAMPLED if name in load.said}
    for name in asked:
        load.use(name, f"{SAMPLING}.{name} of the client")
    asked |= _body(load, workload)
    if asked:
        keys[SAMPLING] = said_by_vllm(asked)
    if "goodput" in load.said:
        keys["slo"] = load.get("goodput")
    if "seed" in load.said:
        keys["seed"] = load.get("seed")
        load.use("seed", "seed")
    return keys


def note_stops(load: Load, remedy: str) -> None:
    """Note that answers are as long as asked for, unless the model is told not to stop.

    remedy: the flag that tells it.
    """
    body = load.get("body", {})
    if not any(body.get(key) for key in ("ignore_eos", "min_tokens")):
        load.assumed(f"a line without {remedy}", MAY_STOP)


def _body(load: Load, workload: dict[str, Any]) -> dict[str, Any]:
    """Apply the extra keys of a request body: `max_tokens` replaces a length.

    Return its sampling parameters.
    """
    body = load.get("body", {})
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
            load.overrule(names, f"{key} of {flag} takes its place")
            load.applied(written, "workload")
        elif key in _CAPS and value is not None:
            load.refused(written, "must be a whole number")
        elif key in ("n", "best_of") and value != 1:
            load.refused(written, ONE_ANSWER)
        elif key in SAMPLED:
            load.applied(written, f"{SAMPLING}.{key} of the client")
        elif key == "min_tokens":
            load.assumed(written, BY_COMMAND)
        else:
            load.no_effect(f"{flag} {key}", BY_COMMAND)
    return {key: body[key] for key in SAMPLED if key in body}


def _answer(tokens: int, workload: dict[str, Any]) -> None:
    if "lengths" in workload:
        workload["lengths"]["output"] = fixed(tokens)
    else:
        workload["max_tokens"] = tokens


def limits(load: Load, pairs: Sequence[str], names: Mapping[str, str]) -> dict[str, str]:
    """Return the limits of pairs NAME:MS. names: the key of a limit by the generator's name."""
    found = {}
    known = ", ".join(f"{each}:MS" for each in names)
    for pair in pairs:
        name, _, milliseconds = pair.partition(":")
        if name not in names or not milliseconds:
            load.refused(f"--goodput must be of {known}", f"got {brief(pair)}")
            continue
        try:
            positive(milliseconds)
        except (ArgumentTypeError, ValueError):
            load.refused(f"--goodput {cut(pair)}", f"must be of {known}, in milliseconds")
            continue
        found[names[name]] = f"{milliseconds} ms"
        load.applied(f"--goodput {pair}", f"slo.{names[name]}")
    return found
