"""`--kv-transfer-config`: roles of prefill and decode servers, or a cache below the GPU's.

Sources: `KVTransferConfig` in vllm/config/kv_transfer.py; `CPUOffloadingSpec` in
vllm/v1/kv_offload/cpu/spec.py and its factory (0.14 to 0.33). `get_num_new_matched_tokens` of a
connector tells whether it loads between steps: `LMCacheConnectorV1` never does.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from mist_sim.errors import brief, cut
from mist_sim.scenario.from_vllm.flags import Flag
from mist_sim.scenario.from_vllm.handlers import lmcache
from mist_sim.scenario.from_vllm.handlers.json_values import entries_of
from mist_sim.scenario.from_vllm.server import Server

KV_ROLES = {"prefill": "kv_producer", "decode": "kv_consumer"}
"""`kv_role` of vLLM's `KVTransferConfig` (vllm/config/kv_transfer.py) for a client's role."""

_FLAG = "--kv-transfer-config"
_EXTRA = "kv_connector_extra_config"
_IN_STEP = "LMCacheConnectorV1"  # the step that admits a request waits for its blocks
_ENDS = "how connectors find each other; the network and the tier determine how fast they are"
_SPEED = "the network and the tier determine how fast a connector is"
_OF_A_ROLE = (
    "the server hands its caches over, and has no tier; for what LMCache keeps beside, --set "
    "'clients.0.kv_cache.tiers=[{name: lmcache, capacity: 5 GB}]'"
)
_STORES = ("MooncakeStoreConnector", "FlexKVConnectorV1", "HF3FSKVConnector")
_OFFLOADED = {
    "spec_name": ("CPUOffloadingSpec",),
    "eviction_policy": ("lru",),
    "store_threshold": ("0", "1"),
    "secondary_tiers": ("[]",),
}
"""Entries of the OffloadingConnector, with the values that ask for what is simulated."""


def transfer(flag: Flag, server: Server) -> None:
    """Honour a connector: a role, or a tier of the cache."""
    said = entries_of(flag, server)
    if not said:
        return
    connector, role = str(said.get("kv_connector", "")), said.get("kv_role")
    roles = {name: ours for ours, name in KV_ROLES.items()}
    written = f"{_FLAG} {connector}".rstrip()
    for key in said.keys() - {"kv_connector", "kv_role", _EXTRA}:
        server.account.no_effect(f"{_FLAG} {key}", _ENDS)
    inner = said.get(_EXTRA)
    extra = inner if isinstance(inner, dict) else {}
    is_lmcache = connector.startswith("LMCache")
    if role in roles:
        server.set("role", roles[str(role)], f"{written} {role}")
        if is_lmcache:
            lmcache.beside(extra, server, _OF_A_ROLE)
        else:
            _passed_over(extra, server)
    elif is_lmcache:
        lmcache.below(written, extra, server, in_step=connector == _IN_STEP)
    elif connector in _STORES:
        _shared(written, server)
        _passed_over(extra, server)
    elif connector == "OffloadingConnector":
        _offloading(written, extra, server)
    elif connector in ("DecodeBenchConnector", "ExampleConnector", "SharedStorageConnector"):
        server.account.refused(written, "it is an example of vLLM's that moves files; leave it out")
    elif role == "kv_both" and connector != "MultiConnector" and server.is_set_whole("role"):
        server.account.applied(written, "role, which --set says")
        _passed_over(extra, server)
    else:
        server.account.refused(
            written,
            f"kv_role must be {' or '.join(KV_ROLES.values())}, which say who computes prompts, "
            f"got {brief(role)}; instead: --set clients.0.role=prefill, or decode, and a network",
        )


def _passed_over(extra: Mapping[str, Any], server: Server) -> None:
    """Note entries of a connector's own config that the scenario has no words for."""
    for key in extra:
        server.account.assumed(f"{_EXTRA} {key}", _SPEED)


def _shared(written: str, server: Server) -> None:
    if server.is_set_whole(lmcache.TIERS):
        server.account.applied(written, f"{lmcache.TIERS}, which --set says")
    else:
        server.account.refused(written, lmcache.SHARED)


def _offloading(written: str, extra: Mapping[str, Any], server: Server) -> None:
    """Give the engine a tier of host memory, and answer each entry of the connector's config."""
    size = extra.get("cpu_bytes_to_use")
    if isinstance(size, int | float) and size > 0:
        server.set(lmcache.TIERS, [{"name": "cpu", "capacity": f"{size:.0f} B"}], written)
    else:
        server.account.refused(
            written, "its size is not given in bytes; instead: --kv-offloading-size in GiB"
        )
    for key, value in extra.items():
        entry = f"{_EXTRA} {key}={cut(str(value))}"
        if key == "cpu_bytes_to_use":
            continue
        if str(value) in _OFFLOADED.get(key, ()):
            server.account.no_effect(entry, "it asks for what is simulated")
        elif key in _OFFLOADED:
            server.account.refused(
                entry,
                "host memory that keeps all, and drops what was used least recently, is simulated; "
                "leave it out",
            )
        else:
            server.account.assumed(entry, "blocks of block_size tokens are copied as a tier does")
