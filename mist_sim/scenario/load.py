"""Reads scenarios: a YAML file or a preset, with overrides; and writes them out again."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

from mist_sim.errors import ScenarioError, brief, did_you_mean
from mist_sim.scenario.engines.version_origins import origin_text
from mist_sim.scenario.format import overrides as overriding
from mist_sim.scenario.format import yaml_text
from mist_sim.scenario.format.paths import Origin
from mist_sim.scenario.format.problems import problems_of, summed_up
from mist_sim.scenario.plugins import load_plugins
from mist_sim.scenario.presets import preset_names, preset_path

_HEADER = """\
# A resolved scenario: every default is written out, and quantities are in base units.
# Relative paths start at the working directory of the run. To run it again: mist run THIS_FILE
"""


S = TypeVar("S", bound=BaseModel)
"""The model of a scenario, which knows this module and not the other way round."""


def load(model: type[S], name: str | Path, overrides: Mapping[str, Any]) -> S:
    """Return the scenario of a file or preset; see `Scenario.load`."""
    path = Path(name)
    if path.exists() and not path.is_dir():  # a file, or a pipe
        return _read(model, path, overrides, Origin(str(path), path.parent, tuple(overrides)))
    if str(name) in preset_names():
        origin = Origin(f"preset {name}", overrides=tuple(overrides))
        return _read(model, preset_path(str(name)), overrides, origin)
    if path.exists():
        raise ScenarioError(f"{path}: is a folder; give the scenario file in it")
    known = [*preset_names(), *_neighbours(path)]
    raise ScenarioError(
        f"no scenario file and no preset is named {brief(str(name))}"
        f"{did_you_mean(str(name), known)} Presets: {', '.join(preset_names())}"
    )


def _neighbours(path: Path) -> list[str]:
    folder = path.parent
    if not folder.is_dir():
        return []
    return [str(folder / entry.name) for entry in folder.iterdir() if entry.is_file()]


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
    return validated(model, data, overrides, origin)


def validated(
    model: type[S], data: dict[str, Any], overrides: Mapping[str, Any], origin: Origin
) -> S:
    """Return the scenario of parsed YAML, with overrides applied; see `Scenario.load`."""
    load_plugins()
    try:
        return model.model_validate(overriding.apply(data, overrides), context=origin)
    except ValidationError as error:
        raise summed_up(problems_of(error), origin) from None


def as_text(scenario: BaseModel) -> str:
    """Return a scenario as YAML text; see `Scenario.resolved`."""
    data = as_data(scenario)
    return _HEADER + yaml_text.dump(data) + origin_text(data["clients"])


def as_data(scenario: BaseModel) -> dict[str, Any]:
    """Return what the resolved scenario says as plain mappings, lists and values."""
    data: dict[str, Any] = scenario.model_dump(mode="json", by_alias=True)
    workload = data["workload"]
    del workload["trace" if workload["trace"] is None else "lengths"]
    return data
