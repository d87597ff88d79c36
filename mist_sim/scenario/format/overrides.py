"""Values set from outside a scenario file: `clients.0.count` = 8, as `--set` gives them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from mist_sim.errors import ScenarioError, brief


def apply(data: Any, overrides: Mapping[str, Any]) -> Any:
    """Return a copy of parsed YAML with the values set, in order; mappings grow on the way.

    A plugin that is written as a bare name becomes a mapping when a key of it is set. The schema
    checks whether the keys exist. Raises ScenarioError for a path through a plain value, or with a
    wrong position in a list.
    """
    for path, value in overrides.items():
        steps = path.split(".")
        if "" in steps:
            raise ScenarioError(
                f"override {brief(path)}: must be keys joined by dots, such as a.0.b"
            )
        data = _set(data, steps, value, path)
    return data


def _set(data: Any, steps: list[str], value: Any, path: str) -> Any:
    if not steps:
        return value
    step, rest = steps[0], steps[1:]
    if isinstance(data, list):
        position = _position(data, step, path)
        return [
            _set(item, rest, value, path) if index == position else item
            for index, item in enumerate(data)
        ]
    if data is None:
        data = {}
    if isinstance(data, str):
        data = {"type": data}
    if not isinstance(data, dict):
        raise ScenarioError(f"override {path}: {brief(data)} has no key {brief(step)}")
    return {**data, step: _set(data.get(step), rest, value, path)}


def _position(data: list[Any], step: str, path: str) -> int:
    if not step.isdecimal():
        raise ScenarioError(
            f"override {path}: {brief(step)} is no position in a list; say which of its "
            f"{len(data)} entries is meant, counted from 0"
        )
    if int(step) >= len(data):
        raise ScenarioError(
            f"override {path}: there is no entry {step}; the list has {len(data)}, counted from 0"
        )
    return int(step)
