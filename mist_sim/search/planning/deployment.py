"""From a scenario to the `vllm serve` lines that start it, with a proxy if needed.

Sources: `EngineArgs` of vllm/engine/arg_utils.py for the arguments; vLLM's "NixlConnector Usage
Guide" for prompts and answers apart, whose proxy, not `kv_role`, decides which server computes
prompts.
"""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from math import prod
from typing import Any, cast

from mist_sim.errors import printable
from mist_sim.models.model_loading import repository_of
from mist_sim.scenario import Scenario
from mist_sim.scenario.engines.server_start import room_of_a_node
from mist_sim.scenario.from_vllm.handlers.caches import KV_ROLES
from mist_sim.scenario.from_vllm.tables import HONOURED
from mist_sim.scenario.loading import as_data
from mist_sim.scenario.schema import Engines

_FIRST_PORT, _PROXY_PORT = 8100, 8000
_LIMITS = ("max_num_batched_tokens", "max_num_seqs")
_ALWAYS = ("--max-num-batched-tokens", "--max-num-seqs")
_WIDTH = "--tensor-parallel-size"
_RANKS = ("tensor_parallel_size", "pipeline_parallel_size", "prefill_context_parallel_size")
_ELSEWHERE = ("--model", "--kv-offloading-size")  # the first word; a note
_NOT_ENGINES = {"name", "type", "count", "place", "model", "gpu", "gpu_price", "role", "engine"}
_STORED_AS = {"fp8": "fp8", "fp8_block": "fp8", "int4": "awq"}
_HUB_NAME = re.compile(r"\w[\w.-]*/[\w.-]+")
_PROXY = "python tests/v1/kv_connector/nixl_integration/toy_proxy_server.py"
_NO_HYBRIDS = (
    "vLLM has no router that moves answers between servers (TaiChi), such as length_aware: no "
    "commands. "
    "--designs together,apart finds designs that vLLM serves."
)


@dataclass(frozen=True)
class Deployment:
    """Commands that start the servers of a scenario.

    commands: a `vllm serve` for each; empty if vLLM has no such design. proxy: the proxy between
        prompts and answers. notes: further remarks. read_back: arguments of `mist from-vllm`,
        beside the commands, that give the clients again.
    """

    commands: tuple[str, ...] = ()
    proxy: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    read_back: str = ""

    @property
    def text(self) -> str:
        """All of it as a shell script."""
        remarks = [*self.notes, *([self.read_back] if self.read_back else [])]
        comments = [f"# {printable(line)}" for line in remarks]  # none ends before its line does
        servers = [f"{command} &" for command in self.commands]
        return "\n".join([*comments, *servers, *self.proxy, ""])


def deployment_of(scenario: Scenario) -> Deployment:
    """Return how to start the servers of a scenario."""
    data = as_data(scenario)
    clients: list[dict[str, Any]] = data["clients"]
    roles = {client.get("role") for client in clients}
    if any(client["type"] != "llm" for client in clients):
        return Deployment(notes=("vLLM has no bundles of attention and FFN workers: no commands.",))
    if any(client["resharding"] for client in clients):
        return Deployment(notes=("vLLM has no engines that re-shard (Seesaw): no commands.",))
    if not roles <= {None, *KV_ROLES}:
        return Deployment(notes=(_NO_HYBRIDS,))
    ports: dict[str | None, list[int]] = {}
    commands: list[str] = []
    unsaid: dict[str, None] = {}
    for client in clients:
        model = str(client["model"] or scenario.model)
        plain = _plain(client, model)
        checkpoint = model if _HUB_NAME.fullmatch(model) else repository_of(model) or model
        words = ["vllm", "serve", checkpoint]
        words += [word for argument in _arguments(client, plain) for word in argument]
        if (nodes := _nodes(client)) > 1:
            words += ["--nnodes", str(nodes)]
        unsaid |= dict.fromkeys(_unsaid(client, plain))
        for _ in range(client["count"]):
            port = _FIRST_PORT + len(commands)
            ports.setdefault(client.get("role"), []).append(port)
            commands.append(shlex.join([*words, "--port", str(port)]))
    return Deployment(
        tuple(commands),
        tuple(_proxy(ports)) if "prefill" in ports else (),
        tuple(_notes(data, len(commands), list(unsaid))),
        shlex.join(["mist", "from-vllm", "deploy.sh", *_unsaid_by_servers(data)]),
    )


def _nodes(client: Mapping[str, Any]) -> int:
    """Return over how many nodes an engine's ranks go (see `nodes_problem`)."""
    ranks = prod(int(client[size]) for size in _RANKS)
    return -(-ranks // (room_of_a_node(client["gpu"]) or ranks))


def _notes(data: Mapping[str, Any], number: int, unsaid: list[str]) -> Iterator[str]:
    if any(_nodes(client) > 1 for client in data["clients"]):
        yield "Each node runs the command, with its --node-rank and the first node's --master-addr."
    if number > 1:
        yield f"Requests go to the servers by the router {data['router']['type']}."
    if unsaid:
        yield f"No argument of vLLM says {', '.join(unsaid)}."


def _unsaid_by_servers(data: Mapping[str, Any]) -> list[str]:
    """Return the options of `mist from-vllm`: what no server says, and the version if it is one."""
    engines = {client["engine"] for client in data["clients"]}
    version = ["--engine", *engines] if len(engines) == 1 and None not in engines else []
    said = {"router": data["router"]["type"]}
    for key in ("topology", "nodes", "bandwidth", "latency", "nvlink", "pcie"):
        value = (data["network"] or {}).get(key)
        if value is not None:
            said[f"network.{key}"] = value
    settings = [word for key, value in said.items() for word in ("--set", f"{key}={value}")]
    return ["--gpu", data["clients"][0]["gpu"], *version, *settings]


def _arguments(client: Mapping[str, Any], plain: Mapping[str, Any]) -> Iterator[list[str]]:
    """Yield flags with their values, where a client differs from vLLM's defaults.

    plain: a client with the same GPU, seats and tokens per step, and no other option.
    """
    for flag, honoured in HONOURED.items():
        value, default = _at(client, honoured.key), _at(plain, honoured.key)
        is_usual = value == (1 if flag == _WIDTH else default)
        if flag in _ELSEWHERE or value is None or (is_usual and flag not in _ALWAYS):
            continue
        yield _argument(flag, value, is_switch=honoured.takes == "switch")
    role = client.get("role")
    if role is not None:
        config = {"kv_connector": "NixlConnector", "kv_role": KV_ROLES[role]}
        yield ["--kv-transfer-config", json.dumps(config)]


def _unsaid(client: Mapping[str, Any], plain: Mapping[str, Any], path: str = "") -> Iterator[str]:
    """Yield the keys of a client that are not as usual, and that no argument of vLLM sets."""
    said = {honoured.key for honoured in HONOURED.values()} | _NOT_ENGINES
    for key, value in client.items():
        place = f"{path}{key}"
        if place in said or value == plain.get(key):
            continue
        other = plain.get(key)
        if isinstance(value, Mapping) and isinstance(other, Mapping):
            yield from _unsaid(value, other, f"{place}.")
        else:
            yield f"{place}: {value}"


def _plain(client: Mapping[str, Any], model: str) -> Mapping[str, Any]:
    """Return a client with only GPU, width, seats and tokens per step."""
    scheduler = {k: v for k, v in client["scheduler"].items() if k in _LIMITS and v is not None}
    said = {
        "name": "llm",
        "gpu": client["gpu"],
        "engine": client["engine"],
        "tensor_parallel_size": client["tensor_parallel_size"],
        "scheduler": scheduler,
    }
    scenario = Engines.from_dict({"model": model, "clients": [said]})
    return cast("Mapping[str, Any]", as_data(scenario)["clients"][0])


def _argument(flag: str, value: Any, *, is_switch: bool) -> list[str]:
    if is_switch:
        return [flag if value else f"--no-{flag[2:]}"]
    if flag == "--quantization":
        return [flag, _STORED_AS.get(value, str(value))]
    if isinstance(value, Mapping):
        return [flag, json.dumps({k: v for k, v in value.items() if v is not None})]
    if isinstance(value, list | tuple):
        return [flag, *map(str, value)]
    return [flag, str(value)]


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
