"""Texts of files that reach a terminal: without control characters."""

from __future__ import annotations

import re

from mist_sim.errors import ScenarioError, brief

# of a terminal (C0 but tab and line feed, DEL, C1), and of the direction of writing
_CONTROL = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")

Place = tuple[str | int, ...]


def control_in(data: object) -> tuple[Place, str] | None:
    """Return the place of a control character in parsed data, with the problem; None without one.

    data: mappings and lists, perhaps with circular references.
    """
    seen: set[int] = set()
    left: list[tuple[Place, object]] = [((), data)]
    while left:
        place, value = left.pop()
        if isinstance(value, str) and _CONTROL.search(value):
            return place, f"must not have control characters, got {brief(value)}"
        if not isinstance(value, dict | list) or id(value) in seen:
            continue
        seen.add(id(value))
        if isinstance(value, list):
            left += [((*place, position), item) for position, item in enumerate(value)]
            continue
        for key, item in value.items():
            if isinstance(key, str) and _CONTROL.search(key):
                return place, f"keys must not have control characters, got {brief(key)}"
            left.append(((*place, str(key)), item))
    return None


def check_plain(data: object, where: str) -> None:
    """Raise ScenarioError for parsed data with control characters. where: the file."""
    if found := control_in(data):
        place, problem = found
        raise ScenarioError(": ".join(filter(None, (where, ".".join(map(str, place)), problem))))
