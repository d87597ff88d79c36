"""The engine that a client imitates, the values that come from it, and what is missing.

A value that equals the version's default has its origin there, even if a file names it; so a
resolved scenario gives the same origins when it is read again.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple

from mist_sim.clients import EngineConfig
from mist_sim.hardware import load_gpu
from mist_sim.hardware.devices import default_host
from mist_sim.scenario.engines.defaults import largest_graph, server_limits
from mist_sim.scenario.engines.links import goes_by_host, in_contact
from mist_sim.scenario.engines.versions import (
    KERNELS,
    LARGEST_GRAPH,
    LIMITS,
    MEMORY,
    RULES,
    SERVER,
    VERSIONS,
    EngineVersion,
    version_of,
)
from mist_sim.scenario.format.problems import Problem, shown


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
