"""Load generators: what their flags say, and the scenario keys that their lines mean.

Sources, each with its defaults: `add_cli_args` in vllm/benchmarks/serve.py, throughput.py and
latency.py, `add_dataset_parser` and the data sets in vllm/benchmarks/datasets (0.19, 0.33), and the
benchmark scripts of older versions; the argument parser and the data sets of
python/sglang/bench_serving.py (0.5), which is sglang/benchmark/serving.py and
sglang/benchmark/datasets in newer releases; the options of `benchmark run` in
src/guidellm/__main__.py, and the configuration of synthetic text in src/guidellm/data (0.3 to 0.6);
the command line options of NVIDIA AIPerf (its page on CLI options, 0.2 to 0.13) and of GenAI-Perf
(triton-inference-server/perf_analyzer, genai-perf/docs), whose names AIPerf keeps.
"""

from __future__ import annotations

import json
import math
import re
from argparse import ArgumentTypeError
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from mist_sim.bounds import COUNT
from mist_sim.core.front_end import TIMES
from mist_sim.errors import brief, did_you_mean
from mist_sim.scenario.from_vllm.loads import (
    BY_COMMAND,
    MAY_STOP,
    Load,
    arrivals,
    between,
    choose,
    fixed,
    keys_of,
    limits,
    normal,
    note_stops,
    random_lengths,
    ratios,
    read_load,
    repeated_lengths,
    share,
)
from mist_sim.scenario.from_vllm.tables import Row, finite, mapping, positive, rows_of

# --- vllm bench ---------------------------------------------------------------------------------


def _serve(load: Load) -> dict[str, Any]:
    """Return the scenario keys of `vllm bench serve`."""
    if any(kind in load.get("backend", "") for kind in ("embed", "rerank", "pooling", "audio")):
        load.refused(
            load.written["backend"],
            "text generation alone is simulated: give a line for completions or chats",
        )
    else:
        where = "it gives the server's address and the benchmark's own metadata"
        load.unused(["backend"], where)
    if load.get("ignore_eos"):
        load.unused(["ignore_eos"], BY_COMMAND)
    elif "ignore_eos" in load.said:
        load.assumed(load.written["ignore_eos"], MAY_STOP)
    else:
        note_stops(load, "--ignore-eos")
    workload = _requests(load, load.get("dataset", "random"))
    if "limits" in load.said:
        names = {"ttft": "ttft", "tpot": "tpot", "e2el": "e2el"}
        load.said["goodput"] = limits(load, load.get("limits"), names)
    if "arrivals" not in workload:
        workload |= arrivals(load, stretched=True)
    return keys_of(load, workload)


def _throughput(load: Load) -> dict[str, Any]:
    """Return the scenario keys of `vllm bench throughput` but for its engine's."""
    dataset = load.get("dataset", "random" if load.get("path") is None else "sharegpt")
    if dataset == "random" and not {"prompt", "random.prompt"} & load.said.keys():
        load.refused("", "--input-len and --output-len are required without a data set")
    return _offline(load, _requests(load, dataset))


def _latency(load: Load) -> dict[str, Any]:
    """Return the scenario keys of `vllm bench latency` but for its engine's."""
    load.said = {"prompt": 32, "output": 128, "requests": 8} | load.said
    load.use(("prompt", "output", "requests"), "workload.lengths")
    return _offline(load, {"lengths": random_lengths(load, load.get("requests"))})


def _offline(load: Load, workload: dict[str, Any]) -> dict[str, Any]:
    """Return the keys of a run without a server, where all requests are there from the start."""
    load.said |= {"temperature": 1.0, "top_p": 1.0}  # both programs ask for them
    workload.pop("arrivals", None)
    keys = keys_of(load, {**workload, "arrivals": {"type": "all_at_once"}})
    return {**keys, "front_end": dict.fromkeys(TIMES, "0 s")}


def _requests(load: Load, dataset: str) -> dict[str, Any]:
    """Return the requests of a data set, and their arrivals where its file has them."""
    number = load.get("requests", 1000)
    dataset = choose(load, "vllm-requests", dataset)
    if dataset == "prefix_repetition":
        return {"lengths": repeated_lengths(load, number)}
    if dataset == "random":
        return {"lengths": random_lengths(load, number)}
    trace: dict[str, Any] = {"path": load.get("path"), "num_requests": number}
    if dataset == "timed_trace":
        return _timed(load, trace)
    if dataset == "burstgpt":
        load.assumed(
            f"--dataset-name {dataset}",
            "the first requests of the file, in their order, in place of others drawn from it",
        )
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
        load.unused(["rate", "burstiness"], _TIMED)
        if users := load.get("concurrency"):
            load.use("concurrency", "workload.max_concurrency")
            found["max_concurrency"] = users
        found["arrivals"] = {"type": "trace"}
        if form == "timed_trace" and multiplier != 1:
            found["arrivals"]["speedup"] = 1 / multiplier
    return found


_TIMED = "requests come at the times of the trace"


def _replayed(load: Load, trace: dict[str, Any], speedup: float | None) -> dict[str, Any]:
    """Return the keys of a load whose requests come at the times of a trace."""
    sent = {"type": "trace"} | ({"speedup": speedup} if speedup else {})
    users = load.get("concurrency")
    more = {"max_concurrency": users} if users else {}
    return keys_of(load, {"trace": trace, "arrivals": sent, **more})


# --- sglang.bench_serving -----------------------------------------------------------------------


def _length(most: int, ratio: float) -> dict[str, Any]:
    """Return whole numbers from a share of the most on, as `compute_random_lens` draws them."""
    return between(int(most * ratio), most)


def _sglang(load: Load) -> dict[str, Any]:
    number = load.get("requests", 1000)
    dataset = choose(load, "sglang", load.get("dataset", "sharegpt"))
    if "temperature" not in load.get("body", {}):
        load.said["temperature"] = 0  # it sends that
        load.applied("a line without a temperature", "sampling.temperature: 0")
    trace = {"type": dataset, "path": load.get("path"), "num_requests": number}
    if dataset == "mooncake":
        load.unused(["rate"], _TIMED)
        load.use("concurrency", "workload.max_concurrency")
        slowdown = load.get("trace.slowdown")
        return _replayed(load, trace, 1 / slowdown if slowdown else None)
    if dataset == "sharegpt":
        load.assumed(
            "--dataset-name sharegpt", "all turns of a conversation, where it sends the first alone"
        )
        workload = {"trace": trace}
    elif dataset == "generated-shared-prefix":
        load.unused(["requests"], "it is groups times prompts per group")
        number = load.get("repeat.number") * load.get("repeat.each")
        workload = {"lengths": repeated_lengths(load, number, _length)}
    else:
        workload = {"lengths": random_lengths(load, number, _length)}
    return keys_of(load, workload | arrivals(load))


# --- guidellm benchmark -------------------------------------------------------------------------


_SWEEP = "several loads are several runs: name one, and look for the most with mist goodput"
_PROFILES = "synchronous, concurrent, throughput, constant, async and poisson"
_FIGURES = ("", "_stdev", "_min", "_max")
_NO_TIME = ("source", "samples", "random_seed", "processor", "type", "kind")
_KEYS = (
    *(f"{side}_tokens{figure}" for side in ("prompt", "output") for figure in _FIGURES),
    *("prefix_tokens", "prefix_count", "prefix_buckets", "turns"),
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
    said = {key.strip(): value.strip() for key, _, value in pairs}
    return {key: int(value) if value.isdecimal() else value for key, value in said.items()}


def _guidellm(load: Load) -> dict[str, Any]:
    has_rate = "load" in load.said or "load" not in load.written
    if has_rate:
        _profile(load)
    number = _number_of(load, "--max-requests", "--max-seconds") if has_rate else 1
    data = load.get("data")
    if data is None:
        load.refused("", "--data is required, as prompt_tokens=512,output_tokens=128")
        data = {"prompt_tokens": 1, "output_tokens": 1}
    _lengths(data, load)
    return keys_of(load, {"lengths": random_lengths(load, number)} | arrivals(load))


def _number_of(load: Load, count: str, time: str, default: int | None = None) -> int:
    """Return how many requests are sent: as said, or as many as a rate sends in a time.

    count, time: flags that say one or the other. default: without both.
    """
    number = load.get("requests")
    seconds: float | None = load.get("seconds")
    rate: float = load.get("rate", math.inf)
    if number is not None:
        load.use("requests", "workload.lengths.num_requests")
        load.unused(["seconds"], f"{count} ends the run")
        return int(number)
    if seconds is not None and rate < math.inf:
        written = load.written["seconds"]
        if seconds * rate > COUNT:
            load.refused(written, f"the rate sends more than {COUNT} requests in that time")
            return 1
        sent = max(1, round(seconds * rate))
        load.assumed(
            written,
            f"num_requests: {sent}, which the rate sends in that time. All are answered here; a "
            "tool that stops then counts those alone that are answered by then, in an overload "
            "fewer and faster ones",
        )
        return sent
    if default is not None and seconds is None:
        load.assumed(f"a line without {count}", f"num_requests: {default}")
        return default
    load.refused(
        load.written.get("seconds", ""),
        f"a run without a rate has a number of requests here, not a time; write {count} N in place "
        f"of {time}",
    )
    return 1


def _profile(load: Load) -> None:
    """Say when requests are sent, by the profile and its number."""
    profile, number = load.get("profile", "sweep"), load.said.pop("load", None)
    written = load.written.get("profile", "")
    if profile == "synchronous":
        load.said["concurrency"] = 1
    elif profile in ("concurrent", "throughput") and number is not None:
        load.said["concurrency"] = int(number)
        if number != int(number):
            load.refused(load.written["load"], "must be a whole number of users")
    elif profile in ("constant", "async", "poisson") and number is not None:
        load.said |= {"rate": number, "pattern": "poisson" if profile == "poisson" else "constant"}
    elif profile == "throughput":
        pass  # all at once
    elif profile in ("concurrent", "constant", "async", "poisson"):
        load.refused(written, "--rate is required with it")
        return
    elif profile == "sweep":
        load.refused(written or "--profile sweep (its default)", _SWEEP)
        return
    else:
        hint = did_you_mean(profile, _PROFILES.replace(" and", ",").split(", "))
        load.refused(written, f"{_PROFILES} are read{hint}")
        return
    load.use(("profile", "load"), "workload.arrivals")


def _lengths(data: dict[str, Any], load: Load) -> None:
    """Say the lengths of texts that are drawn."""
    for key in data:
        if key not in (*_KEYS, *_NO_TIME):
            load.refused(f"--data {key}", f"not known{did_you_mean(key, _KEYS)}")
    if data.get("turns", 1) != 1:
        load.refused("--data turns", "turns of a conversation are sent from traces; write 1")
    if data.get("prefix_buckets"):
        load.refused(
            "--data prefix_buckets",
            "one beginning in common is simulated; write prefix_tokens and prefix_count",
        )
    for side in ("prompt", "output"):
        figures = [data.get(f"{side}_tokens{figure}") for figure in _FIGURES]
        wrong = [each for each in figures if each is not None and not _is_whole(each)]
        if figures[0] is None or wrong:
            load.refused(
                f"--data {side}_tokens", f"must be a whole number of tokens, got {brief(figures)}"
            )
            figures = [1, None, None, None]
        load.said[side] = _law_of(figures, f"--data {side}_tokens_stdev", load)
    if data.get("prefix_tokens"):
        load.said["random.prefix"] = data["prefix_tokens"]
        load.said["random.prefixes"] = data.get("prefix_count", 1)
    load.use("data", "workload.lengths")


def _is_whole(value: Any) -> bool:
    """Whether a value of a configuration is a number of tokens."""
    return type(value) in (int, float) and 0 <= value <= COUNT and value == int(value)


def _law_of(figures: list[Any], flag: str, load: Load) -> dict[str, Any]:
    """Return the law of (mean, standard deviation, least, most)."""
    mean, std, least, most = figures
    if std:
        if least is not None or most is not None:
            load.assumed(flag, "a normal distribution, not cut at the minimum and maximum")
        return normal(float(mean), float(std))
    if least is None and most is None:
        return fixed(int(mean))
    return between(int(mean if least is None else least), int(mean if most is None else most))


# --- aiperf profile, and genai-perf profile before it -------------------------------------------

_GOODPUT = {
    "time_to_first_token": "ttft",
    "inter_token_latency": "tpot",  # a mean of each request, so vLLM's TPOT
    "request_latency": "e2el",
}
_DIST = re.compile(r"(\d+)(?:\|([\d.]+))?,(\d+)(?:\|([\d.]+))?:([\d.]+)")


def _pairs(values: list[str]) -> dict[str, Any]:
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


def _aiperf(load: Load) -> dict[str, Any]:
    if "limits" in load.said:
        words = " ".join(load.get("limits")).split()
        load.said["goodput"] = limits(load, words, _GOODPUT)
    if "inputs" in load.said:
        load.written["body"] = load.written["inputs"]
        try:
            load.said["body"] = _pairs(load.get("inputs"))
        except ArgumentTypeError as error:
            load.refused(load.written["inputs"], str(error))
    note_stops(load, "--extra-inputs ignore_eos:true")
    if load.get("path") is not None:
        return _of_a_file(load)
    _arrivals(load)
    users = load.get("concurrency", 1)
    if "sessions" in load.said and "requests" not in load.said:
        load.said["requests"], load.written["requests"] = (
            load.said["sessions"],
            load.written["sessions"],
        )
    number = _number_of(load, "--request-count", "--benchmark-duration", max(10, 2 * users))
    lengths = _classes(load, number) if "classes" in load.said else _drawn(load, number)
    return keys_of(load, {"lengths": lengths} | arrivals(load))


def _arrivals(load: Load) -> None:
    pattern = load.get("pattern", "poisson")
    if pattern not in ("poisson", "constant", "gamma", "concurrency_burst"):
        load.refused(
            load.written["pattern"], "must be poisson, constant, gamma or concurrency_burst"
        )
    if "rate" not in load.said:
        load.said.setdefault("concurrency", 1)


def _drawn(load: Load, number: int) -> dict[str, Any]:
    if load.get("random.output") is None:
        load.refused("", "--osl is required: how long answers are, the model would decide")
    prefix = ("random.prefix", "random.prefixes")
    if "system" in load.said:
        load.said |= {"random.prefix": load.said["system"], "random.prefixes": 1}
        load.unused(prefix, "--shared-system-prompt-length takes its place")
        load.use("system", "workload.lengths")
    elif load.get("random.prefixes") and load.get("random.prefix"):
        load.use(prefix, "workload.lengths")
    else:
        load.said.pop("random.prefix", None)
        load.unused(prefix, "prefixes take --num-prefix-prompts and --prefix-prompt-length")
    for side, default in (("prompt", 550), ("output", 1)):
        mean = load.get(f"random.{side}", default)
        load.said[side] = normal(mean, load.get(f"{side}_std", 0.0))
    names = ("random.prompt", "prompt_std", "random.output", "output_std")
    load.use(names, "workload.lengths")
    return random_lengths(load, number)


def _classes(load: Load, number: int) -> dict[str, Any]:
    load.use("classes", "workload.lengths.classes")
    load.unused(["random.prompt", "random.output"], "--sequence-distribution takes its place")
    return {"type": "mix", "num_requests": number, "classes": load.get("classes")}


def _of_a_file(load: Load) -> dict[str, Any]:
    """Return the keys of a load that replays a file."""
    kind = load.get("dataset", "mooncake_trace")
    trace: dict[str, Any] = {"type": "mooncake", "path": load.get("path")}
    if kind != "mooncake_trace":
        load.refused(
            load.written["dataset"], "mooncake_trace alone is read; texts have no lengths here"
        )
    for key, name in (("trace.chunk", "hash_block_size"), ("requests", "num_requests")):
        if key in load.said:
            trace[name] = load.get(key)
    load.use(("path", "dataset", "trace.chunk", "requests"), "workload.trace")
    load.unused(["rate", "pattern", "burstiness"], _TIMED)
    load.unused(["random.prompt", "random.output"], "the trace has its lengths")
    for key, place in (("speedup", "arrivals.speedup"), ("concurrency", "max_concurrency")):
        if load.get(key):
            load.use(key, f"workload.{place}")
    return _replayed(load, trace, load.get("speedup"))


# --- all of them --------------------------------------------------------------------------------


@dataclass(frozen=True)
class Generator:
    """A load generator. rows: its flags. keys: from what they say to the keys of a scenario.

    has_engine: whether its line says the engine, too, with the flags of `vllm serve`. added: such
    flags that it sets by itself.
    """

    rows: tuple[Row, ...]
    keys: Callable[[Load], dict[str, Any]]
    has_engine: bool = False
    added: tuple[str, ...] = ()


_DATASETS = rows_of("vllm-requests", ratios)  # `throughput` has most of them, too
_OFFLINE = rows_of("vllm-offline")
_AIPERF = Generator(rows_of("aiperf", sequences), _aiperf)
GENERATORS: Mapping[str, Generator] = {
    "vllm bench serve": Generator((*_DATASETS, *rows_of("vllm-bench-serve", finite)), _serve),
    "vllm bench throughput": Generator(
        (*_DATASETS, *_OFFLINE, *rows_of("vllm-bench-throughput")), _throughput, has_engine=True
    ),
    "vllm bench latency": Generator(
        (*_OFFLINE, *rows_of("vllm-bench-latency")),
        _latency,
        has_engine=True,
        added=("--no-enable-prefix-caching",),
    ),
    "sglang.bench_serving": Generator(rows_of("sglang", share), _sglang),
    "guidellm benchmark": Generator(rows_of("guidellm", synthetic, one_rate), _guidellm),
    "aiperf profile": _AIPERF,
    "genai-perf profile": _AIPERF,
}


def workload_of(name: str, words: Sequence[str]) -> tuple[dict[str, Any], Load, list[str]]:
    """Return the keys of a load generator's arguments, the account of them, and its engine's words.

    None where its line does not tell the engine.
    """
    generator, end = GENERATORS[name], len(words)
    if "--" in words:
        end = list(words).index("--")
    load, rest = read_load(words[:end], generator.rows, has_engine=generator.has_engine)
    if words[end + 1 :]:
        load.no_effect(" ".join(words[end : end + 2]), "it is of perf_analyzer, behind --")
    keys = generator.keys(load)
    told = {item.flag.partition(" ")[0] for item in load.items}
    for written in load.written.values():
        if (flag := written.partition(" ")[0]) not in told:
            load.no_effect(flag, "nothing else in the line uses it")
    if not generator.has_engine:
        return keys, load, []
    own = [
        word
        for flag in rest
        for word in (flag.name if flag.is_on else f"--no-{flag.name[2:]}", *flag.values)
    ]
    names = {flag.name for flag in rest}
    return keys, load, own + [f for f in generator.added if f"--{f[5:]}" not in names]
