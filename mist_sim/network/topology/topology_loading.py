"""Finds a topology by name among the presets, or reads the TOML spec of one.

A spec carries units and may start from a preset and change some keys:

    based_on = "hgx-h100"
    nodes = 4
    nic = "200 Gb/s"
    oversubscription = 2.0
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache

from mist_sim.errors import ScenarioError, brief
from mist_sim.network.topology.graph import Topology
from mist_sim.spec_files import (
    Table,
    all_names,
    load_toml,
    name_of,
    read_table,
    tables_in,
    unknown_name,
)
from mist_sim.user_paths import user_path

_NOT_FIGURES = ("aliases", "based_on")


def topology_names(*, with_aliases: bool = False) -> list[str]:
    """Return the names of the presets, sorted."""
    return sorted(all_names(_presets()) if with_aliases else _presets())


def load_topology(name_or_path: str) -> Topology:
    """Return a preset, or the topology of a TOML spec file.

    name_or_path: a preset's name or alias ("hgx-h100"), in any case; or the path of a spec file.
    Raises ScenarioError with the file and the field when there is no such topology, or when the
    file cannot be read or holds a key, unit or value that is not right.
    """
    preset = name_of(name_or_path, _presets())
    if preset is not None:
        return topology_from_table(_presets()[preset], name=preset, source=f"{preset}.toml")
    path = user_path(name_or_path)
    if not path.is_file():
        raise unknown_name(name_or_path, "no topology and no file is named", _presets())
    table = load_toml(path)
    return topology_from_table(table, name=path.stem, source=str(path))


def topology_from_table(table: Table, *, name: str, source: str) -> Topology:
    """Return the topology of a parsed spec, `based_on` included.

    name: its name unless the table has one. source: prefix of error messages.
    """
    return read_table(Topology, {"name": name, **_with_base(table, source)}, source)


def _with_base(table: Table, source: str) -> dict[str, object]:
    own = {key: value for key, value in table.items() if key not in _NOT_FIGURES}
    if not isinstance(own.get("sources", {}), dict):
        raise ScenarioError(f"{source}: sources must be a table, got {brief(own['sources'])}")
    if "based_on" not in table:
        return own
    base = name_of(str(table["based_on"]), _presets())
    if base is None:
        problem = f"{source}: based_on: no topology is named"
        raise unknown_name(str(table["based_on"]), problem, _presets())
    whole = _with_base(_presets()[base], f"{base}.toml")
    figures = own.keys() - {"name", "about", "sources"}
    sources = {**_sources(whole), **dict.fromkeys(sorted(figures), source), **_sources(own)}
    return {**whole, "about": "", **own, "sources": sources}


def _sources(table: Table) -> dict[str, object]:
    sources = table.get("sources", {})
    return dict(sources) if isinstance(sources, dict) else {}


@cache
def _presets() -> Mapping[str, Table]:
    return tables_in("mist_sim.network.topology", "presets")
