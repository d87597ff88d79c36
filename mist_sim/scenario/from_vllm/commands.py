"""From vLLM's command lines to the keys of a scenario."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from mist_sim.errors import ScenarioError
from mist_sim.scenario.from_vllm.bench import workload_of
from mist_sim.scenario.from_vllm.command_line import COMMANDS, split_all
from mist_sim.scenario.from_vllm.serve import client_of


@dataclass(frozen=True)
class FromVllm:
    """What command lines say of a scenario.

    keys: top-level keys of a scenario and their values. left_out: flags that change no time.
    """

    keys: dict[str, Any]
    left_out: tuple[str, ...]


def from_vllm(commands: Iterable[str], *, gpu: str | None = None) -> FromVllm:
    """Return what `vllm serve` and `vllm bench serve` command lines say.

    commands: one `vllm serve` or several, at most one `vllm bench serve`, or files that hold them.
        Equal servers become one client with a count. gpu: which the servers have, if known.
    Raises ScenarioError for an argument that cannot be honoured, with what to write instead.
    """
    keys: dict[str, Any] = {}
    left_out: list[str] = []
    servers: list[dict[str, Any]] = []
    for command, words in (each for text in commands for each in split_all(text)):
        if command == COMMANDS[0]:
            client, flags = client_of(words)
            servers.append(client)
        elif "workload" in keys:
            raise ScenarioError(f"--from-vllm: {command} is given twice; remove one")
        else:
            said, flags = workload_of(words)
            keys |= said
        left_out += [flag for flag in flags if flag not in left_out]
    if servers:
        keys = _clients(servers, gpu) | keys
    elif gpu:
        raise ScenarioError(f"--gpu has no effect without {COMMANDS[0]}")
    return FromVllm(keys, tuple(left_out))


def _clients(servers: Sequence[Mapping[str, Any]], gpu: str | None) -> dict[str, Any]:
    """Return model and clients; equal servers are one client."""
    models = list(dict.fromkeys(str(server["model"]) for server in servers))
    found: list[dict[str, Any]] = []
    counts: list[int] = []
    for server in servers:
        own = {k: v for k, v in server.items() if k != "model" or len(models) > 1}
        if own in found:
            counts[found.index(own)] += 1
        else:
            found.append(own)
            counts.append(1)
    names = [f"llm-{each['role']}" if "role" in each else "llm" for each in found]
    clients = [
        {
            "name": name if names.count(name) == 1 else f"{name}-{names[:k].count(name) + 1}",
            **({"count": count} if count > 1 else {}),
            **({"gpu": gpu} if gpu else {}),
            **client,
        }
        for k, (name, count, client) in enumerate(zip(names, counts, found, strict=True))
    ]
    return {**({"model": models[0]} if len(models) == 1 else {}), "clients": clients}
