"""From vLLM's command lines to the keys of a scenario."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from mist_sim.errors import ScenarioError
from mist_sim.scenario.from_vllm.bench import workload_of
from mist_sim.scenario.from_vllm.command_line import COMMANDS, split
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

    commands: at most one of each, or files that hold them. gpu: which the server has, if known.
    Raises ScenarioError for an argument that cannot be honoured, with what to write instead.
    """
    keys: dict[str, Any] = {}
    left_out: list[str] = []
    seen: set[str] = set()
    for text in commands:
        command, words = split(text)
        if command in seen:
            raise ScenarioError(f"--from-vllm: {command} is given twice; remove one")
        seen.add(command)
        if command == COMMANDS[0]:
            client, flags = client_of(words)
            keys["model"] = client.pop("model")
            keys["clients"] = [{"name": "llm", **({"gpu": gpu} if gpu else {}), **client}]
        else:
            said, flags = workload_of(words)
            keys |= said
        left_out += flags
    if gpu and "clients" not in keys:
        raise ScenarioError(f"--gpu has no effect without {COMMANDS[0]}")
    return FromVllm(keys, tuple(left_out))
