"""LMCache below a server: its settings, each with its line in the account.

Settings are variables (`LMCACHE_X`) or entries `lmcache.x` of a connector's own config, which
win. Sources: `VllmConfig._post_init_kv_transfer_config` in vllm/config/vllm.py (0.19), where
LMCache's size is that of each rank; 5 GB of host memory unless a setting says otherwise, as in the
LMCache examples of vLLM's documentation; `CreateStorageBackends` in
lmcache/v1/storage_backend/__init__.py, which opens a disk of which both place and size are set.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from mist_sim.errors import brief
from mist_sim.scenario.from_vllm.server import Server

TIERS = "kv_cache.tiers"
"""Key of a client for what lies below its cache."""

NO_DISK = (
    "no value says how fast the disk is; instead: --set 'clients.0.kv_cache.tiers=[{name: cpu, "
    "capacity: 5 GB}, {name: disk, capacity: 100 GB, read_bandwidth: 7 GB/s}]'"
)
"""Why a disk is refused, and what to write instead."""

SHARED = (
    "a store that servers share needs a size and a bandwidth; instead: --set "
    "'clients.0.kv_cache.tiers=[{name: store, capacity: 1 TB, read_bandwidth: 10 GB/s, shared: "
    "true}]'"
)
"""Why a store of several servers is refused, and what to write instead."""

_VARIABLE, _ENTRY = "LMCACHE_", "lmcache."
_SIZE, _LOCAL, _REMOTE, _FILE = "MAX_LOCAL_CPU_SIZE", "LOCAL_CPU", "REMOTE_URL", "CONFIG_FILE"
_DISK, _DISK_SIZE = "LOCAL_DISK", "MAX_LOCAL_DISK_SIZE"
_NO_FILE = (
    "the file is not read; instead: the variables that it stands for, or --set "
    "'clients.0.kv_cache.tiers=[{name: lmcache, capacity: 5 GB}]'"
)
_WITHOUT_EFFECT = {
    "USE_EXPERIMENTAL": "it is LMCache's only form now",
    "LOG_LEVEL": "logs take no simulated time",
    "CHUNK_SIZE": "the tier keeps blocks of block_size tokens, not chunks",
    "USE_LAYERWISE": "loads are timed whole, not layer by layer",
    "SAVE_DECODE_CACHE": "answers are kept as prompts are",
    "REMOTE_SERDE": "entries keep their size on the way",
    "MP.HOST": "it names places, and changes no speed",
    "MP.PORT": "it names places, and changes no speed",
}
_ALIKE = "LMCache keeps blocks as a tier of host memory does"
_OFF = ("", "0", "0.0", "false", "none", "null")
_REFUSED = {
    "GDS_PATH": NO_DISK,
    "WEKA_PATH": NO_DISK,
    "ENABLE_P2P": SHARED,
    "ENABLE_BLENDING": "caches of texts that are no prefix are not simulated; leave it out",
}
_DEFAULT_SIZE = 5.0


@dataclass(frozen=True, slots=True)
class _Setting:
    """A setting. written: as in the command."""

    written: str
    value: Any

    @property
    def is_on(self) -> bool:
        """Whether it says neither false, none nor 0."""
        return str(self.value).lower() not in _OFF


_Settings = dict[str, _Setting]


def below(written: str, extra: Mapping[str, Any], server: Server, *, in_step: bool) -> None:
    """Give the engine LMCache's host memory, or the store that servers share.

    written: the connector, as the command says it. extra: its own config. in_step: whether it
    loads within the step that admits a request.
    """
    settings = _read(extra, server)
    if not _prefix_cache(server):
        server.account.refused(
            written,
            "a tier below a server without a prefix cache of its own, in which every hit is "
            "loaded, is not simulated; instead: --enable-prefix-caching",
        )
    elif server.is_set_whole(TIERS):
        server.account.applied(written, f"{TIERS}, which --set says")
    elif _FILE in settings:
        server.account.refused(settings.pop(_FILE).written, _NO_FILE)
    elif _REMOTE in settings:
        server.account.refused(f"{written} {settings.pop(_REMOTE).written}", SHARED)
    elif _LOCAL in settings and not (settings[_LOCAL].is_on or _has_disk(settings)):
        server.account.refused(written, "LMCache without host memory and store keeps nothing")
    else:
        _host_memory(written, settings, server, in_step=in_step)
    for name, setting in settings.items():
        _answer(name, setting, settings, server)


def beside(extra: Mapping[str, Any], server: Server, why: str) -> None:
    """Answer LMCache's settings where they give the engine no tier. why: what is assumed then."""
    for name, setting in _read(extra, server).items():
        if name in _WITHOUT_EFFECT:
            server.account.no_effect(setting.written, _WITHOUT_EFFECT[name])
        elif server.is_set_whole(TIERS):
            server.account.applied(setting.written, f"{TIERS}, which --set says")
        else:
            server.account.assumed(setting.written, why)


def _read(extra: Mapping[str, Any], server: Server) -> _Settings:
    """Return the settings of a server by name, which are accounted for here from now on."""
    found: _Settings = {}
    for name, value in server.variables.items():
        if name.startswith(_VARIABLE):
            server.handled.add(name)
            found[name.removeprefix(_VARIABLE)] = _Setting(name, value)
    for key, value in extra.items():
        written = f"kv_connector_extra_config {key}"
        if not key.startswith(_ENTRY):
            server.account.assumed(written, _ALIKE)
            continue
        name = key.removeprefix(_ENTRY).upper()
        if name in found:
            server.account.no_effect(found[name].written, f"{key} of the connector is given, too")
        found[name] = _Setting(written, value)
    return found


def _answer(name: str, setting: _Setting, settings: _Settings, server: Server) -> None:
    """Note the effect of a setting that the tier has not taken."""
    if name in _WITHOUT_EFFECT:
        server.account.no_effect(setting.written, _WITHOUT_EFFECT[name])
    elif server.is_set_whole(TIERS):
        server.account.applied(setting.written, f"{TIERS}, which --set says")
    elif name in (_DISK, _DISK_SIZE) and not _has_disk(settings):
        server.account.no_effect(
            setting.written, "LMCache uses a disk where both local_disk and its size are set"
        )
    elif name == _DISK:
        server.account.no_effect(setting.written, "it names places, and changes no speed")
    elif name == _DISK_SIZE:
        server.account.refused(setting.written, NO_DISK)
    elif name in _REFUSED and setting.is_on:
        server.account.refused(setting.written, _REFUSED[name])
    else:
        server.account.assumed(setting.written, _ALIKE)


def _has_disk(settings: _Settings) -> bool:
    """Whether LMCache opens a disk: where both its place and its size are set."""
    both = [settings.get(name) for name in (_DISK, _DISK_SIZE)]
    return all(each is not None and each.is_on for each in both)


def _host_memory(written: str, settings: _Settings, server: Server, *, in_step: bool) -> None:
    size = settings.pop(_SIZE, None)
    try:
        each = _DEFAULT_SIZE if size is None else float(str(size.value))
    except ValueError:
        if size is not None:
            server.account.refused(size.written, f"must be a number of GB, got {brief(size.value)}")
        return
    capacity = f"{each * server.num_ranks:g} GB"
    tier: dict[str, Any] = {"name": "lmcache", "capacity": capacity}
    if in_step:
        tier["loads_in_step"] = None  # the engine decides: it knows the other settings
    server.set(TIERS, [tier], written)
    if size is None:
        server.account.items.pop()
        server.account.taken(
            written, f"{TIERS}.0.capacity: {capacity}, {each:g} GB a rank, LMCache's default"
        )
    if in_step:
        server.account.taken(
            written,
            f"{TIERS}.0.loads_in_step: null, the step that admits a request waits for its loads, "
            "or the request does where that is not simulated",
        )
    for setting in (size, settings.pop(_LOCAL, None)):
        if setting is not None:
            server.account.applied(setting.written, f"{TIERS}.0.capacity: {capacity}")


def _prefix_cache(server: Server) -> bool:
    flag = server.said.get("--enable-prefix-caching")
    return flag is None or flag.is_on
