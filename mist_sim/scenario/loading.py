"""Reads scenarios: a YAML file or a preset, with overrides; and writes them out again.

Programs that a scenario file names run only if that was allowed.

A plugin that runs commands says in `programs` which of its parameters hold them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from os import PathLike
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

from mist_sim.bounds import COUNT, NESTING
from mist_sim.errors import ScenarioError, brief, cut, did_you_mean, printable
from mist_sim.inputs import is_there, names_in, unprintable_in
from mist_sim.scenario.engines.defaults import origin_text
from mist_sim.scenario.format import yaml_text
from mist_sim.scenario.format.parts import Part
from mist_sim.scenario.format.paths import Origin
from mist_sim.scenario.format.problems import Location, Problem, problems_of, summed_up
from mist_sim.scenario.plugins import find_plugins
from mist_sim.scenario.presets import preset_names, preset_path
from mist_sim.scenario.slo_presets import slo_preset, slo_preset_names
from mist_sim.units import plain_number

_SHOWN = 300  # characters of a command, which is to be read before it is allowed


def forbidden_programs(scenario: BaseModel, origin: Origin) -> list[Problem]:
    """Return a problem for every command that a file names and that may not run.

    A command that was set from outside the file is the caller's own and needs no permission.
    """
    if origin.allow_programs:
        return []
    return [
        Problem(
            place,
            f"names a program, {brief(command, _SHOWN)}, and none was started; if you trust it, "
            f"give --allow-programs (allow_programs=True in Python)",
        )
        for place, command in _commands(scenario, ())
        if not origin.sets(place)
    ]


def _commands(value: object, place: Location) -> Iterator[tuple[Location, object]]:
    """Yield the places of commands in a scenario, with the commands."""
    if isinstance(value, BaseModel):
        names = getattr(value.plugin, "programs", ()) if isinstance(value, Part) else ()
        for name, info in type(value).model_fields.items():
            key, item = info.alias or name, getattr(value, name)
            if key in names:
                yield (*place, key), item
            yield from _commands(item, (*place, key))
    elif isinstance(value, dict):
        for key, item in value.items():
            yield from _commands(item, (*place, str(key)))
    elif isinstance(value, list | tuple):
        for position, item in enumerate(value):
            yield from _commands(item, (*place, position))


_HEADER = """\
# A resolved scenario: every default is written out, and quantities are in base units.
# Relative paths start at the working directory of the run. To run it again: mist run THIS_FILE
"""


_OF_SPACES = {"vary", "objectives", "designs", "cases"}  # keys beside the scenario of a space

S = TypeVar("S", bound=BaseModel)
"""The model of a scenario, which knows this module and not the other way round."""


def load(
    model: type[S], name: str | Path, overrides: Mapping[str, Any], *, allow_programs: bool
) -> S:
    """Return the scenario of a file or preset; see `Scenario.load`."""
    given: object = name
    if not isinstance(given, str | PathLike):
        raise ScenarioError(
            f"a scenario is named by a preset or the path of a file, got {brief(given)}; "
            "Scenario.from_dict takes a mapping"
        )
    path = Path(name)
    if is_there(path) and not path.is_dir():  # a file, or a pipe
        origin = Origin(printable(str(path)), path.parent, tuple(overrides), allow_programs)
        return _read(model, path, overrides, origin)
    if str(name) in preset_names():
        origin = Origin(f"preset {name}", overrides=tuple(overrides))
        return _read(model, preset_path(str(name)), overrides, origin)
    if is_there(path):
        raise ScenarioError(f"{path}: is a folder; give the scenario file in it")
    known = [*preset_names(), *(str(path.parent / name) for name in names_in(path.parent))]
    raise ScenarioError(
        f"no scenario file and no preset is named {brief(str(name))}"
        f"{did_you_mean(str(name), known)} Presets: {', '.join(preset_names())}"
    )


def _read(model: type[S], path: Path, overrides: Mapping[str, Any], origin: Origin) -> S:
    return from_text(model, yaml_text.read_text(path), overrides, origin)


def from_text(model: type[S], text: str, overrides: Mapping[str, Any], origin: Origin) -> S:
    """Return the scenario of YAML text; see `Scenario.load`."""
    source = origin.source
    data = yaml_text.parse(text, source)
    if data is None:
        raise ScenarioError(f"{source}: is empty; a scenario has at least workload and clients")
    if not isinstance(data, dict):
        raise ScenarioError(
            f"{source}: must hold a mapping of keys to values, got a {type(data).__name__}"
        )
    if "scenario" in data and _OF_SPACES & data.keys():
        raise ScenarioError(
            f"{source}: is a search space, which mist search takes; a scenario is needed here, "
            "such as the one under its key scenario"
        )
    return validated(model, data, overrides, origin)


def validated(
    model: type[S], data: dict[str, Any], overrides: Mapping[str, Any], origin: Origin
) -> S:
    """Return the scenario of parsed YAML, with overrides applied; see `Scenario.load`."""
    find_plugins()
    whole = with_overrides(data, overrides)
    if found := unprintable_in(whole):
        raise summed_up([Problem(*found)], origin)
    origin = replace(origin, said=whole)
    try:
        scenario = model.model_validate(whole, context=origin)
    except ValidationError as error:
        raise summed_up(problems_of(error), origin) from None
    if problems := forbidden_programs(scenario, origin):
        raise summed_up(problems, origin)
    return scenario


def as_text(scenario: BaseModel) -> str:
    """Return a scenario as YAML text; see `Scenario.resolved`."""
    return later_text(scenario)()


def later_text(scenario: BaseModel) -> Callable[[], str]:
    """Return a function that writes this text, in which paths are relative to today's folder.

    To write it takes as long as to simulate a hundred requests, and few runs are asked for it.
    """
    return partial(_written, as_data(scenario))


def _written(data: dict[str, Any]) -> str:
    return _HEADER + yaml_text.dump(data) + origin_text(data["clients"])


def as_data(scenario: BaseModel) -> dict[str, Any]:
    """Return the resolved scenario as plain mappings, lists and values."""
    data: dict[str, Any] = scenario.model_dump(mode="json", by_alias=True)
    workload = data["workload"]
    del workload["trace" if workload["trace"] is None else "lengths"]
    for few in ("approximate", "assumptions"):  # few scenarios say them
        if not data[few]:
            del data[few]
    return data


# --- overrides: `clients.0.count` = 8, as `--set` gives them ------------------------------------


def with_overrides(data: Any, overrides: Mapping[str, Any]) -> Any:
    """Return a copy of parsed YAML with the values set, in order; mappings grow on the way.

    A plugin or GPU that is written as a bare name becomes a mapping when a key of it is set, and a
    preset of limits becomes its limits. The schema checks whether the keys exist. Raises
    ScenarioError for a path through a plain value, or with a wrong position in a list.
    """
    given: object = overrides
    if not isinstance(given, Mapping):
        raise ScenarioError(
            'overrides must be a mapping, such as {"clients.0.count": 8}, got ' + brief(given)
        )
    for path, value in overrides.items():
        steps = path.split(".")
        if "" in steps:
            raise ScenarioError(
                f"override {brief(path)}: must be keys joined by dots, such as a.0.b"
            )
        if len(steps) > NESTING:
            raise ScenarioError(f"override {brief(path)}: must have <= {NESTING} keys")
        if len(steps) > 1 and steps[0] == "slo":
            data = _with_limits(data)
        data = _set(data, steps, plain_number(value), path)
    return data


def _with_limits(data: Any) -> Any:
    """Return a scenario's data with the limits of the preset that `slo` names, if it does."""
    name = data.get("slo") if isinstance(data, dict) else None
    is_preset = isinstance(name, str) and name in slo_preset_names()
    return {**data, "slo": slo_preset(str(name))} if is_preset else data


def _set(data: Any, steps: list[str], value: Any, path: str, key: str = "") -> Any:
    if not steps:
        return value
    step, rest = steps[0], steps[1:]
    if data is None:
        data = ([{}] if step == "0" else []) if key == "clients" else {}
    if isinstance(data, list):
        position = _position(data, step, path)
        return [
            _set(item, rest, value, path) if index == position else item
            for index, item in enumerate(data)
        ]
    if isinstance(data, str):
        data = {"based_on" if key.endswith("gpu") else "type": data}
    if not isinstance(data, dict):
        raise ScenarioError(f"override {cut(path)}: {brief(data)} has no key {brief(step)}")
    return {**data, step: _set(data.get(step), rest, value, path, step)}


def _position(data: list[Any], step: str, path: str) -> int:
    if not step.isdecimal():
        raise ScenarioError(
            f"override {cut(path)}: {brief(step)} is no position in a list; say which of its "
            f"{len(data)} entries is meant, counted from 0"
        )
    if len(step) > len(str(COUNT)) or int(step) >= len(data):
        raise ScenarioError(
            f"override {cut(path)}: there is no entry {cut(step)}; the list has {len(data)}, "
            "counted from 0"
        )
    return int(step)
