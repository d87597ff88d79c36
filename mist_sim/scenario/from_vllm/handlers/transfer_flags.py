"""`--kv-transfer-config`: roles of prefill and decode servers, or a cache below the GPU's.

Sources: `KVTransferConfig` in vllm/config/kv_transfer.py; `lmcache` in
`VllmConfig._post_init_kv_transfer_config` of vllm/config/vllm.py (0.19), where LMCache's size is
that of each rank; its variables, and 5 GB of host memory unless one says otherwise, as in the
LMCache examples of vLLM's documentation. `get_num_new_matched_tokens` of a connector tells whether
it loads between steps: `LMCacheConnectorV1` never does.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from mist_sim.errors import brief
from mist_sim.scenario.from_vllm.flags import Flag
from mist_sim.scenario.from_vllm.handlers.json_values import entries_of
from mist_sim.scenario.from_vllm.server import Server

KV_ROLES = {"prefill": "kv_producer", "decode": "kv_consumer"}
"""`kv_role` of vLLM's `KVTransferConfig` (vllm/config/kv_transfer.py) for a client's role."""

_FLAG = "--kv-transfer-config"
_TIERS = "kv_cache.tiers"
_LMCACHE = "LMCACHE_"
_SIZE, _LOCAL, _REMOTE = "MAX_LOCAL_CPU_SIZE", "LOCAL_CPU", "REMOTE_URL"
_OTHERS = {
    "USE_EXPERIMENTAL": "it is LMCache's only form now",
    "LOG_LEVEL": "what is logged takes no time here",
    "CHUNK_SIZE": "the tier keeps blocks of block_size tokens, not chunks",
    "USE_LAYERWISE": "loads are timed whole, not layer by layer",
    "SAVE_DECODE_CACHE": "answers are kept as prompts are",
    "REMOTE_SERDE": "entries keep their size on the way",
}
_DEFAULT_SIZE = 5.0
_IN_STEP = "LMCacheConnectorV1"  # the step that admits a request waits for its blocks
_ENDS = "how connectors find each other; the network and the tier determine how fast they are"
_STORES = ("MooncakeStoreConnector", "FlexKVConnectorV1", "HF3FSKVConnector")
_SHARED = (
    "a store that servers share needs a size and a bandwidth; instead: --set "
    "'clients.0.kv_cache.tiers=[{name: store, capacity: 1 TB, read_bandwidth: 10 GB/s, shared: "
    "true}]'"
)


def transfer(flag: Flag, server: Server) -> None:
    """Honour a connector: a role, or a tier of the cache."""
    said = entries_of(flag, server)
    if not said:
        return
    connector, role = str(said.get("kv_connector", "")), said.get("kv_role")
    roles = {name: ours for ours, name in KV_ROLES.items()}
    written = f"{_FLAG} {connector}".rstrip()
    for key in said.keys() - {"kv_connector", "kv_role"}:
        server.account.no_effect(f"{_FLAG} {key}", _ENDS)
    if role in roles:
        server.set("role", roles[str(role)], f"{written} {role}")
    elif connector.startswith("LMCache"):
        _lmcache(written, said, server, in_step=connector == _IN_STEP)
    elif connector in _STORES:
        _shared(written, server)
    elif connector == "OffloadingConnector":
        _offloading(written, said.get("kv_connector_extra_config"), server)
    elif connector in ("DecodeBenchConnector", "ExampleConnector", "SharedStorageConnector"):
        server.account.refused(written, "it is an example of vLLM's that moves files; leave it out")
    elif role == "kv_both" and connector != "MultiConnector" and server.is_set_whole("role"):
        server.account.applied(written, "role, which --set says")
    else:
        server.account.refused(
            written,
            f"kv_role must be {' or '.join(KV_ROLES.values())}, which say who computes prompts, "
            f"got {brief(role)}; instead: --set clients.0.role=prefill, or decode, and a network",
        )


def _lmcache(written: str, said: Mapping[str, Any], server: Server, *, in_step: bool) -> None:
    """Give the engine LMCache's host memory, or the store that servers share.

    in_step: whether the connector loads within the step that admits a request.
    """
    values = _settings(said, server)
    for name, why in _OTHERS.items():
        if _LMCACHE + name in server.variables:
            server.handled.add(_LMCACHE + name)
            server.account.no_effect(_LMCACHE + name, why)
    if not _prefix_cache(server):
        server.account.refused(
            written,
            "a tier below a server without a prefix cache of its own, in which every hit is "
            "loaded, is not simulated; instead: --enable-prefix-caching",
        )
    elif server.is_set_whole(_TIERS):
        server.account.applied(written, f"{_TIERS}, which --set says")
    elif "CONFIG_FILE" in values:
        server.handled.add(f"{_LMCACHE}CONFIG_FILE")
        server.account.refused(
            f"{_LMCACHE}CONFIG_FILE",
            "the file is not read; instead: the variables that it stands for, or --set "
            "'clients.0.kv_cache.tiers=[{name: lmcache, capacity: 5 GB}]'",
        )
    elif _REMOTE in values:
        server.handled.add(_LMCACHE + _REMOTE)
        _shared(f"{written} {_LMCACHE}{_REMOTE}", server)
    elif str(values.get(_LOCAL, "True")).lower() in ("false", "0"):
        server.account.refused(written, "LMCache without host memory and store keeps nothing")
    else:
        _local(written, values.get(_SIZE), server, in_step=in_step)


def _settings(said: Mapping[str, Any], server: Server) -> dict[str, Any]:
    """Return LMCache's settings, of variables and of the connector's own config."""
    found: dict[str, Any] = {
        name.removeprefix(_LMCACHE): value
        for name, value in server.variables.items()
        if name.startswith(_LMCACHE)
    }
    extra = said.get("kv_connector_extra_config")
    for key, value in (extra if isinstance(extra, dict) else {}).items():
        found[str(key).removeprefix("lmcache.").upper()] = value
    return found


def _local(written: str, size: object, server: Server, *, in_step: bool) -> None:
    try:
        each = _DEFAULT_SIZE if size is None else float(str(size))
    except ValueError:
        server.account.refused(f"{_LMCACHE}{_SIZE}", f"must be a number of GB, got {brief(size)}")
        return
    capacity = f"{each * server.num_ranks:g} GB"
    tier: dict[str, Any] = {"name": "lmcache", "capacity": capacity}
    if in_step:
        tier["loads_in_step"] = None  # the engine decides: it knows what else is set
    server.set(_TIERS, [tier], written)
    if size is None:
        server.account.items.pop()
        server.account.taken(
            written, f"{_TIERS}.0.capacity: {capacity}, {each:g} GB a rank, LMCache's default"
        )
    if in_step:
        server.account.taken(
            written,
            f"{_TIERS}.0.loads_in_step: null, the step that admits a request waits for its loads, "
            "or the request does where that is not simulated",
        )
    for name in (_SIZE, _LOCAL):
        if _LMCACHE + name in server.variables:
            server.handled.add(_LMCACHE + name)
            server.account.applied(_LMCACHE + name, f"{_TIERS}.0.capacity: {capacity}")


def _shared(written: str, server: Server) -> None:
    if server.is_set_whole(_TIERS):
        server.account.applied(written, f"{_TIERS}, which --set says")
    else:
        server.account.refused(written, _SHARED)


def _offloading(written: str, extra: object, server: Server) -> None:
    size = extra.get("cpu_bytes_to_use") if isinstance(extra, dict) else None
    if isinstance(size, int | float) and size > 0:
        server.set(_TIERS, [{"name": "cpu", "capacity": f"{size:.0f} B"}], written)
    else:
        server.account.refused(
            written, "its size is not given in bytes; instead: --kv-offloading-size in GiB"
        )


def _prefix_cache(server: Server) -> bool:
    flag = server.said.get("--enable-prefix-caching")
    return flag is None or flag.is_on
