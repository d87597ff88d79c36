"""Flags that limit answers, and where keys and values go beside the GPU."""

from __future__ import annotations

from mist_sim.hardware.sampling import said_by_vllm
from mist_sim.scenario.from_vllm.flags import Flag
from mist_sim.scenario.from_vllm.handlers.json_values import entries_of
from mist_sim.scenario.from_vllm.server import Server


def generation(flag: Flag, server: Server) -> None:
    """Honour `max_new_tokens`, which caps all answers of a server, and what says how to sample.

    Source: `ModelConfig.get_diff_sampling_param` in vllm/config/model.py (0.19), which makes it the
    default `max_tokens`, and `get_max_tokens` in vllm/entrypoints/utils.py, which takes the least.
    """
    entries = entries_of(flag, server)
    sampling = said_by_vllm(entries)
    for key, value in entries.items():
        written = f"{flag.name} {key}={value}"
        if key in sampling:
            server.set(f"sampling.{key}", sampling[key], written)
        elif key != "max_new_tokens":
            server.account.no_effect(written, "it takes no time here")
        elif isinstance(value, int) and value > 0:
            server.workload["max_tokens"] = value
            server.account.applied(written, f"workload.max_tokens: {value}")
        else:
            server.account.refused(written, "must be a whole number > 0")


def api_servers(flag: Flag, server: Server) -> None:
    """Say how many processes of the HTTP server share the requests."""
    if not flag.value.isdecimal() or int(flag.value[:9]) < 1:
        server.account.refused(flag.written, "must be a whole number > 0")
        return
    server.front_end["api_server_count"] = int(flag.value[:9])
    server.account.applied(flag.written, f"front_end.api_server_count: {flag.value[:9]}")


def offloading_size(flag: Flag, server: Server) -> None:
    """Give the engine a tier of host memory."""
    try:
        size = float(flag.value)
    except ValueError:
        server.account.refused(flag.written, f"invalid float value: {flag.value!r}")
        return
    server.set("kv_cache.tiers", [{"name": "cpu", "capacity": f"{size:g} GiB"}], flag)


def offloading_backend(flag: Flag, server: Server) -> None:
    """Note who copies blocks to the host."""
    if flag.value == "native":
        server.account.no_effect(flag.written, "that is so by default")
    else:
        server.account.assumed(flag.written, "offloading has one kind of copy here")
