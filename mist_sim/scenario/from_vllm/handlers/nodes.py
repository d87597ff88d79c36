"""Flags of servers on several nodes, and of how their ranks exchange data."""

from __future__ import annotations

from typing import get_args

from mist_sim.errors import MistError
from mist_sim.hardware.cluster import All2AllBackend
from mist_sim.scenario.engines.server_start import nodes_problem, room_of_a_node
from mist_sim.scenario.from_vllm.flags import Flag
from mist_sim.scenario.from_vllm.server import Server

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


def nnodes(flag: Flag, server: Server) -> None:
    """Note that a server spans nodes."""
    if flag.value == "1":
        server.account.no_effect(flag.written, "one node is the default")
    else:
        server.account.assumed(flag.written, _ONE_NODE)


def rank(flag: Flag, server: Server) -> None:
    """Note which node of a server a command starts."""
    if flag.value == "0":
        server.account.no_effect(flag.written, "the first node's command is the server's")
    elif "$" in flag.value or "`" in flag.value:
        server.account.assumed(flag.written, _EVERY_NODE)
    else:
        _of_another(flag, server)


def headless(flag: Flag, server: Server) -> None:
    """Note a command that starts ranks alone."""
    if flag.is_on:
        _of_another(flag, server)
    else:
        server.account.no_effect(flag.written, "that is so by default")


def _of_another(flag: Flag, server: Server) -> None:
    server.part = flag.written
    server.account.no_effect(flag.written, _PART)


def local(flag: Flag, server: Server) -> None:
    """Note how many engines a node has."""
    engines = server.said.get("--data-parallel-size")
    if engines is not None and engines.value == flag.value:
        server.account.no_effect(flag.written, "all engines are on one node")
    else:
        server.account.assumed(flag.written, _ONE_NODE)


def all_to_all(flag: Flag, server: Server) -> None:
    """Refuse where the choice changes the limit of tokens; others wait for `exchanges`."""
    if _takes_few(flag, server):
        server.account.refused(
            flag.written,
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
    if name is not None:
        server.handled.add(_VARIABLE)
    if name is not None and flag is not None:
        server.account.no_effect(_VARIABLE, f"{_FLAG} takes precedence")
    elif name is not None:
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
        server.account.no_effect(written, "no engines share experts, so they exchange nothing")
        return
    is_gone = name == "pplx" and not 0 < server.minor < _WITHOUT_PPLX
    backend = _RENAMED.get(name, name)
    if is_gone or backend not in get_args(All2AllBackend):
        server.account.assumed(written, _GATHERED)
    else:
        server.set("all2all_backend", backend, written)


def no_custom_all_reduce(flag: Flag, server: Server) -> None:
    """Let sums go over NCCL's ring."""
    if flag.is_on:
        server.set("all_reduce", "ring", flag)
    else:
        server.account.no_effect(flag.written, "that is so by default")


def check_nodes(server: Server) -> None:
    """Refuse nodes that do not divide an engine's ranks; note ranks for which no flag names nodes.

    Manifests and recipes may start Ray beside the command, so these are timed all the same.
    """
    nodes = server.said.get("--nnodes")
    backend = server.said.get("--distributed-executor-backend")
    is_elsewhere = server.part or any(name in server.said for name in _ELSEWHERE)
    if is_elsewhere or (backend is not None and backend.value != "mp"):
        return
    number = server.number("--nnodes") if nodes else 1
    problem = nodes_problem(
        server.num_ranks,
        server.number("--data-parallel-size"),
        nodes=number if number > 1 else None,
        room=_room(server.gpu),
    )
    if problem and nodes and number > 1:
        server.account.refused(nodes.written, problem)
    elif problem:
        ranks = server.said.get(_RANKS) or server.said[_TENSOR]
        server.account.assumed(ranks.written, problem)


def _room(gpu: str) -> int | None:
    try:
        return room_of_a_node(gpu) if gpu else None
    except MistError:
        return None


def note_lanes(server: Server) -> None:
    """Note options with which a pipeline has a scheduler for each batch here, and one in vLLM."""
    client = server.client
    tiers = client.get("kv_cache", {}).get("tiers")
    options = {
        "drafts": client.get("speculative_config"),
        "a tier": tiers,
        "a role": client.get("role"),
    }
    found = [name for name, is_set in options.items() if is_set]
    if server.number(_RANKS) > 1 and found:
        server.account.assumed(
            server.said[_RANKS].written,
            f"with {' and '.join(found)} each batch in flight has a scheduler and a part of the "
            "memory here, as in vLLM's v0; vLLM's v1 has one for all",
        )
