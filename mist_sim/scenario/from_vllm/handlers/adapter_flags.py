"""Flags about LoRA adapters.

Source: `LoRAConfig` in `vllm/config/lora.py`, `EngineArgs.add_cli_args` in
`vllm/engine/arg_utils.py`.
"""

from __future__ import annotations

from mist_sim.scenario.from_vllm.flags import Flag
from mist_sim.scenario.from_vllm.server import Server

_NONE = "without --enable-lora there are no adapters"
_STORAGE = "lora.storage_bandwidth"
_ALL = "all matrices of attention, MLPs and experts have adapters, in 16 bits"


def enable(flag: Flag, server: Server) -> None:
    """Serve adapters; the other flags say how many."""
    if not flag.is_on:
        server.account.no_effect(flag.written, "that is so by default")
        return
    server.client.setdefault("lora", {})
    server.account.applied(flag.written, "lora")


def size(flag: Flag, server: Server) -> None:
    """Set how many adapters, or of which rank, have room."""
    key = "lora." + flag.name.removeprefix("--").replace("-", "_")
    if not _serves(server):
        server.account.no_effect(flag.written, _NONE)
    elif not flag.value.isdecimal():
        server.account.refused(flag.written, f"must be a number, got {flag.value[:40]!r}")
    elif flag.name == "--max-cpu-loras" and not server.is_set_elsewhere(_STORAGE):
        server.account.no_effect(
            flag.written,
            "reading adapters from storage takes no time; --set clients.0.lora.storage_bandwidth "
            "says how long it does",
        )
    else:
        server.set(key, int(flag.value), flag)


def fully_sharded(flag: Flag, server: Server) -> None:
    """Split the small matrices, too."""
    if flag.is_on and _serves(server):
        server.set("lora.fully_sharded_loras", True, flag)
    else:
        server.account.no_effect(flag.written, _NONE if flag.is_on else "that is so by default")


def modules(flag: Flag, server: Server) -> None:
    """Pass over names: requests say which adapters they use."""
    why = "requests name adapters: --set workload.adapters, or --lora-modules of vllm bench serve"
    server.account.no_effect(flag.written, why if _serves(server) else _NONE)


def other(flag: Flag, server: Server) -> None:
    """Assume the default form of adapters."""
    if _serves(server):
        server.account.assumed(flag.written, _ALL)
    else:
        server.account.no_effect(flag.written, _NONE)


def _serves(server: Server) -> bool:
    flag = server.said.get("--enable-lora")
    return flag is not None and flag.is_on
