"""Warnings known before a run: the origin of step times, and assumptions."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from mist_sim.core import result_warnings as kinds
from mist_sim.core.front_end import FRONT_END, MEASURED
from mist_sim.core.result_warnings import ResultWarning, WarningKind
from mist_sim.models.speculative import ACCEPTANCE_RATE, HEAD, READING

SPEC_ONLY = (
    "Step times marked spec-only come from data sheets and typical efficiencies; they "
    "were never compared with that GPU."
)
HOST_COPIES = "kv_cache.tiers.read_bandwidth: "
RELEASE = "release: "
"""Before what a release of vLLM is assumed to do as its neighbour does."""


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
    clients: dict[str, str] = {}  # the first with each option
    for client, options in assumed.items():
        for option in options:
            clients.setdefault(option, client)
    texts: dict[WarningKind, list[str]] = {}
    told = set(_TOLD_ELSEWHERE)
    for each in _SENTENCES:
        if names := [option for option in clients if each.is_of(option)]:
            told.update(names)
            texts.setdefault(each.kind, []).append(each.about(names, clients))
    for kind, sentences in texts.items():
        yield ResultWarning(kind, " ".join(sentences))
    if left := [option for option in clients if option not in told]:
        yield ResultWarning(kinds.ASSUMED, f"Assumed, since they are not set: {', '.join(left)}.")
    for text in _collective_lines(collectives):
        yield ResultWarning(kinds.ACROSS_NODES, text)


class _Sentence(NamedTuple):
    """What a warning says of assumed options.

    options: their names, or with a star at the end how they begin. text: with {names}; {short},
    their last parts; {are}, the verb; {told}, what stands for the star, with a client that has it
    where there are several. Or it is a function of the names.
    """

    kind: WarningKind
    options: tuple[str, ...]
    text: str | Callable[[Sequence[str]], str]

    def is_of(self, option: str) -> bool:
        """Return whether an option is one of these."""
        return any(
            option.startswith(each[:-1]) if each[-1] == "*" else option == each
            for each in self.options
        )

    def about(self, names: Sequence[str], clients: Mapping[str, str]) -> str:
        """Return the sentences about such options. clients: one that has each."""
        if not isinstance(self.text, str):
            return self.text(names)
        start = self.options[0].removesuffix("*")
        told = {name.removeprefix(start): clients[name] for name in names}
        several = len(told) > 1
        return self.text.format(
            names=", ".join(names),
            short=", ".join(name.split(".")[-1] for name in names),
            are="are" if len(names) > 1 else "is",
            told="; ".join(f"{text} ({of})" if several else text for text, of in told.items()),
        )


_MODEL, _IMAGES = "model: ", "images"
_NO_CONTENT = "says which requests are of one conversation, and not what their prompts share."
_WHY_NOTHING = {
    "prefixes": "has neither hashes nor conversations, so no two prompts are known to begin alike.",
    "prefixes of conversations": _NO_CONTENT,
    "session_history": f"{_NO_CONTENT} If each begins with the prompt and answer before it, say "
    "so: session_history: repeats in workload.trace.",
}
"""Why no prefix is found, by what a trace does not tell (`Workload.untold`)."""


def _no_prefixes(names: Sequence[str]) -> str:
    return f"Prefixes are cached, and nothing can be found: the trace {_WHY_NOTHING[names[0]]}"


def _images(names: Sequence[str]) -> str:
    more = [name.removeprefix(f"{_IMAGES}: ") for name in names if name != _IMAGES]
    return (
        "The times of the vision tower are computed from its sizes, and were not compared with "
        f"measurements.{''.join(f' {each[:1].upper()}{each[1:]}.' for each in more)}"
    )


def _nearest(names: Sequence[str]) -> str:
    first, *others = (name.removeprefix(_MODEL) for name in names)
    left_out = f", without {', '.join(others)}" if others else ""
    return f"A model that is not known is taken as the nearest one: {first}{left_out}."


_TOLD_ELSEWHERE = (
    "host",  # `_host_warnings` has more to say
    "max_model_len",  # clients say how much fits
    "scheduler.max_num_seqs",
)
_SENTENCES = (
    _Sentence(
        kinds.ENGINE_TIME,
        ("overhead.step", "overhead.sequence"),
        "The engine's own time a step ({names}) is an assumption here: it was fitted on H100 runs. "
        "Give your own if you know it.",
    ),
    _Sentence(
        kinds.PROMPT_STEP,
        ("overhead.prefill_step",),
        "The 3 ms that a step with prompts takes beyond its profiled layers "
        "(overhead.prefill_step) are assumed: machines showed 2 to 4 ms. Give your own if you know "
        "it.",
    ),
    _Sentence(
        kinds.SAMPLING,
        ("sampling",),
        "How tokens are drawn is assumed: the model's generation_config.json has not been looked "
        "up. Top-p and top-k take time (sampling.top_p).",
    ),
    _Sentence(
        kinds.PENALTIES,
        ("sampling.*",),
        "This version counts tokens anew in each step for {names}; what that takes of the host is "
        "not simulated.",
    ),
    _Sentence(
        kinds.FRONT_END,
        (FRONT_END,),
        f"{1e3 * (MEASURED.request or 0):g} ms before the queue, "
        f"{1e3 * (MEASURED.response or 0):g} ms on the way back and "
        f"{1e6 * (MEASURED.stream_token or 0):g} us of a server for each streamed token "
        "(front_end) are assumed: vLLM's HTTP server on H100 machines. Give your own if you know "
        "them.",
    ),
    _Sentence(
        kinds.START_UP,
        ("lifecycle.start_up",),
        "Clients start in 0 s, since lifecycle.start_up is not set. A vLLM server takes about 40 s "
        "to start an 8B model with cold caches, and larger ones take minutes.",
    ),
    _Sentence(
        kinds.START_UP,
        ("lifecycle.start_up.*",),
        "lifecycle.start_up: {short} {are} assumed, as an 8B model takes on one H100 with cold "
        "caches (39 s in all). A 70B model on eight GPUs took 85 s to compile and 60 s to capture "
        "graphs. Give your own if you know them.",
    ),
    _Sentence(
        kinds.TIER_LOADS,
        ("kv_cache.tiers.loads_in_step",),
        "Requests wait for their loads from tiers while steps go on. With LMCache's connector the "
        "steps wait, but that is not simulated with roles, drafts, schedulers other than chunked, "
        "intervals between prompts, limits of prompts in pieces or a topology.",
    ),
    _Sentence(kinds.NO_PREFIXES, tuple(_WHY_NOTHING), _no_prefixes),
    _Sentence(
        kinds.BETWEEN_RELEASES,
        (f"{RELEASE}*",),
        "Not looked up, and taken as in the release before or after, which differ: {told}.",
    ),
    _Sentence(
        kinds.ADAPTERS,
        ("lora",),
        "The times of LoRA adapters are computed from their sizes, and were not compared with "
        "measurements.",
    ),
    _Sentence(
        kinds.ADAPTERS,
        ("lora.storage_bandwidth",),
        "All LoRA adapters are assumed in host memory. vLLM keeps max_cpu_loras there, by default "
        "max_loras, and reads others from storage when they are asked for: "
        "lora.storage_bandwidth says how fast.",
    ),
    _Sentence(kinds.IMAGES, (f"{_IMAGES}*",), _images),
    _Sentence(kinds.TOWERS, ("towers: *",), "{told}"),
    _Sentence(
        kinds.RE_SHARDING,
        ("resharding.*",),
        "{names} {are} assumed: Seesaw's paper names no value, or one for its own machines. Give "
        "your own.",
    ),
    _Sentence(
        kinds.ARCHITECTURE,
        ("architecture: *",),
        "The GPU's entry names no architecture: every kernel reaches the same share of the peaks "
        "and takes no time to start, so steps come out too fast. The kernels of the known "
        "architectures would multiply their time by {told}. Set architecture in its entry if it is "
        "one of them; compare two GPUs only if both have one.",
    ),
    _Sentence(
        kinds.KERNELS,
        ("kernels: *",),
        "Kernels of a GPU that was not timed are taken to reach the shares of its peaks that were "
        "timed on others. If it reached what each fitted GPU of the catalog reaches, its steps "
        "would take so many times as long: {told}. Its figures are at least as uncertain.",
    ),
    _Sentence(  # kernels that were fitted to whole runs: `tools.cdna`
        kinds.KERNELS,
        ("whole runs: *",),
        "No kernel of {told} was timed: they are Hopper's, slowed down to fit whole runs on the "
        "card. In the median steps are 12 % too short for 240 static batches of 1 and 16 in vLLM "
        "of 2024 (models of 7B to 70B on 1 to 8 GPUs; one GPU at batch 1: 53 % too short to 47 % "
        "too long), and 18 % too long for DeepSeek-V3.1 on 8 GPUs in SGLang 0.5. With another "
        "engine, release, model or load their error is not known, and may be larger: a price that "
        "leaves this GPU out, or chooses it, is not sure.",
    ),
    _Sentence(
        kinds.NOT_MEASURED,
        ("measured kernels: *",),
        "Not measured, computed from the GPU's peaks: {told}.",
    ),
    _Sentence(
        kinds.ONE_NODE,
        ("one node: *",),
        "Ranks are timed as if the links of one node joined them all: {told}. Other links are "
        "slower; a network with a topology, enough nodes and spans_nodes: true times those between "
        "nodes.",
    ),
    _Sentence(
        kinds.ACCEPTANCE,
        (f"{ACCEPTANCE_RATE}: *",),
        f"How many drafts are right ({ACCEPTANCE_RATE}) is assumed, as published: {{told}}. It is "
        "a matter of the models and the texts; set it, as vLLM's log reports it.",
    ),
    _Sentence(
        kinds.DRAFT_RATES,
        (f"{READING}*",),
        f"A list of {ACCEPTANCE_RATE} is the chance of each draft if all before it are accepted: "
        "{told}. vLLM's logs print such shares for each position.",
    ),
    _Sentence(
        kinds.DRAFT_HEAD,
        (f"{HEAD}*",),
        "The head of eagle3 (speculative_config.method) is timed as EAGLE-1's, a layer of the "
        "model and its whole output head for each draft. The output heads of EAGLE-3 mostly have "
        "32,000 words, so they draft sooner.",
    ),
    _Sentence(
        kinds.HOST_COPIES,
        (f"{HOST_COPIES}*",),
        "Loads run at the full rate of the GPUs' host links: {told}. Copies of blocks reach less, "
        "so loads are at least as long; give the tier's measured read_bandwidth, to all GPUs of an "
        "engine together.",
    ),
    _Sentence(kinds.NEAREST_MODEL, (f"{_MODEL}*",), _nearest),
    _Sentence(
        kinds.STATE_CACHE,
        ("kv_cache.mamba_cache_mode",),
        "Prefixes are not cached in a model most of whose layers keep a state: vLLM up to 0.24 "
        "does so where it is told (mamba_cache_mode); with drafts from 0.26 to 0.32, swapped "
        "requests, prompts that are not cut or compressed entries it is not simulated.",
    ),
)


def _collective_lines(ways: Mapping[str, str]) -> Iterator[str]:
    """Yield how collectives between nodes are timed; once for clients with the same way."""
    for way in dict.fromkeys(ways.values()):
        first, *others = (name for name, its_way in ways.items() if its_way == way)
        plural = "s" if len(others) > 1 else ""
        who = f"{first} and {len(others):,} other{plural} have" if others else f"{first} has"
        yield f"{who} GPUs {way}."


def _host_warnings(worth: Mapping[str, Mapping[str, Any]]) -> Iterator[ResultWarning]:
    """Yield the assumed host, its effect, and how to tell which host is present.

    One for clients with equal values. worth: the summary's `assumed_host`.
    """
    for found in {tuple(each.values()): each for each in worth.values()}.values():
        here, there = found["communication_ms"], found["other_communication_ms"]
        apart = (
            f" Its {found['num_groups']} groups of GPUs (pipeline stages, replicas) are timed as "
            "if each were alone on the host; groups that share a bridge may take several times as "
            "long."
        )
        yield ResultWarning(
            kinds.ASSUMED_HOST,
            f"Host of the GPUs assumed: {found['host']}, slow and without peer access (rates of "
            f"{found['measured_with']}). "
            "`nvidia-smi topo -p2p r` tells which is yours (OK between all GPUs: peer access); say "
            "it with clients.N.host.",
            f"In a step of {found['num_tokens']:,} tokens they spend {here:,.4g} ms on one "
            f"another; on {found['other_host']} it would be {there:,.4g} ms."
            + (apart if found["num_groups"] > 1 else ""),
            brief=f"Host of the GPUs assumed: {found['host']}.",
        )
