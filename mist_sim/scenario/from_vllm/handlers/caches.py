"""Flags and variables about what lies below a server's cache, and which states it keeps.

`--kv-transfer-config`: roles of prefill and decode servers, or a cache below the GPU's. Sources:
`KVTransferConfig` in vllm/config/kv_transfer.py; `get_num_new_matched_tokens` of a connector tells
whether it loads between steps: `LMCacheConnectorV1` never does.

LMCache's settings are variables (`LMCACHE_X`) or entries `lmcache.x` of a connector's own config,
which win. Sources: `VllmConfig._post_init_kv_transfer_config` in vllm/config/vllm.py (0.19), where
LMCache's size is that of each rank; 5 GB of host memory unless a setting says otherwise, as in the
LMCache examples of vLLM's documentation; `CreateStorageBackends` in
lmcache/v1/storage_backend/__init__.py, which opens a disk of which both place and size are set.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from mist_sim.errors import MistError, brief, cut
from mist_sim.models import ModelSpec, load_model
from mist_sim.models.kv_groups import STATE_CACHES
from mist_sim.models.layers import mixers_of
from mist_sim.models.mixers import LinearMixer
from mist_sim.scenario.engines.versions import version_of
from mist_sim.scenario.from_vllm.flags import Entry, Flag
from mist_sim.scenario.from_vllm.server import Server, entries_of, handler, settle
from mist_sim.scenario.from_vllm.tables import row_of_entry

KV_ROLES = {"prefill": "kv_producer", "decode": "kv_consumer"}
"""`kv_role` of vLLM's `KVTransferConfig` (vllm/config/kv_transfer.py) for a client's role."""

NO_DISK = (
    "no value says how fast the disk is; instead: --set 'clients.0.kv_cache.tiers=[{name: cpu, "
    "capacity: 5 GB}, {name: disk, capacity: 100 GB, read_bandwidth: 7 GB/s}]'"
)
"""Why a disk is refused, and what to write instead."""

_TIERS = "kv_cache.tiers"
_SAID = f"{_TIERS}, which --set says"
_CACHING = "--enable-prefix-caching"
_SHARED = (
    "a store that servers share needs a size and a bandwidth; instead: --set "
    "'clients.0.kv_cache.tiers=[{name: store, capacity: 1 TB, read_bandwidth: 10 GB/s, shared: "
    "true}]'"
)
_FLAG = "--kv-transfer-config"
_EXTRA = "kv_connector_extra_config"
_IN_STEP = "LMCacheConnectorV1"  # the step that admits a request waits for its blocks
_STORES = ("MooncakeStoreConnector", "FlexKVConnectorV1", "HF3FSKVConnector")
_EXAMPLES = ("DecodeBenchConnector", "ExampleConnector", "SharedStorageConnector")
_OF_A_ROLE = (
    "the server hands its caches over, and has no tier; for what LMCache keeps beside, --set "
    "'clients.0.kv_cache.tiers=[{name: lmcache, capacity: 5 GB}]'"
)


@handler
def kv_transfer_config(flag: Flag, server: Server) -> None:
    """Honour a connector: a role, or a tier of the cache."""
    said = entries_of(flag, server)
    if not said:
        return
    connector, role = str(said.get("kv_connector", "")), said.get("kv_role")
    roles = {name: ours for ours, name in KV_ROLES.items()}
    written = f"{_FLAG} {connector}".rstrip()
    for key in said:
        if key not in ("kv_connector", "kv_role", _EXTRA):
            server.no_effect(
                f"{_FLAG} {key}",
                "how connectors find each other; the network and the tier determine how fast they "
                "are",
            )
    inner = said.get(_EXTRA)
    extra = inner if isinstance(inner, dict) else {}
    is_lmcache = connector.startswith("LMCache")
    if str(role) in roles:
        server.set("role", roles[str(role)], f"{written} {role}")
        if is_lmcache:
            _beside(extra, server, _OF_A_ROLE)
        else:
            _passed_over(extra, server)
    elif is_lmcache:
        _below(written, extra, server, in_step=connector == _IN_STEP)
    elif connector in _STORES:
        if server.is_set_whole(_TIERS):
            server.applied(written, _SAID)
        else:
            server.refused(written, _SHARED)
        _passed_over(extra, server)
    elif connector == "OffloadingConnector":
        _offloading(written, extra, server)
    elif connector in _EXAMPLES:
        server.refused(written, "it is an example of vLLM's that moves files; leave it out")
    elif role == "kv_both" and connector != "MultiConnector" and server.is_set_whole("role"):
        server.applied(written, "role, which --set says")
        _passed_over(extra, server)
    else:
        server.refused(
            written,
            f"kv_role must be {' or '.join(KV_ROLES.values())}, which say who computes prompts, "
            f"got {brief(role)}; instead: --set clients.0.role=prefill, or decode, and a network",
        )


def _passed_over(extra: Mapping[str, Any], server: Server) -> None:
    """Note entries of a connector's own config that the scenario has no words for."""
    for key in extra:
        server.assumed(
            f"{_EXTRA} {key}", "the network and the tier determine how fast a connector is"
        )


def _offloading(written: str, extra: Mapping[str, Any], server: Server) -> None:
    """Give the engine a tier of host memory, and answer each entry of the connector's config."""
    size = extra.get("cpu_bytes_to_use")
    if isinstance(size, int | float) and size > 0:
        server.set(_TIERS, [{"name": "cpu", "capacity": f"{size:.0f} B"}], written)
    else:
        server.refused(
            written, "its size is not given in bytes; instead: --kv-offloading-size in GiB"
        )
    for key, value in extra.items():
        entry = Entry(f"{_EXTRA} {key}={cut(str(value))}", value)
        settle(row_of_entry("offloading", key), entry, server)


@handler
def kv_offloading_size(flag: Flag, server: Server) -> None:
    """Give the engine a tier of host memory."""
    try:
        size = float(flag.value)
    except ValueError:
        server.refused(flag, f"invalid float value: {flag.value!r}")
        return
    server.set(_TIERS, [{"name": "cpu", "capacity": f"{size:g} GiB"}], flag)


@handler
def kv_offloading_backend(flag: Flag, server: Server) -> None:
    """Note the backend that copies blocks to the host."""
    server.assumed(flag, "offloading has one kind of copy here")
    _beside({}, server, "the tier is of --kv-offloading-size, in host memory alone")


# --- LMCache ------------------------------------------------------------------------------------

_SIZE, _LOCAL, _REMOTE, _FILE = "MAX_LOCAL_CPU_SIZE", "LOCAL_CPU", "REMOTE_URL", "CONFIG_FILE"
_DISK, _DISK_SIZE = "LOCAL_DISK", "MAX_LOCAL_DISK_SIZE"
_ALIKE = "LMCache keeps blocks as a tier of host memory does"
_REFUSED = {
    "GDS_PATH": NO_DISK,
    "WEKA_PATH": NO_DISK,
    "ENABLE_P2P": _SHARED,
    "ENABLE_BLENDING": "caches of texts that are no prefix are not simulated; leave it out",
}
_DEFAULT_SIZE = 5.0

_Settings = dict[str, Entry]


def _below(written: str, extra: Mapping[str, Any], server: Server, *, in_step: bool) -> None:
    """Give the engine LMCache's host memory, or the store that servers share.

    written: the connector, as the command says it. extra: its own config. in_step: whether it
    loads within the step that admits a request.
    """
    settings = _read(extra, server)
    if _CACHING in server.said and not server.is_on(_CACHING):
        server.refused(
            written,
            "a tier below a server without a prefix cache of its own, in which every hit is "
            "loaded, is not simulated; instead: --enable-prefix-caching",
        )
    elif server.is_set_whole(_TIERS):
        server.applied(written, _SAID)
    elif _FILE in settings:
        server.refused(
            settings.pop(_FILE),
            "the file is not read; instead: the variables that it stands for, or --set "
            "'clients.0.kv_cache.tiers=[{name: lmcache, capacity: 5 GB}]'",
        )
    elif _REMOTE in settings:
        server.refused(f"{written} {settings.pop(_REMOTE).written}", _SHARED)
    elif _LOCAL in settings and not (_is_on(settings[_LOCAL]) or _has_disk(settings)):
        server.refused(written, "LMCache without host memory and store keeps nothing")
    else:
        _host_memory(written, settings, server, in_step=in_step)
    for name, setting in settings.items():
        _answer(name, setting, settings, server)


def _beside(extra: Mapping[str, Any], server: Server, why: str) -> None:
    """Answer LMCache's settings where they give the engine no tier. why: what is assumed then."""
    for name, setting in _read(extra, server).items():
        if not _answers_alone(name, setting, server):
            server.assumed(setting, why)


def _read(extra: Mapping[str, Any], server: Server) -> _Settings:
    """Return the settings of a server by name, which are accounted for here from now on."""
    found: _Settings = {}
    for name, value in server.variables.items():
        if name.startswith("LMCACHE_"):
            server.handled.add(name)
            found[name.removeprefix("LMCACHE_")] = Entry(name, value)
    for key, value in extra.items():
        written = f"{_EXTRA} {key}"
        if not key.startswith("lmcache."):
            server.assumed(written, _ALIKE)
            continue
        name = key.removeprefix("lmcache.").upper()
        if name in found:
            server.no_effect(found[name], f"{key} of the connector is given, too")
        found[name] = Entry(written, value)
    return found


def _answers_alone(name: str, setting: Entry, server: Server) -> bool:
    """Note a setting that has no effect on any tier, or on those that `--set` says, if it is so."""
    row = row_of_entry("lmcache", name)
    if row.fate == "no effect":
        settle(row, setting, server)
    elif server.is_set_whole(_TIERS):
        server.applied(setting, _SAID)
    else:
        return False
    return True


def _answer(name: str, setting: Entry, settings: _Settings, server: Server) -> None:
    """Note the effect of a setting that the tier has not taken."""
    if _answers_alone(name, setting, server):
        return
    if name in (_DISK, _DISK_SIZE) and not _has_disk(settings):
        server.no_effect(setting, "LMCache uses a disk where both local_disk and its size are set")
    elif name == _DISK:
        server.no_effect(setting, "it names places, and changes no speed")
    elif name == _DISK_SIZE:
        server.refused(setting, NO_DISK)
    elif name in _REFUSED and _is_on(setting):
        server.refused(setting, _REFUSED[name])
    else:
        server.assumed(setting, _ALIKE)


def _is_on(setting: Entry | None) -> bool:
    """Whether a setting is there, and says neither false, none nor 0."""
    off = ("", "0", "0.0", "false", "none", "null")
    return setting is not None and str(setting.value).lower() not in off


def _has_disk(settings: _Settings) -> bool:
    """Whether LMCache opens a disk: where both its place and its size are set."""
    return _is_on(settings.get(_DISK)) and _is_on(settings.get(_DISK_SIZE))


def _host_memory(written: str, settings: _Settings, server: Server, *, in_step: bool) -> None:
    size = settings.pop(_SIZE, None)
    try:
        each = _DEFAULT_SIZE if size is None else float(str(size.value))
    except ValueError:
        if size is not None:
            server.refused(size, f"must be a number of GB, got {brief(size.value)}")
        return
    capacity = f"{each * server.num_ranks:g} GB"
    tier: dict[str, Any] = {"name": "lmcache", "capacity": capacity}
    if in_step:
        tier["loads_in_step"] = None  # the engine decides: it knows the other settings
    server.set(_TIERS, [tier], written)
    if size is None:
        server.items.pop()
        server.taken(
            written, f"{_TIERS}.0.capacity: {capacity}, {each:g} GB a rank, LMCache's default"
        )
    if in_step:
        server.taken(
            written,
            f"{_TIERS}.0.loads_in_step: null, the step that admits a request waits for its loads, "
            "or the request does where that is not simulated",
        )
    for setting in (size, settings.pop(_LOCAL, None)):
        if setting is not None:
            server.applied(setting, f"{_TIERS}.0.capacity: {capacity}")


# --- states -------------------------------------------------------------------------------------
# Source: `MambaModelConfig.verify_and_update_config` in `vllm/model_executor/models/config.py`.

_MODE = "mamba_cache_mode"


@handler
def mamba_cache_mode(flag: Flag, server: Server) -> None:
    """Set which states are kept; vLLM heeds it where prefixes are cached."""
    kinds = None if server.spec is None else _kinds(server.spec)
    if flag.value not in STATE_CACHES:
        server.refused(flag, f"must be one of {', '.join(STATE_CACHES)}")
    elif kinds == set():
        server.no_effect(flag, "no layer of the model keeps a state")
    elif not server.is_on(_CACHING):
        server.no_effect(flag, f"it takes effect with {_CACHING} alone")
    elif flag.value == "all" and kinds not in (None, {"mamba2"}):
        server.set(f"kv_cache.{_MODE}", "align", flag)  # so vLLM falls back
    elif flag.value != "none":
        server.set(f"kv_cache.{_MODE}", flag.value, flag)
    else:
        server.no_effect(flag, "vLLM then takes the model's own mode")


def with_state_cache(client: Mapping[str, Any], engine: str | None) -> dict[str, Any]:
    """Return a server's client with the states that its version keeps where it is to cache.

    From 0.33 on that is the default.
    """
    kv_cache, rules = client.get("kv_cache", {}), version_of(engine).rules
    caches = kv_cache.get("enable_prefix_caching") and _MODE not in kv_cache
    if rules.states_go_on or not caches:
        return {**client}
    try:
        kinds = _kinds(load_model(str(client.get("model"))))
    except MistError:
        return {**client}
    mode = "all" if kinds == {"mamba2"} else "align" if rules.states_wait else None
    if not kinds or mode is None:
        return {**client}
    return {**client, "kv_cache": {**kv_cache, _MODE: mode}}


def _kinds(spec: ModelSpec) -> set[str]:
    """Return the kinds of layers that keep a state."""
    mixers = mixers_of(spec.layers) if spec.layers else ()
    return {mixer.kind for mixer in mixers if isinstance(mixer, LinearMixer)}
