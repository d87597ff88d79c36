"""The load generators that are known, by the name of their command."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from mist_sim.scenario.from_vllm.account import Account
from mist_sim.scenario.from_vllm.flags import Arity
from mist_sim.scenario.from_vllm.generators import aiperf, guidellm, sglang_bench, vllm_bench
from mist_sim.scenario.from_vllm.generators.table import Load, Row, read_load


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


GENERATORS: Mapping[str, Generator] = {
    "vllm bench serve": Generator(vllm_bench.SERVE, vllm_bench.serve),
    "vllm bench throughput": Generator(vllm_bench.THROUGHPUT, vllm_bench.throughput, True),
    "vllm bench latency": Generator(
        vllm_bench.LATENCY, vllm_bench.latency, True, ("--no-enable-prefix-caching",)
    ),
    "sglang.bench_serving": Generator(sglang_bench.ROWS, sglang_bench.keys),
    "guidellm benchmark": Generator(guidellm.ROWS, guidellm.keys),
    "aiperf profile": Generator(aiperf.ROWS, aiperf.keys),
    "genai-perf profile": Generator(aiperf.ROWS, aiperf.keys),
}


def workload_of(
    name: str, words: Sequence[str], server: Mapping[str, Arity], short: Mapping[str, str]
) -> tuple[dict[str, Any], Account, list[str]]:
    """Return the keys of a load generator's arguments, an account of them, and its engine's words.

    server, short: the flags of `vllm serve`, and their other spellings. The words are those of its
    engine; none where it is not told.
    """
    generator, end = GENERATORS[name], len(words)
    if "--" in words:
        end = list(words).index("--")
    more = (server, short) if generator.has_engine else ({}, {})
    load, rest = read_load(words[:end], generator.rows, *more)
    if words[end + 1 :]:
        load.account.no_effect(" ".join(words[end : end + 2]), "it is of perf_analyzer, behind --")
    keys = generator.keys(load)
    told = {item.flag.partition(" ")[0] for item in load.account.items}
    for written in load.written.values():
        if (flag := written.partition(" ")[0]) not in told:
            load.account.no_effect(flag, "nothing else in the line uses it")
    if not generator.has_engine:
        return keys, load.account, []
    own = [
        word
        for flag in rest
        for word in (flag.name if flag.is_on else f"--no-{flag.name[2:]}", *flag.values)
    ]
    names = {flag.name for flag in rest}
    return keys, load.account, own + [f for f in generator.added if f"--{f[5:]}" not in names]
