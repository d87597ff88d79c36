"""Values set from outside a scenario file: `clients.0.count` = 8, as `--set` gives them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from mist_sim.bounds import COUNT, NESTING
from mist_sim.errors import ScenarioError, brief, cut
from mist_sim.scenario.slo_presets import slo_preset, slo_preset_names


def apply(data: Any, overrides: Mapping[str, Any]) -> Any:
    """Return a copy of parsed YAML with the values set, in order; mappings grow on the way.

    A plugin or GPU that is written as a bare name becomes a mapping when a key of it is set, and a
    preset of limits becomes its limits. The schema checks whether the keys exist. Raises
    ScenarioError for a path through a plain value, or with a wrong position in a list.
    """
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
        data = _set(data, steps, value, path)
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
