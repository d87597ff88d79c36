"""Where a run's step times come from, and what was assumed, as lines for the reader."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from rich.text import Text

from mist_sim.core.front_end import FRONT_END, MEASURED
from mist_sim.report.elements.cells import who

SPEC_ONLY = (
    "Step times marked spec-only come from data sheets and typical efficiencies; they "
    "were never compared with that GPU."
)

_ASSUMED_HOST = "host of the GPUs assumed: {}, slow and without peer access"
_WHICH_HOST = (
    "`nvidia-smi topo -p2p r` tells which is yours (OK between all GPUs: peer access); say it with "
    "clients.N.host"
)


def origin_lines(summary: Mapping[str, Any]) -> Iterator[str]:
    """Yield warnings about step times that were neither compared nor fitted on the GPU."""
    if "spec-only" in summary["estimates"].values():
        yield SPEC_ONLY
    if "assumed" in summary:
        options = dict.fromkeys(name for names in summary["assumed"].values() for name in names)
        fitted = ("overhead.step", "overhead.sequence")
        if times := [name for name in options if name in fitted]:
            yield (
                f"The engine's own time a step ({', '.join(times)}) is an assumption here: it was "
                "fitted on H100 runs. Give your own if you know it."
            )
        if "overhead.prefill_step" in options:
            yield (
                "The 3 ms that a step with prompts takes beyond its profiled layers "
                "(overhead.prefill_step) are assumed: machines showed 2 to 4 ms. Give your own "
                "if you know it."
            )
        if "sampling" in options:
            yield (
                "How tokens are drawn is assumed: the model's generation_config.json "
                "has not been looked up. Top-p and top-k take time (sampling.top_p)."
            )
        if penalties := [name for name in options if name.startswith("sampling.")]:
            yield (
                f"This version counts tokens anew in each step for {', '.join(penalties)}; what "
                "that takes of the host is not simulated."
            )
        if FRONT_END in options:
            yield (
                f"{1e3 * (MEASURED.request or 0):g} ms before the queue, "
                f"{1e3 * (MEASURED.response or 0):g} ms on the way back and "
                f"{1e6 * (MEASURED.stream_token or 0):g} us of a server for each streamed token "
                "(front_end) are assumed: vLLM's HTTP server on H100 machines. Give your own if "
                "you know them."
            )
        if "max_model_len" in options:
            yield (
                "The KV cache is too small for the model's longest context, so vLLM "
                "would not start without max_model_len. Set yours, or auto for the "
                "longest that fits."
            )
        yield from _start_lines(list(options))
        if "kv_cache.tiers.loads_in_step" in options:
            yield (
                "Requests wait for their loads from tiers while steps go on. With LMCache's "
                "connector the steps wait, but that is not simulated with roles, drafts, "
                "schedulers other than chunked, intervals between prompts, limits of prompts in "
                "pieces or a topology."
            )
        if "prefixes" in options:
            yield (
                "Prefixes are cached, and nothing can be found: the trace has neither hashes nor "
                "conversations, so no two prompts are known to begin alike."
            )
        lines = (
            architecture_line(summary),
            kernels_line(summary),
            not_measured_line(summary),
            one_node_line(summary),
        )
        yield from filter(None, lines)
        yield from _model_lines(list(options))
    yield from _collective_lines(summary.get("collectives", {}))


def _start_lines(assumed: Sequence[str]) -> Iterator[str]:
    """Yield the assumptions about the starts of clients."""
    if "lifecycle.start_up" in assumed:
        yield (
            "Clients start in 0 s, since lifecycle.start_up is not set. A vLLM server takes "
            "about 40 s to start an 8B model with cold caches, and larger ones take minutes."
        )
    if times := [name for name in assumed if name.startswith("lifecycle.start_up.")]:
        yield (
            f"lifecycle.start_up: {', '.join(name.split('.')[-1] for name in times)} "
            f"{'are' if len(times) > 1 else 'is'} assumed, as an 8B model takes on one H100 "
            "with cold caches (39 s in all). A 70B model on eight GPUs took 85 s to compile "
            "and 60 s to capture graphs. Give your own if you know them."
        )


def _model_lines(assumed: Sequence[str]) -> Iterator[str]:
    """Yield the assumptions about models: about unknown ones, and about those with states."""
    taken = [name.removeprefix("model: ") for name in assumed if name.startswith("model: ")]
    if taken:
        left_out = f", without {', '.join(taken[1:])}" if taken[1:] else ""
        yield f"A model that is not known is taken as the nearest one: {taken[0]}{left_out}."
    if "kv_cache.mamba_cache_mode" in assumed:
        yield (
            "Prefixes are not cached in a model most of whose layers keep a state: vLLM up to 0.24 "
            "does so where it is told (mamba_cache_mode); with drafts before 0.33, swapped "
            "requests, prompts that are not cut or compressed entries it is not simulated."
        )


def _collective_lines(ways: Mapping[str, str]) -> Iterator[str]:
    """Yield how collectives between nodes are timed; once for clients with the same way.

    ways: the summary's `collectives`, by client.
    """
    for way in dict.fromkeys(ways.values()):
        first, *others = (name for name, its_way in ways.items() if its_way == way)
        plural = "s" if len(others) > 1 else ""
        who = f"{first} and {len(others):,} other{plural} have" if others else f"{first} has"
        yield f"{who} GPUs on several nodes. Timed by the topology, on free links: {way}."


def architecture_line(summary: Mapping[str, Any]) -> str:
    """Return by how much steps of a GPU without figures of kernels are too short; or nothing."""
    factors = _told(summary, "architecture: ")
    if not factors:
        return ""
    return (
        "The GPU's entry names no architecture: every kernel reaches the same share of the peaks "
        "and takes no time to start, so steps come out too fast. The kernels of the known "
        f"architectures would multiply their time by {factors}. Set architecture in its entry; "
        "compare two GPUs only if both have one."
    )


def kernels_line(summary: Mapping[str, Any]) -> str:
    """Return how far steps of a GPU of one's own depend on its architecture; or nothing."""
    factors = _told(summary, "kernels: ")
    if not factors:
        return ""
    return (
        "Kernels of a GPU of your own are taken to reach the shares of its peaks that were timed "
        "on others. If it reached what each fitted GPU of the catalog reaches, its steps would "
        f"take so many times as long: {factors}. Its figures are at least as uncertain."
    )


def not_measured_line(summary: Mapping[str, Any]) -> str:
    """Return which operators of measured kernels were not measured; or nothing."""
    operators = _told(summary, "measured kernels: ")
    return operators and f"Not measured, computed from the GPU's peaks: {operators}."


def one_node_line(summary: Mapping[str, Any]) -> str:
    """Return which GPUs are timed as in one node although nodes have fewer; or nothing."""
    ranks = _told(summary, "one node: ")
    return ranks and (
        f"Ranks are timed as if the links of one node joined them all: {ranks}. Other links are "
        "slower; a network with a topology, enough nodes and spans_nodes: true times those between "
        "nodes."
    )


def _told(summary: Mapping[str, Any], kind: str) -> str:
    """Return what the assumptions of a kind say, each once, with a client that has it."""
    found: dict[str, str] = {}
    for client, names in summary.get("assumed", {}).items():
        for name in names:
            if name.startswith(kind):
                found.setdefault(name.removeprefix(kind), client)
    several = len(found) > 1
    return "; ".join(f"{text} ({client})" if several else text for text, client in found.items())


def host_lines(worth: Mapping[str, Mapping[str, Any]]) -> Iterator[Text]:
    """Yield the assumed host, its effect, and how to tell which host is present.

    One paragraph for clients with equal values, with an empty line after it.
    worth: the summary's `assumed_host`.
    """
    for found in {tuple(each.values()): each for each in worth.values()}.values():
        words = _host_words(found)
        yield Text(f"{_ASSUMED_HOST.format(found['host'])}. {words}. {_WHICH_HOST}\n")


def host_lines_of_each(
    worth: Mapping[str, Mapping[str, Mapping[str, Any]]], num_all: int
) -> Iterator[Text]:
    """Yield the same for several scenarios: what differs, by scenario, and the rest once.

    worth: `assumed_host` by scenario, of those that have it. num_all: how many scenarios there are.
    """
    told = [(name, found) for name, clients in worth.items() for found in clients.values()]
    named: dict[str, dict[str, None]] = {}
    for name, found in told:
        named.setdefault(_host_words(found), {})[name] = None
    if not told:
        return
    yield Text(f"{_ASSUMED_HOST.format(told[0][1]['host'])}.")
    for words, names in named.items():
        yield Text(f"  {who(list(names), num_all)}: {words[0].lower()}{words[1:]}")
    yield Text(f"{_WHICH_HOST}\n")


def _host_words(found: Mapping[str, Any]) -> str:
    """Return what the GPUs spend on one another on the assumed host and on another."""
    here, there = found["communication_ms"], found["other_communication_ms"]
    return (
        f"In a step of {found['num_tokens']:,} tokens they spend {here:,.4g} ms on one another; "
        f"on {found['other_host']} it would be {there:,.4g} ms"
    )
