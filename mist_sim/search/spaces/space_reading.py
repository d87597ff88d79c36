"""Reads a space from YAML: a scenario, the values to try, constraints, objectives."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from mist_sim.errors import ScenarioError, brief, did_you_mean
from mist_sim.inputs.texts import check_plain
from mist_sim.scenario import Scenario
from mist_sim.scenario.format import yaml_text
from mist_sim.search.spaces.constraints import constraints_of
from mist_sim.search.spaces.objectives import objectives_of
from mist_sim.search.spaces.ranges import values_of
from mist_sim.search.spaces.space import Space

_KEYS = ("scenario", "vary", "cases", "designs", "constraints", "objectives")


def read_space(
    path: str | Path,
    overrides: Mapping[str, Any] | None = None,
    *,
    allow_programs: bool = True,
) -> Space:
    """Return the space of a YAML file.

    overrides: values of its scenario by dotted path. allow_programs: whether programs that the
    files name may run; False is for files of others.
    Raises ScenarioError for what is wrong with the file, and with its scenario.
    """
    place = Path(path)
    source = str(path)
    data = yaml_text.parse(yaml_text.read_text(place), source)
    if not isinstance(data, Mapping):
        raise ScenarioError(f"{source}: must be a mapping with scenario, vary and objectives")
    check_plain(dict(data), source)
    _check_keys(source, data)
    scenario = _scenario(source, data["scenario"], place.parent, overrides or {}, allow_programs)
    try:
        return Space(
            scenario=scenario,
            vary=_vary(data.get("vary") or {}),
            cases=_cases(data.get("cases") or {}),
            designs=_words("designs", data.get("designs") or []),
            constraints=constraints_of(data.get("constraints") or {}),
            objectives=objectives_of(data["objectives"]),
            trusted=allow_programs,
        )
    except ScenarioError as error:
        raise ScenarioError(f"{source}: {error}") from None


def _check_keys(source: str, data: Mapping[str, Any]) -> None:
    for key in data:
        if key not in _KEYS:
            told = " is a key of a scenario; name its file under scenario."
            is_scenario = key in Scenario.model_fields
            hint = told if is_scenario else f" is unknown{did_you_mean(str(key), _KEYS)}"
            raise ScenarioError(f"{source}: {brief(key)}{hint} Known: {', '.join(_KEYS)}")
    for key in ("scenario", "objectives"):
        if key not in data:
            raise ScenarioError(f"{source}: {key} is required; known: {', '.join(_KEYS)}")


def _scenario(
    source: str, said: object, folder: Path, overrides: Mapping[str, Any], allowed: bool
) -> Scenario:
    """Return the scenario: a file beside that of the space, a preset, or what is written there."""
    if isinstance(said, str):
        beside = folder / said
        name = str(beside) if beside.is_file() else said
        return Scenario.load(name, overrides, allow_programs=allowed)
    if not isinstance(said, Mapping):
        raise ScenarioError(
            f"{source}: scenario must be a file, a preset or a mapping, got {brief(said)}"
        )
    text = yaml_text.dump(dict(said))
    return Scenario.from_yaml(text, overrides, source=f"{source}: scenario", allow_programs=allowed)


def _vary(given: object) -> dict[str, list[Any]]:
    if not isinstance(given, Mapping):
        raise ScenarioError(f"vary must be a mapping of keys to values, got {brief(given)}")
    return {str(key): values_of(f"vary {key}", values) for key, values in given.items()}


def _cases(given: object) -> dict[str, dict[str, Any]]:
    if not isinstance(given, Mapping):
        raise ScenarioError(f"cases must be a mapping of names to settings, got {brief(given)}")
    for name, settings in given.items():
        if not isinstance(settings, Mapping | None):
            raise ScenarioError(
                f"cases.{name}: must be a mapping of keys to values, got {brief(settings)}"
            )
    return {str(name): dict(settings or {}) for name, settings in given.items()}


def _words(what: str, given: object) -> tuple[str, ...]:
    found = [given] if isinstance(given, str) else given
    if not isinstance(found, list | tuple) or not all(isinstance(each, str) for each in found):
        raise ScenarioError(f"{what} must be a list of words, got {brief(given)}")
    return tuple(found)
