"""From a scenario to the `vllm serve` lines that start it, and what stands between them.

Sources: `EngineArgs` of vllm/engine/arg_utils.py for the arguments; vLLM's guide of its
NixlConnector (docs/features/nixl_connector_usage.md) for prompts and answers apart, whose proxy,
not `kv_role`, decides who computes prompts.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from mist_sim.models import load_model
from mist_sim.scenario import Scenario
from mist_sim.scenario.from_vllm.arguments import HONOURED
from mist_sim.scenario.from_vllm.serve import KV_ROLES
from mist_sim.scenario.load import as_data

_FIRST_PORT, _PROXY_PORT = 8100, 8000
_ALWAYS = ("--tensor-parallel-size", "--max-num-batched-tokens", "--max-num-seqs")
_PROXY = "python tests/v1/kv_connector/nixl_integration/toy_proxy_server.py"
_STORED_AS = {"fp8": "fp8", "int4": "awq"}


@dataclass(frozen=True)
class Deployment:
    """How to start the servers of a scenario.

    commands: a `vllm serve` for each; none where vLLM has no such design. proxy: what stands
    between prompts and answers. notes: what else has to be known. read_back: what `mist from-vllm`
    needs beside the commands to give the clients again.
    """

    commands: tuple[str, ...] = ()
    proxy: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    read_back: str = ""

    @property
    def text(self) -> str:
        """All of it as a shell script."""
        notes = [f"# {line}" for line in self.notes]
        back = [f"# {self.read_back}"] if self.read_back else []
        servers = [f"{command} &" for command in self.commands]
        return "\n".join([*notes, *back, *servers, *self.proxy, ""])


def deployment_of(scenario: Scenario) -> Deployment:
    """Return how to start the servers of a scenario whose clients are all of type llm."""
    data = as_data(scenario)
    said = scenario.clients
    roles = {client.get("role") for client in data["clients"]}
    if any(client["type"] != "llm" for client in data["clients"]):
        return Deployment(notes=("vLLM has no bundles of attention and FFN workers: no commands.",))
    if roles & {"p_heavy", "d_heavy"}:
        return Deployment(
            notes=(
                "vLLM has no router that moves answers between servers (TaiChi): no commands. "
                "--designs together,apart finds what it serves as it is.",
            )
        )
    del said
    ports: dict[str | None, list[int]] = {}
    commands: list[str] = []
    for client in data["clients"]:
        for _ in range(client["count"]):
            port = _FIRST_PORT + len(commands)
            ports.setdefault(client.get("role"), []).append(port)
            commands.append(_command(client, scenario, port))
    gpu = data["clients"][0]["gpu"]
    router = data["router"]["type"] if isinstance(data["router"], Mapping) else data["router"]
    notes = [f"Requests go to the servers by the router {router}."]
    if len(commands) == 1:
        notes = []
    sets = f" --set router={router}" if notes else ""
    return Deployment(
        tuple(commands),
        tuple(_proxy(ports)) if "prefill" in ports else (),
        tuple(notes),
        f"mist from-vllm deploy.sh --gpu {gpu}{sets}",
    )


def _command(client: Mapping[str, Any], scenario: Scenario, port: int) -> str:
    model = str(client["model"] or scenario.model)
    words = ["vllm", "serve", _checkpoint(model)]
    for flag, value in _arguments(client):
        words += [flag] if value is None else [flag, value]
    return shlex.join([*words, "--port", str(port)])


def _checkpoint(model: str) -> str:
    """Return the name by which Hugging Face has a model of the catalog, else its own."""
    source = load_model(model).source
    name = source.removeprefix("config.json of ").removesuffix(" on Hugging Face")
    return name if name != source and name.count("/") == 1 else model


def _arguments(client: Mapping[str, Any]) -> Iterator[tuple[str, str | None]]:
    """Yield flags and their values, None for a switch, where they are not what vLLM takes."""
    for flag, honoured in HONOURED.items():
        value = _at(client, honoured.key)
        if flag in ("--model", "--kv-offloading-size") or value is None:
            continue
        if flag not in _ALWAYS and value == _DEFAULTS.get(flag, value):
            continue
        if flag == "--tensor-parallel-size" and value == 1:
            continue
        yield from _argument(flag, value, is_switch=honoured.read is None)
    role = client.get("role")
    if role is not None:
        config = {"kv_connector": "NixlConnector", "kv_role": KV_ROLES[role]}
        yield "--kv-transfer-config", json.dumps(config)


def _argument(flag: str, value: Any, *, is_switch: bool) -> Iterator[tuple[str, str | None]]:
    if is_switch:
        yield (flag if value else f"--no-{flag[2:]}"), None
    elif flag == "--quantization":
        yield flag, _STORED_AS.get(value, str(value))
    elif isinstance(value, Mapping):
        yield flag, json.dumps(dict(value))
    elif isinstance(value, list | tuple):
        yield flag, " ".join(map(str, value))
    else:
        yield flag, str(value)


def _at(client: Mapping[str, Any], path: str) -> Any:
    found: Any = client
    for step in path.split("."):
        if not isinstance(found, Mapping):
            return None
        found = found.get(step)
    return found


def _proxy(ports: Mapping[str | None, list[int]]) -> Iterator[str]:
    """Yield the command of vLLM's example of a proxy; it takes all servers to be on this host."""
    sides = {"prefiller": ports["prefill"], "decoder": ports["decode"]}
    words = [f"{_PROXY} --port {_PROXY_PORT}"]
    for side, mine in sides.items():
        words.append(f"--{side}-hosts {' '.join(['localhost'] * len(mine))}")
        words.append(f"--{side}-ports {' '.join(map(str, mine))}")
    yield " ".join(words)
