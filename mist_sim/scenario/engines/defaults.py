"""Defaults by an engine's version and GPU: in Python, and in a scenario file.

Without `engine` those of the newest version hold. A value that equals the version's default has its
origin there, even if a file names it; so a resolved scenario gives the same origins when it is read
again. Source of the limits of `vllm serve`
(`UsageContext.OPENAI_API_SERVER`): `get_batch_defaults` and
`_set_default_max_num_seqs_and_batched_tokens_args` in `vllm/engine/arg_utils.py`; the figures of
each version are in `versions.toml`. vLLM has other figures for TPUs, which are not taken here.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import fields, is_dataclass, replace
from typing import Any, NamedTuple

from mist_sim.clients import EngineConfig
from mist_sim.clients.scheduling import ChunkedScheduler, Scheduler
from mist_sim.hardware import GpuSpec, device_of, load_gpu
from mist_sim.hardware.devices import default_host
from mist_sim.scenario.engines.links import goes_by_host, in_contact
from mist_sim.scenario.engines.versions import (
    KERNELS,
    LARGEST_GRAPH,
    LIMITS,
    MEMORY,
    NEWEST,
    RULES,
    SERVER,
    VERSIONS,
    EngineVersion,
    LargestGraph,
    ServerLimits,
    version_of,
)
from mist_sim.scenario.format.families import SCHEDULER
from mist_sim.scenario.format.problems import Problem, shown


def server_limits(
    gpu: GpuSpec, num_drafts: int = 0, version: EngineVersion = NEWEST
) -> ServerLimits:
    """Return the limits of vLLM's server on a GPU.

    GPUs of 70 GiB or more have larger limits, except those with "a100" in their name. A GPU based
    on a catalog entry keeps that entry's limits, even if its memory was changed.

    num_drafts: tokens that every sequence verifies in a step besides its own. The number of
    sequences is limited by the tokens of a step (vLLM's limits ignore drafts; it then verifies
    fewer).
    """
    device = device_of(gpu)
    limits: ServerLimits = version.default(LIMITS).of(device.memory, device.name)
    most = _most_verified(limits.max_num_batched_tokens, num_drafts)
    return limits._replace(max_num_seqs=min(limits.max_num_seqs, most))


def _most_verified(num_tokens: int, num_drafts: int) -> int:
    """Return how many sequences can verify so many drafts each in a step; at least 1."""
    return max(1, num_tokens // (1 + num_drafts))


def scheduler_by_version(
    scheduler: object, gpu: GpuSpec, num_drafts: int, version: EngineVersion
) -> object:
    """Return a file's scheduler, with the version's defaults for what it leaves out.

    An option gets the version's default if the scheduler's class inherits it from `Scheduler` or
    `ChunkedScheduler`; a class that declares it itself keeps its own. As in vLLM, no more sequences
    run by default than a step has tokens; with chunked prefill, no more than it has tokens to
    verify `num_drafts` for. Any value but a known name or a mapping is returned unchanged.
    """
    said: object = {"type": scheduler} if isinstance(scheduler, str) else scheduler
    name = str(said.get("type", SCHEDULER.default)) if isinstance(said, dict) else ""
    if not isinstance(said, dict) or name not in SCHEDULER.registry:
        return scheduler
    plugin = SCHEDULER.registry[name]
    inherited = inherited_options(plugin)
    limits = {
        key: value
        for key, value in server_limits(gpu, version=version)._asdict().items()
        if key not in said and key in inherited
    }
    own = getattr(plugin, "max_num_batched_tokens", None)
    tokens = {"max_num_batched_tokens": own, **said, **limits}["max_num_batched_tokens"]
    if "max_num_seqs" in limits and isinstance(tokens, int) and tokens >= 1:
        most = _most_verified(tokens, num_drafts if issubclass(plugin, ChunkedScheduler) else 0)
        limits["max_num_seqs"] = min(limits["max_num_seqs"], most)
    return {**scheduler_options(plugin, version), **said, **limits}


def by_gpu(key: str, default: object) -> str | None:
    """Return both defaults of a limit that depends on the GPU; None for any other option.

    key: below a client, such as "scheduler.max_num_seqs". default: that of the scheduler's class.
    """
    part, _, name = key.partition(".")
    if part != "scheduler" or name not in ServerLimits._fields or default is None:
        return None
    limits = NEWEST.default(LIMITS)
    figures = {getattr(each, name) for each in (limits.small, *(tier[2] for tier in limits.tiers))}
    return f"{' or '.join(map(str, sorted(figures)))}, by GPU"


def inherited_options(scheduler: type[Any]) -> set[str]:
    """Return the options that a class inherits from our schedulers and does not declare itself."""
    ours = {field.name: field for base in (Scheduler, ChunkedScheduler) for field in fields(base)}
    theirs = fields(scheduler) if is_dataclass(scheduler) else ()
    return {field.name for field in theirs if field is ours.get(field.name)}


_SHARE = "kv_cache.gpu_memory_utilization"


def with_version_defaults(config: EngineConfig) -> EngineConfig:
    """Return a config whose open options have the defaults of the version."""
    version = version_of(config.engine)
    ahead = config.async_scheduling
    if ahead is None:
        ahead = version.default("async_scheduling") and not config.no_planning_ahead
        if config.speculative_config is not None:
            ahead = ahead and config.speculative_config.method in version.rules.async_drafts
        if config.pipeline_parallel_size > 1:
            ahead = ahead and version.rules.async_pipelines
    kv_cache = config.kv_cache
    if kv_cache.gpu_memory_utilization is None and kv_cache.num_gpu_blocks_override is None:
        kv_cache = replace(kv_cache, gpu_memory_utilization=version.default(_SHARE))
    return replace(config, async_scheduling=ahead, kv_cache=kv_cache)


def largest_graph(
    version: EngineVersion, gpu: GpuSpec, max_num_seqs: int, num_drafts: int = 0
) -> int:
    """Return the most tokens of a step that a version replays on a GPU as a CUDA graph.

    num_drafts: tokens that every sequence verifies in a step beside its own.
    """
    graph: LargestGraph = version.default(LARGEST_GRAPH)
    return graph.of(device_of(gpu).name, max_num_seqs, num_drafts)


def kv_cache_by_version(said: object, version: EngineVersion) -> object:
    """Return a file's KV cache section, with the version's share of memory if it names none.

    Where it says how many blocks there are, no memory is counted.
    """
    if not isinstance(said, Mapping):
        return said
    counted = said.get("num_gpu_blocks_override") is not None
    if counted or said.get("gpu_memory_utilization") is not None:
        return said
    return {**said, "gpu_memory_utilization": version.default(_SHARE)}


def scheduler_options(plugin: type[Any], version: EngineVersion) -> dict[str, Any]:
    """Return a version's defaults of the options that a scheduler's class inherits, but for limits.

    An option that the class declares itself keeps its default.
    """
    options = inherited_options(plugin)
    named = {key.removeprefix("scheduler."): key for key in version.defaults}
    return {name: version.default(key) for name, key in named.items() if name in options}


def predictor_by_version(
    said: object, version: EngineVersion, gpu: GpuSpec, max_num_seqs: int, num_drafts: int = 0
) -> object:
    """Return a file's roofline section, with the version's largest CUDA graph if it names none."""
    spelt: object = {"type": said} if isinstance(said, str) else said
    if not isinstance(spelt, Mapping) or spelt.get("type", "roofline") != "roofline":
        return said
    sizes = ("max_cudagraph_capture_size", "cudagraph_capture_sizes")
    if spelt.get("enforce_eager") or any(spelt.get(key) is not None for key in sizes):
        return said
    return {**spelt, sizes[0]: largest_graph(version, gpu, max_num_seqs, num_drafts)}


# --- which engine a client imitates, which values come from it, and what is missing -------------


class Origin(NamedTuple):
    """An option whose value is the default of a version, and where vLLM's package has it."""

    key: str
    value: Any
    source: str


def imitated(config: EngineConfig) -> str:
    """Return the line of a summary about a client's engine."""
    name = version_of(config.engine).name
    return f"{name if config.engine else f'{name} (assumed)'}{_unlike(config)}"


def engine_line(configs: Iterable[EngineConfig]) -> str:
    """Return which engines the clients of a run imitate, in one line; empty without clients.

    configs: of the clients, with the version's defaults filled in.
    """
    found = dict.fromkeys(
        f"{version_of(each.engine).title}{'' if each.engine else _assumed(each)}{_unlike(each)}"
        for each in configs
    )
    return f"options as in {', '.join(found)}" if found else ""


def _assumed(config: EngineConfig) -> str:
    """Return a remark that the version is assumed, and what older versions do differently.

    A step takes the longer of the host's and the GPU's time where it is planned ahead, and their
    sum where it is not.
    """
    if not config.async_scheduling:
        return " (assumed)"
    first = next(each for each in VERSIONS.values() if each.default("async_scheduling"))
    number = first.title.removeprefix("vLLM ")
    return f" (assumed; versions before {number} schedule synchronously)"


def _unlike(config: EngineConfig) -> str:
    """Return what the version does by default and the client cannot; empty for nothing."""
    version = version_of(config.engine)
    lanes = config.pipeline_parallel_size > 1 and version.rules.batch_queue
    if lanes and (option := config.no_batch_queue) and not config.virtual_engines:
        return (
            f", a scheduler and a part of the memory for each batch in flight, and "
            f"async_scheduling off: one for all is not simulated with {option}"
        )
    if config.no_planning_ahead and version_of(config.engine).default("async_scheduling"):
        return f", async_scheduling off: not simulated with {config.no_planning_ahead}"
    return ""


def origins(client: Mapping[str, Any]) -> Iterator[Origin]:
    """Yield the options of a client whose values are its version's defaults, and its rules.

    client: an entry of a resolved scenario's `clients`, of type llm.
    """
    version, gpu = version_of(client["engine"]), load_gpu(client["gpu"])
    drafting = client["speculative_config"] or {}
    num_drafts = drafting.get("num_speculative_tokens", 0)
    limits = server_limits(gpu, num_drafts, version)
    num_seqs = client["scheduler"].get("max_num_seqs")
    for key, default in version.defaults.items():
        if key.startswith(KERNELS):
            continue
        if key == LIMITS:
            pairs = ((f"scheduler.{name}", value) for name, value in limits._asdict().items())
            expected = dict(pairs)
        elif key == LARGEST_GRAPH:
            most = largest_graph(version, gpu, num_seqs, num_drafts) if num_seqs else None
            expected = {key: most}
        elif key.startswith((RULES, MEMORY, SERVER)):
            value = default.value
            plain = isinstance(value, bool | int | float)
            text = ", ".join(value) if isinstance(value, tuple) else str(value)
            yield Origin(key, value if plain else text, default.source)
            continue
        else:
            expected = {key: default.value}
        for name, value in expected.items():
            if value is not None and value_at(client, name) == value:
                yield Origin(name, value, default.source)


def origin_text(clients: Iterable[Mapping[str, Any]]) -> str:
    """Return comment lines that say which values of a resolved scenario are an engine's defaults.

    clients: the entries of its `clients`.
    """
    alike: dict[str, list[str]] = {}
    for position, client in enumerate(clients):
        if client["type"] == "llm":
            alike.setdefault(_comment(client), []).append(str(position))
    return "".join(f"# clients {', '.join(at)}: {text}" for text, at in alike.items())


def _comment(client: Mapping[str, Any]) -> str:
    version = version_of(client["engine"])
    assumed = "" if client["engine"] else " (assumed: no engine is named)"
    lines = [f"the defaults of {version.title}{assumed}, with their places in its package"]
    lines += [f"#   {key}: {shown(value)} ({source})" for key, value, source in origins(client)]
    if _assumes_a_host(client):
        host = default_host(load_gpu(client["gpu"]).interconnect).name
        lines.append(f"# host: {host} (assumed: none is named), where links count")
    return "\n".join(lines) + "\n"


def _assumes_a_host(client: Mapping[str, Any]) -> bool:
    shares = client["data_parallel_size"] if client["enable_expert_parallel"] else 1
    sizes = client["tensor_parallel_size"], client["pipeline_parallel_size"], shares
    by_host = goes_by_host(load_gpu(client["gpu"]), client["all_reduce"])
    return client["host"] is None and by_host and in_contact(*sizes)


def lacking(client: Mapping[str, Any], version: EngineVersion) -> Iterator[Problem]:
    """Yield the options of a client that the version which it names does not have."""
    for key, lack in version.lacks.items():
        value = value_at(client, key)
        if value is None or value in lack.neutral or (lack.only and value not in lack.only):
            continue
        yield Problem(
            tuple(key.split(".")),
            f"{version.title} has no such option ({lack.why}), got {shown(value)}; "
            f"write {lack.otherwise}",
        )


def value_at(client: Mapping[str, Any], key: str) -> Any:
    """Return the value at a dotted key of nested mappings; None where there is none."""
    found: Any = client
    for step in key.split("."):
        found = found.get(step) if isinstance(found, Mapping) else None
    return found
