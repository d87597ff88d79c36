"""The variables of a server's environment, each with its line in the account."""

from __future__ import annotations

from collections.abc import Iterable
from re import Pattern

from mist_sim.scenario.from_vllm.server import Server
from mist_sim.scenario.from_vllm.tables.variables import ASSUMED, NO_EFFECT, REFUSED

_VISIBLE = ("CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "NVIDIA_VISIBLE_DEVICES")
_PACKAGES = ("VLLM_", "LMCACHE_")


def account_for(server: Server, *, num_gpus: int | None) -> None:
    """Note the effect of each variable that no flag has accounted for; values are not shown.

    num_gpus: GPUs of the server's container; None if unknown.
    """
    for name, value in server.variables.items():
        if name not in server.handled:
            _account(name, value, server)
    seen = num_gpus if num_gpus is not None else visible(server)
    if seen is not None and seen < server.num_gpus and not _spans_nodes(server):
        server.account.refused(
            "",
            f"it may use {seen} GPUs, and asks for {server.num_gpus} (tensor, pipeline and data "
            "parallel); give it as many",
        )


def _account(name: str, value: str, server: Server) -> None:
    reason = _of(name, NO_EFFECT)
    if name in REFUSED:
        neutral, why = REFUSED[name]
        if value.lower() in neutral:
            server.account.no_effect(name, "that is so by default")
        else:
            server.account.refused(name, why)
    elif name in _VISIBLE:
        server.account.no_effect(name, "which GPUs they are changes no time; it names enough")
    elif (kept := _of(name, ASSUMED)) is not None:
        server.account.assumed(name, kept)
    elif reason is not None or not name.startswith(_PACKAGES):
        server.account.no_effect(name, reason or "it is no variable of vLLM's")
    else:
        server.account.refused(
            name, "not a variable that is known here; leave it out if it changes no time"
        )


def _of(name: str, table: Iterable[tuple[Pattern[str], str]]) -> str | None:
    return next((why for pattern, why in table if pattern.fullmatch(name)), None)


def visible(server: Server) -> int | None:
    """Return how many GPUs the environment shows; None if it does not say."""
    for name in _VISIBLE[:2]:
        value = server.variables.get(name, "").strip()
        if value and value.replace(",", "").replace(" ", "").isalnum():
            return len(value.rstrip(",").split(","))
    return None


def _spans_nodes(server: Server) -> bool:
    """Whether a flag says that further nodes have further GPUs."""
    said = server.said
    several = "--nnodes" in said or "--data-parallel-size-local" in said or bool(server.part)
    backend = said.get("--distributed-executor-backend")
    return (
        several
        or (backend is not None and backend.value == "ray")
        or ("--data-parallel-backend" in said)
    )
