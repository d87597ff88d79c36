"""Finds a host by name in the catalog, or reads one from a TOML spec file or a mapping.

A host connects GPUs on PCIe: see `HostSpec`. A spec file may start from a catalog entry and change
some keys:

    based_on = "pcie-peer"
    pcie_lanes = 8
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from functools import cache
from itertools import pairwise

from mist_sim.errors import ScenarioError, brief, did_you_mean
from mist_sim.hardware.devices.specs import PCIE_GENERATIONS, HostSpec, Interconnect
from mist_sim.spec_files import Table, load_toml, read_table, tables_in
from mist_sim.user_paths import user_path

_OLDER, _PCIE_5 = "host-bridge", "host-bridge-pcie5"

_BY_RULE = {"efficiency", "gpus_per_switch"}  # fields replaced by measured rates


def host_names() -> list[str]:
    """Return the names of the catalog, sorted."""
    return sorted(_catalog())


def load_host(name_or_path: str) -> HostSpec:
    """Return a host of the catalog, or one read from a TOML spec file.

    name_or_path: a catalog name ("pcie-peer"), in any case; or the path of a spec file.

    Raises ScenarioError with the file and the field when there is no such host, or when the file
    cannot be read or holds a key, unit or value that is not right.
    """
    name = name_or_path.lower()
    if name in _catalog():
        return _catalog_host(name)
    path = user_path(name_or_path)
    if not path.is_file():
        raise _unknown(name_or_path, "no host and no file is named", "a TOML spec file")
    return host_from_table(load_toml(path), name=path.stem, source=str(path))


def host_from_table(table: Table, *, name: str, source: str) -> HostSpec:
    """Return the host of a parsed spec file or of a scenario's mapping.

    name: the host's name unless the table has one. source: prefix of error messages.
    """
    own = {key: value for key, value in table.items() if key != "based_on"}
    if "based_on" in table:
        base = str(table["based_on"]).lower()
        if base not in _catalog():
            raise _unknown(base, f"{source}: based_on: no host is named")
        left = _left_out(own)
        own = {key: value for key, value in _catalog()[base].items() if key not in left} | own
        own["sources"] = {**_sources(_catalog()[base]), **_sources(table)}
    if isinstance(rates := own.get("bus_bandwidth"), dict):
        own["bus_bandwidth"] = {str(ranks): rate for ranks, rate in rates.items()}
    return read_table(HostSpec, {"name": name, **own}, source)


def _left_out(own: Table) -> Collection[str]:
    """Return the keys of a base that a file's own take the place of."""
    if "bus_bandwidth" in own:
        return _BY_RULE
    return {"bus_bandwidth"} if own.keys() & _BY_RULE else set()


def default_host(link: Interconnect) -> HostSpec:
    """Return the cautious host, which holds for GPUs on PCIe where none is named."""
    return _catalog_host(_PCIE_5 if link.bandwidth > PCIE_GENERATIONS[4] else _OLDER)


def bus_rate(link: Interconnect, ranks: int) -> float:
    """Return the bytes/s that a collective of large tensors reaches over PCIe.

    As nccl-tests has its bus bandwidth: an all-reduce takes 2 (n - 1) / n of the tensor over it.
    Measured times are interpolated in the logarithm of the accelerators. The rate of the fewest
    holds below them; beyond the most, all together move no more than these did.
    """
    host = link.host or default_host(link)
    reach = host.slot_rate(link.bandwidth) * link.efficiency
    if host.bus_bandwidth:
        return min(reach, _measured(host.bus_rates, ranks))
    return reach * host.efficiency / min(ranks, host.gpus_per_switch)


def _measured(rates: list[tuple[int, float]], ranks: int) -> float:
    if ranks <= rates[0][0]:
        return rates[0][1]
    for (few, fast), (many, slow) in pairwise(rates):
        if ranks <= many:
            share = math.log(ranks / few) / math.log(many / few)
            times = (1 - 1 / few) / fast, (1 - 1 / many) / slow
            return (1 - 1 / ranks) / (times[0] + (times[1] - times[0]) * share)
    most, rate = rates[-1]
    return rate * most / ranks


@cache
def _catalog() -> Mapping[str, Table]:
    """The table of every catalog entry by name."""
    return tables_in("mist_sim.hardware", "catalog/hosts")


@cache
def _catalog_host(name: str) -> HostSpec:
    return host_from_table(_catalog()[name], name=name, source=f"{name}.toml")


def _sources(table: Table) -> Table:
    sources = table.get("sources", {})
    return sources if isinstance(sources, dict) else {}


def _unknown(name: str, problem: str, otherwise: str = "") -> ScenarioError:
    hint = did_you_mean(name.lower(), _catalog())
    path = f"; or give the path of {otherwise}" if otherwise else ""
    return ScenarioError(f"{problem} {brief(name)}{hint} Known: {', '.join(host_names())}{path}")
