"""Which engine a client imitates, which of its values are that engine's, and what it lacks.

A value that equals the version's default has its origin there, whoever wrote it; so a resolved
scenario says the same when it is read again.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple

from mist_sim.hardware import load_gpu
from mist_sim.scenario.engines.server_defaults import server_limits
from mist_sim.scenario.engines.version_defaults import largest_graph
from mist_sim.scenario.engines.version_names import version_of
from mist_sim.scenario.engines.versions import (
    ASSUMED,
    LARGEST_GRAPH,
    LIMITS,
    NEWEST,
    EngineVersion,
)
from mist_sim.scenario.format.problems import Problem, shown


class Origin(NamedTuple):
    """An option whose value is the default of a version, and where vLLM's package has it."""

    key: str
    value: Any
    source: str


def imitated(name: str | None) -> str:
    """Return what a summary says of a client's engine."""
    return version_of(name).name if name else f"{ASSUMED.name} (assumed)"


def engine_line(names: Iterable[str | None]) -> str:
    """Return which engines the clients of a run imitate, in one line; empty without clients.

    names: of the versions that the clients name, None for those that name none.
    """
    named = dict.fromkeys(names)
    found = [version_of(name).title for name in named if name]
    if None in named:
        found.append(f"{ASSUMED.title} (assumed{_since_then()})")
    return f"options as in {', '.join(found)}" if found else ""


def _since_then() -> str:
    """Return what newer versions do that changes latencies most; empty where it is the same."""
    changed = NEWEST.default("async_scheduling") and not ASSUMED.default("async_scheduling")
    return "; newer versions schedule asynchronously" if changed else ""


def origins(client: Mapping[str, Any]) -> Iterator[Origin]:
    """Yield the options of a client whose values are its version's defaults.

    client: an entry of a resolved scenario's `clients`, of type llm.
    """
    version, gpu = version_of(client["engine"]), load_gpu(client["gpu"])
    drafting = client["speculative_config"] or {}
    num_drafts = drafting.get("num_speculative_tokens", 0)
    limits = server_limits(gpu, num_drafts, version)
    num_seqs = client["scheduler"].get("max_num_seqs")
    for key, default in version.defaults.items():
        if key == LIMITS:
            pairs = ((f"scheduler.{name}", value) for name, value in limits._asdict().items())
            expected = dict(pairs)
        elif key == LARGEST_GRAPH:
            most = largest_graph(version, gpu, num_seqs, num_drafts) if num_seqs else None
            expected = {key: most}
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
    return "\n".join(lines) + "\n"


def lacking(client: Mapping[str, Any], version: EngineVersion) -> Iterator[Problem]:
    """Yield the options of a client that the version which it names does not have."""
    for key, lack in version.lacks.items():
        value = value_at(client, key)
        if value is None or value in lack.neutral or (lack.only and value not in lack.only):
            continue
        yield Problem(
            tuple(key.split(".")),
            f"{version.title} has no such option ({lack.reason}), got {shown(value)}; "
            f"write {lack.instead}",
        )


def value_at(client: Mapping[str, Any], key: str) -> Any:
    """Return the value at a dotted key of nested mappings; None where there is none."""
    found: Any = client
    for step in key.split("."):
        found = found.get(step) if isinstance(found, Mapping) else None
    return found
