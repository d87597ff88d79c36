"""Warnings known before a run: the origin of step times, and assumptions."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from mist_sim.core import result_warnings as kinds
from mist_sim.core.front_end import FRONT_END, MEASURED
from mist_sim.core.result_warnings import ResultWarning, WarningKind
from mist_sim.models.speculative import ACCEPTANCE_RATE, HEAD, READING

SPEC_ONLY = (
    "Step times marked spec-only come from data sheets and typical efficiencies; they "
    "were never compared with that GPU."
)


def assumption_warnings(
    estimates: Mapping[str, str],
    assumed: Mapping[str, Sequence[str]],
    assumed_hosts: Mapping[str, Mapping[str, Any]],
    collectives: Mapping[str, str],
) -> Iterator[ResultWarning]:
    """Yield the warnings about the origin of step times, by client, as `Result` has it.

    Every assumed option leads to one: options without a sentence of their own share one.
    """
    yield from _host_warnings(assumed_hosts)
    if "spec-only" in estimates.values():
        yield ResultWarning(kinds.NEVER_COMPARED, SPEC_ONLY)
    told: set[str] = set()
    options = list(dict.fromkeys(name for names in assumed.values() for name in names))
    for kind, (names, text) in _sentences(options, assumed).items():
        told.update(names)
        if text:
            yield ResultWarning(kind, text)
    if left := [name for name in options if name not in told]:
        yield ResultWarning(kinds.ASSUMED, f"Assumed, since they are not set: {', '.join(left)}.")
    for text in _collective_lines(collectives):
        yield ResultWarning(kinds.ACROSS_NODES, text)


_Told = tuple[Sequence[str], str]
"""Assumed options, and the sentences about them."""


_NO_CONTENT = "says which requests are of one conversation, and not what their prompts share."
_WHY_NOTHING = {
    "prefixes": "has neither hashes nor conversations, so no two prompts are known to begin alike.",
    "prefixes of conversations": _NO_CONTENT,
    "session_history": f"{_NO_CONTENT} If each begins with the prompt and answer before it, say "
    "so: session_history: repeats in workload.trace.",
}
"""Why no prefix is found, by what a trace does not tell (`Workload.untold`)."""


def _sentences(
    options: Sequence[str], assumed: Mapping[str, Sequence[str]]
) -> dict[WarningKind, _Told]:
    """Return the options that each kind of warning tells of, and its text; empty for no text."""

    def named(*names: str) -> list[str]:
        return [name for name in options if name in names]

    def beginning(start: str) -> list[str]:
        return [name for name in options if name.startswith(start)]

    def if_any(names: list[str], text: str) -> _Told:
        return names, text if names else ""

    untold = named("prefixes", "prefixes of conversations", "session_history")
    times = named("overhead.step", "overhead.sequence")
    penalties, starts = beginning("sampling."), beginning("lifecycle.start_up")
    images = beginning("images")
    more = [name.removeprefix("images: ") for name in images if name != "images"]
    re_sharding = beginning("resharding.")
    return {
        kinds.ASSUMED_HOST: (named("host"), ""),  # `_host_warnings` has more to say
        kinds.ENGINE_TIME: if_any(
            times,
            f"The engine's own time a step ({', '.join(times)}) is an assumption here: it was "
            "fitted on H100 runs. Give your own if you know it.",
        ),
        kinds.PROMPT_STEP: if_any(
            named("overhead.prefill_step"),
            "The 3 ms that a step with prompts takes beyond its profiled layers "
            "(overhead.prefill_step) are assumed: machines showed 2 to 4 ms. Give your own "
            "if you know it.",
        ),
        kinds.SAMPLING: if_any(
            named("sampling"),
            "How tokens are drawn is assumed: the model's generation_config.json "
            "has not been looked up. Top-p and top-k take time (sampling.top_p).",
        ),
        kinds.PENALTIES: if_any(
            penalties,
            f"This version counts tokens anew in each step for {', '.join(penalties)}; what "
            "that takes of the host is not simulated.",
        ),
        kinds.FRONT_END: if_any(
            named(FRONT_END),
            f"{1e3 * (MEASURED.request or 0):g} ms before the queue, "
            f"{1e3 * (MEASURED.response or 0):g} ms on the way back and "
            f"{1e6 * (MEASURED.stream_token or 0):g} us of a server for each streamed token "
            "(front_end) are assumed: vLLM's HTTP server on H100 machines. Give your own if "
            "you know them.",
        ),
        kinds.LONGEST_CONTEXT: (named("max_model_len"), ""),  # clients say how much fits
        kinds.STATE_BLOCKS: (named("scheduler.max_num_seqs"), ""),
        kinds.START_UP: (starts, " ".join(_start_lines(starts))),
        kinds.TIER_LOADS: if_any(
            named("kv_cache.tiers.loads_in_step"),
            "Requests wait for their loads from tiers while steps go on. With LMCache's "
            "connector the steps wait, but that is not simulated with roles, drafts, "
            "schedulers other than chunked, intervals between prompts, limits of prompts in "
            "pieces or a topology.",
        ),
        kinds.NO_PREFIXES: if_any(
            untold,
            "Prefixes are cached, and nothing can be found: the trace "
            + "".join(_WHY_NOTHING[name] for name in untold[:1]),
        ),
        kinds.BETWEEN_RELEASES: (beginning(RELEASE), _between(assumed)),
        kinds.ADAPTERS: if_any(
            named("lora"),
            "The times of LoRA adapters are computed from their sizes, and were not compared with "
            "measurements.",
        ),
        kinds.IMAGES: if_any(
            images,
            "The times of the vision tower are computed from its sizes, and were not compared "
            f"with measurements.{''.join(f' {each[:1].upper()}{each[1:]}.' for each in more)}",
        ),
        kinds.TOWERS: (beginning(_TOWERS), _told(assumed, _TOWERS)),
        kinds.RE_SHARDING: if_any(
            re_sharding,
            f"{', '.join(re_sharding)} {'are' if len(re_sharding) > 1 else 'is'} assumed: "
            "Seesaw's paper names no value, or one for its own machines. Give your own.",
        ),
        kinds.ARCHITECTURE: (beginning(_ARCHITECTURE), _architecture(assumed)),
        kinds.KERNELS: (
            [*beginning(_KERNELS), *beginning(_WHOLE_RUNS)],
            " ".join(filter(None, (_kernels(assumed), _whole_runs(assumed)))),
        ),
        kinds.NOT_MEASURED: (beginning(_MEASURED), _not_measured(assumed)),
        kinds.ONE_NODE: (beginning(_ONE_NODE), _one_node(assumed)),
        kinds.ACCEPTANCE: (beginning(_ACCEPTANCE), _acceptance(assumed)),
        kinds.DRAFT_RATES: (beginning(READING), _reading(assumed)),
        kinds.DRAFT_HEAD: if_any(
            beginning(HEAD),
            "The head of eagle3 (speculative_config.method) is timed as EAGLE-1's, a layer of the "
            "model and its whole output head for each draft. The output heads of EAGLE-3 mostly "
            "have 32,000 words, so they draft sooner.",
        ),
        kinds.HOST_COPIES: (beginning(HOST_COPIES), _host_copies(assumed)),
        kinds.NEAREST_MODEL: (beginning(_MODEL), _nearest(beginning(_MODEL))),
        kinds.STATE_CACHE: if_any(
            named("kv_cache.mamba_cache_mode"),
            "Prefixes are not cached in a model most of whose layers keep a state: vLLM up to 0.24 "
            "does so where it is told (mamba_cache_mode); with drafts from 0.26 to 0.32, swapped "
            "requests, prompts that are not cut or compressed entries it is not simulated.",
        ),
    }


_ARCHITECTURE, _KERNELS, _MEASURED = "architecture: ", "kernels: ", "measured kernels: "
_WHOLE_RUNS = "whole runs: "
_ONE_NODE, _MODEL, _ACCEPTANCE = "one node: ", "model: ", f"{ACCEPTANCE_RATE}: "
_TOWERS = "towers: "
HOST_COPIES = "kv_cache.tiers.read_bandwidth: "
RELEASE = "release: "
"""Before what a release of vLLM is assumed to do as its neighbour does."""


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


def _nearest(names: Sequence[str]) -> str:
    """Return a text on the known model as which an unknown one is read; or nothing."""
    if not names:
        return ""
    taken = [name.removeprefix(_MODEL) for name in names]
    left_out = f", without {', '.join(taken[1:])}" if taken[1:] else ""
    return f"A model that is not known is taken as the nearest one: {taken[0]}{left_out}."


def _collective_lines(ways: Mapping[str, str]) -> Iterator[str]:
    """Yield how collectives between nodes are timed; once for clients with the same way."""
    for way in dict.fromkeys(ways.values()):
        first, *others = (name for name, its_way in ways.items() if its_way == way)
        plural = "s" if len(others) > 1 else ""
        who = f"{first} and {len(others):,} other{plural} have" if others else f"{first} has"
        yield f"{who} GPUs {way}."


def _architecture(assumed: Mapping[str, Sequence[str]]) -> str:
    """Return by how much steps of a GPU without figures of kernels are too short; or nothing."""
    factors = _told(assumed, _ARCHITECTURE)
    if not factors:
        return ""
    return (
        "The GPU's entry names no architecture: every kernel reaches the same share of the peaks "
        "and takes no time to start, so steps come out too fast. The kernels of the known "
        f"architectures would multiply their time by {factors}. Set architecture in its entry if "
        "it is one of them; compare two GPUs only if both have one."
    )


def _kernels(assumed: Mapping[str, Sequence[str]]) -> str:
    """Return how much steps of a GPU that was not timed depend on its architecture; or nothing."""
    factors = _told(assumed, _KERNELS)
    if not factors:
        return ""
    return (
        "Kernels of a GPU that was not timed are taken to reach the shares of its peaks that were "
        "timed on others. If it reached what each fitted GPU of the catalog reaches, its steps "
        f"would take so many times as long: {factors}. Its figures are at least as uncertain."
    )


def _whole_runs(assumed: Mapping[str, Sequence[str]]) -> str:
    """Return what is known of kernels that were fitted to whole runs (`tools.cdna`); or nothing."""
    gpus = _told(assumed, _WHOLE_RUNS)
    return gpus and (
        f"No kernel of {gpus} was timed: they are Hopper's, slowed down to fit whole runs on the "
        "card. In the median steps are 12 % too short for 240 static batches of 1 and 16 in vLLM "
        "of 2024 (models of 7B to 70B on 1 to 8 GPUs; one GPU at batch 1: 53 % too short to 47 % "
        "too long), and 18 % too long for DeepSeek-V3.1 on 8 GPUs in SGLang 0.5. With another "
        "engine, release, model or load their error is not known, and may be larger: a price "
        "that leaves this GPU out, or chooses it, is not sure."
    )


def _not_measured(assumed: Mapping[str, Sequence[str]]) -> str:
    """Return which operators of measured kernels were not measured; or nothing."""
    operators = _told(assumed, _MEASURED)
    return operators and f"Not measured, computed from the GPU's peaks: {operators}."


def _between(assumed: Mapping[str, Sequence[str]]) -> str:
    """Return which rules of releases were not looked up; or nothing."""
    rules = _told(assumed, RELEASE)
    return rules and (
        f"Not looked up, and taken as in the release before or after, which differ: {rules}."
    )


def _one_node(assumed: Mapping[str, Sequence[str]]) -> str:
    """Return which GPUs are timed as in one node although nodes have fewer; or nothing."""
    ranks = _told(assumed, _ONE_NODE)
    return ranks and (
        f"Ranks are timed as if the links of one node joined them all: {ranks}. Other links are "
        "slower; a network with a topology, enough nodes and spans_nodes: true times those between "
        "nodes."
    )


def _acceptance(assumed: Mapping[str, Sequence[str]]) -> str:
    """Return which acceptance of drafts is assumed, and what that does; or nothing."""
    rates = _told(assumed, _ACCEPTANCE)
    return rates and (
        f"How many drafts are right ({ACCEPTANCE_RATE}) is assumed, as published: {rates}. It is a "
        "matter of the models and the texts; set it, as vLLM's log reports it."
    )


def _reading(assumed: Mapping[str, Sequence[str]]) -> str:
    """Return how a list of acceptance rates is read that can be read in two ways; or nothing."""
    found = _told(assumed, READING)
    return found and (
        f"A list of {ACCEPTANCE_RATE} is the chance of each draft if all before it are accepted: "
        f"{found}. vLLM's logs print such shares for each position."
    )


def _host_copies(assumed: Mapping[str, Sequence[str]]) -> str:
    """Return which tiers are read at the full rate of host links; or nothing."""
    tiers = _told(assumed, HOST_COPIES)
    return tiers and (
        f"Loads run at the full rate of the GPUs' host links: {tiers}. Copies of blocks reach "
        "less, so loads are at least as long; give the tier's measured read_bandwidth, to all GPUs "
        "of an engine together."
    )


def _told(assumed: Mapping[str, Sequence[str]], kind: str) -> str:
    """Return the texts of the assumptions of a kind, each once, with a client that has it."""
    found: dict[str, str] = {}
    for client, names in assumed.items():
        for name in names:
            if name.startswith(kind):
                found.setdefault(name.removeprefix(kind), client)
    several = len(found) > 1
    return "; ".join(f"{text} ({client})" if several else text for text, client in found.items())


def _apart(groups: int) -> str:
    return (
        f"Its {groups} groups of GPUs (pipeline stages, replicas) are timed as if each were alone "
        "on the host; groups that share a bridge may take several times as long."
    )


def _host_warnings(worth: Mapping[str, Mapping[str, Any]]) -> Iterator[ResultWarning]:
    """Yield the assumed host, its effect, and how to tell which host is present.

    One for clients with equal values. worth: the summary's `assumed_host`.
    """
    for found in {tuple(each.values()): each for each in worth.values()}.values():
        here, there = found["communication_ms"], found["other_communication_ms"]
        yield ResultWarning(
            kinds.ASSUMED_HOST,
            f"Host of the GPUs assumed: {found['host']}, slow and without peer access (rates of "
            f"{found['measured_with']}). "
            "`nvidia-smi topo -p2p r` tells which is yours (OK between all GPUs: peer access); say "
            "it with clients.N.host.",
            f"In a step of {found['num_tokens']:,} tokens they spend {here:,.4g} ms on one "
            f"another; on {found['other_host']} it would be {there:,.4g} ms."
            + (found["num_groups"] > 1)
            * f" {_apart(found['num_groups'])}",
            brief=f"Host of the GPUs assumed: {found['host']}.",
        )
