"""Flags of servers on several nodes, of their processes, and of how ranks exchange data."""

from __future__ import annotations

from typing import get_args

from mist_sim.errors import MistError
from mist_sim.hardware.cluster import All2AllBackend
from mist_sim.scenario.engines.server_start import nodes_problem, room_of_a_node
from mist_sim.scenario.from_vllm.flags import Flag
from mist_sim.scenario.from_vllm.server import Server, handler

_PART = (
    "this command starts another node of a server; the first node's command describes the server"
)
_ONE_NODE = (
    "all GPUs are linked as those of one node; for several, --set network='{topology: ..., nodes: "
    "N, spans_nodes: true}'"
)
_EVERY_NODE = "it has no value here, so all nodes run this command, the first as well"
_TENSOR, _RANKS = "--tensor-parallel-size", "--pipeline-parallel-size"
_ELSEWHERE = ("--data-parallel-backend", "--data-parallel-size-local")
_FEW_TOKENS = ("deepep_low_latency", "nixl_ep")
_FLAG, _VARIABLE = "--all2all-backend", "VLLM_ALL2ALL_BACKEND"
_ENGINES = ("data_parallel_size", "prefill_context_parallel_size")
_RENAMED = {"flashinfer_all2allv": "flashinfer_nvlink_two_sided"}
_WITHOUT_PPLX = 17  # vLLM takes its default there (pull request 33724)
_GATHERED = "experts are exchanged as by vLLM's default, allgather_reducescatter"


@handler
def nnodes(flag: Flag, server: Server) -> None:
    """Note that a server spans nodes."""
    server.assumed(flag, _ONE_NODE)


@handler
def another_node(flag: Flag, server: Server) -> None:
    """Note a command that starts a node behind the first of a server, or ranks alone."""
    if "$" in flag.value or "`" in flag.value:
        server.assumed(flag, _EVERY_NODE)
    else:
        server.part = flag.written
        server.no_effect(flag, _PART)


@handler
def data_parallel_size_local(flag: Flag, server: Server) -> None:
    """Note how many engines a node has."""
    engines = server.said.get("--data-parallel-size")
    if engines is not None and engines.value == flag.value:
        server.no_effect(flag, "all engines are on one node")
    else:
        server.assumed(flag, _ONE_NODE)


@handler
def api_server_count(flag: Flag, server: Server) -> None:
    """Set how many HTTP server processes share the requests."""
    if not flag.value.isdecimal() or int(flag.value[:9]) < 1:
        server.refused(flag, "must be a whole number > 0")
        return
    server.front_end["api_server_count"] = int(flag.value[:9])
    server.applied(flag, f"front_end.api_server_count: {flag.value[:9]}")


@handler
def all2all_backend(flag: Flag, server: Server) -> None:
    """Refuse where the choice changes the limit of tokens; others wait for `exchanges`."""
    if _takes_few(flag, server):
        server.refused(
            flag,
            "with it vLLM takes 256 tokens a step from 0.20 on; instead: say "
            "--max-num-batched-tokens beside it",
        )


def exchanges(server: Server) -> None:
    """Apply the exchange between experts that a flag or a variable names; a flag takes precedence.

    After all other flags, which say whether engines share experts.
    """
    flag, name = server.said.get(_FLAG), server.variables.get(_VARIABLE)
    if flag is not None and not _takes_few(flag, server):
        _exchange(flag.value, flag.written, server)
    if name is None:
        return
    server.handled.add(_VARIABLE)
    if flag is not None:
        server.no_effect(_VARIABLE, f"{_FLAG} takes precedence")
    else:
        _exchange(name, _VARIABLE, server)


def _takes_few(flag: Flag, server: Server) -> bool:
    """Whether the choice changes the limit of tokens, and no flag says that."""
    return flag.value in _FEW_TOKENS and "--max-num-batched-tokens" not in server.said


def _exchange(name: str, written: str, server: Server) -> None:
    """Let engines that share experts exchange tokens as vLLM's back end of that name does."""
    spreads, client = "enable_expert_parallel", server.client
    is_spread = client.get(spreads) or server.is_set_elsewhere(spreads)
    is_alone = max(client.get(key, 1) for key in _ENGINES) == 1
    if not is_spread or (is_alone and not any(map(server.is_set_elsewhere, _ENGINES))):
        server.no_effect(written, "no engines share experts, so they exchange nothing")
        return
    is_gone = name == "pplx" and not 0 < server.minor < _WITHOUT_PPLX
    backend = _RENAMED.get(name, name)
    if is_gone or backend not in get_args(All2AllBackend):
        server.assumed(written, _GATHERED)
    else:
        server.set("all2all_backend", backend, written)


def check_nodes(server: Server) -> None:
    """Refuse nodes that do not divide an engine's ranks; note ranks for which no flag names nodes.

    Manifests and recipes may start Ray beside the command, so these are timed all the same.
    """
    nodes = server.said.get("--nnodes")
    backend = server.said.get("--distributed-executor-backend")
    is_elsewhere = server.part or any(name in server.said for name in _ELSEWHERE)
    if is_elsewhere or (backend is not None and backend.value != "mp"):
        return
    try:
        room = room_of_a_node(server.gpu) if server.gpu else None
    except MistError:
        room = None
    number = server.number("--nnodes")
    problem = nodes_problem(
        server.num_ranks,
        server.number("--data-parallel-size"),
        nodes=number if number > 1 else None,
        room=room,
    )
    if problem and nodes and number > 1:
        server.refused(nodes, problem)
    elif problem:
        server.assumed(server.said.get(_RANKS) or server.said[_TENSOR], problem)


def note_lanes(server: Server) -> None:
    """Note options with which a pipeline has a scheduler for each batch here, and one in vLLM."""
    client = server.client
    options = {
        "drafts": client.get("speculative_config"),
        "a tier": client.get("kv_cache", {}).get("tiers"),
        "a role": client.get("role"),
    }
    found = [name for name, is_set in options.items() if is_set]
    if server.number(_RANKS) > 1 and found:
        server.assumed(
            server.said[_RANKS],
            f"with {' and '.join(found)} each batch in flight has a scheduler and a part of the "
            "memory here, as in vLLM's v0; vLLM's v1 has one for all",
        )
