"""Finds a topology by name among the presets, or reads the TOML spec of one.

A spec carries units and may start from a preset, to change what differs:

    based_on = "hgx-h100"
    nodes = 4
    nic = "200 Gb/s"
    oversubscription = 2.0
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import MISSING, fields
from functools import cache
from importlib import resources
from types import NoneType
from typing import Annotated, Any, get_args, get_origin, get_type_hints

from mist_sim.errors import ScenarioError, brief, did_you_mean
from mist_sim.network.topology.graph import Topology
from mist_sim.units import Kind
from mist_sim.user_paths import read_spec, user_path

_NOT_FIGURES = ("aliases", "based_on")


def topology_names() -> list[str]:
    """Return the names of the presets, sorted."""
    return sorted(_presets())


def load_topology(name_or_path: str) -> Topology:
    """Return a preset, or the topology of a TOML spec file.

    name_or_path: a preset's name or alias ("hgx-h100"), in any case; or the path of a spec file.
    Raises ScenarioError with the file and the field when there is no such topology, or when the
    file cannot be read or holds a key, unit or value that is not right.
    """
    preset = _preset_name(name_or_path)
    if preset is not None:
        return topology_from_table(_presets()[preset], name=preset, source=f"{preset}.toml")
    path = user_path(name_or_path)
    if not path.is_file():
        raise _unknown(name_or_path, "no topology and no file is named")
    table = _parse(read_spec(path), str(path))
    return topology_from_table(table, name=path.stem, source=str(path))


def topology_from_table(table: Mapping[str, object], *, name: str, source: str) -> Topology:
    """Return the topology that a parsed spec describes, `based_on` included.

    name: its name unless the table has one. source: what error messages start with.
    """
    whole = {"name": name, **_with_base(table, source)}
    hints = get_type_hints(Topology, include_extras=True)
    for key in whole:
        if key not in hints:
            hint = did_you_mean(key, hints)
            raise ScenarioError(f"{source}: unknown key {key!r}{hint} Known: {', '.join(hints)}")
    required = [item.name for item in fields(Topology) if _is_required(item)]
    if missing := [name for name in required if name not in whole]:
        raise ScenarioError(f"{source}: missing {', '.join(missing)}")
    values: dict[str, Any] = {
        key: _value(hints[key], value, f"{source}: {key}") for key, value in whole.items()
    }
    try:
        return Topology(**values)
    except ValueError as error:
        raise ScenarioError(f"{source}: {error}") from None


def _with_base(table: Mapping[str, object], source: str) -> dict[str, object]:
    """Return a table's keys over those of the preset that it is based on."""
    own = {key: value for key, value in table.items() if key not in _NOT_FIGURES}
    if not isinstance(own.get("sources", {}), dict):
        raise ScenarioError(f"{source}: sources must be a table, got {brief(own['sources'])}")
    if "based_on" not in table:
        return own
    base = _preset_name(str(table["based_on"]))
    if base is None:
        raise _unknown(str(table["based_on"]), f"{source}: based_on: no topology is named")
    whole = _with_base(_presets()[base], f"{base}.toml")
    figures = own.keys() - {"name", "about", "sources"}
    sources = {**_sources(whole), **dict.fromkeys(sorted(figures), source), **_sources(own)}
    return {**whole, "about": "", **own, "sources": sources}


def _sources(table: Mapping[str, object]) -> dict[str, object]:
    sources = table.get("sources", {})
    return dict(sources) if isinstance(sources, dict) else {}


def _value(hint: Any, value: object, place: str) -> object:
    """Return what a spec says as the type of its field."""
    kind = _kind_of(hint)
    if kind is not None:
        try:
            return kind.parse(value)
        except ScenarioError as error:
            raise ScenarioError(f"{place}: {error}") from None
    if get_origin(hint) is Mapping:
        return dict(value) if isinstance(value, dict) else {}
    if hint is str:
        if not isinstance(value, str):
            raise ScenarioError(f"{place} must be a string, got {brief(value)}")
        return value
    numbers = (int, float) if hint is float else (int,)
    if isinstance(value, bool) or not isinstance(value, numbers):
        what = "a number" if hint is float else "a whole number"
        raise ScenarioError(f"{place} must be {what}, got {brief(value)}")
    return float(value) if hint is float else value


def _kind_of(hint: Any) -> Kind | None:
    """Return the kind of a quantity, or of one that may be left out."""
    choices = [choice for choice in get_args(hint) if choice is not NoneType]
    if get_origin(hint) is not Annotated and len(choices) == 1:
        hint = choices[0]
    if get_origin(hint) is not Annotated:
        return None
    kind = get_args(hint)[1]
    return kind if isinstance(kind, Kind) else None


def _is_required(item: Any) -> bool:
    return item.default is MISSING and item.default_factory is MISSING


@cache
def _presets() -> Mapping[str, Mapping[str, object]]:
    """The table of every preset by name."""
    folder = resources.files("mist_sim.network.topology") / "presets"
    return {
        entry.name.removesuffix(".toml"): _parse(entry.read_text("utf-8"), entry.name)
        for entry in folder.iterdir()
        if entry.name.endswith(".toml")
    }


def _preset_name(name: str) -> str | None:
    """Return the preset that a name or an alias, in any case, stands for."""
    for preset, table in _presets().items():
        aliases = table.get("aliases")
        if name.lower() in [preset, *(aliases if isinstance(aliases, list) else [])]:
            return preset
    return None


def _unknown(name: str, problem: str) -> ScenarioError:
    hint = did_you_mean(name.lower(), _presets())
    known = ", ".join(topology_names())
    return ScenarioError(
        f"{problem} {brief(name)}{hint} Known: {known}; or give the path of a TOML spec file"
    )


def _parse(text: str, where: str) -> Mapping[str, object]:
    try:
        return tomllib.loads(text)
    except (ValueError, RecursionError) as error:
        raise ScenarioError(f"{where}: not valid TOML: {error}") from None
