"""Short texts of keys and values that are varied."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from mist_sim.errors import brief

_LONGEST = 40  # characters of a value


def labels_of(keys: Sequence[str]) -> dict[str, str]:
    """Return a label for each dotted key: its shortest unique end."""
    found = {}
    for key in keys:
        steps = key.split(".")
        others = [other for other in keys if other != key]
        for begin in reversed(range(len(steps))):
            label = ".".join(steps[begin:])
            is_one = not any(f".{other}".endswith(f".{label}") for other in others)
            if is_one and not steps[begin].isdecimal() and label not in ("type", "name"):
                break
        found[key] = label
    return found


def value_text(value: Any) -> str:
    """Return a value as one line of text."""
    if isinstance(value, str):
        return value
    if isinstance(value, Mapping) and set(value) == {"type"}:
        return str(value["type"])
    return brief(json.loads(json.dumps(value, default=str)), _LONGEST)
