"""Flags that limit answers or place KV entries outside the GPU."""

from __future__ import annotations

from mist_sim.scenario.from_vllm.flags import Flag
from mist_sim.scenario.from_vllm.handlers import lmcache
from mist_sim.scenario.from_vllm.server import Server


def api_servers(flag: Flag, server: Server) -> None:
    """Set how many HTTP server processes share the requests."""
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
    """Note the backend that copies blocks to the host."""
    if flag.value == "native":
        server.account.no_effect(flag.written, "that is so by default")
    else:
        server.account.assumed(flag.written, "offloading has one kind of copy here")
        lmcache.beside({}, server, "the tier is of --kv-offloading-size, in host memory alone")
