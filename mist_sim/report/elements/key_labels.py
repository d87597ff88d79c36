"""Short texts of scenarios, and of keys and values that are varied."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from mist_sim.errors import brief

_LONGEST = 40  # characters of a value
_PLAIN = re.compile(r"[A-Za-z_/][\w./$%+-]*|\d[\d.]* [A-Za-z/$%]+")  # names, and quantities
_WORDS = ("true", "false", "null", "True", "False", "Null", "TRUE", "FALSE", "NULL")


def headline_line(headline: str) -> str:
    """Return the line of a scenario's headline that names its clients, or the only one."""
    lines = headline.splitlines() or [""]
    return next((line for line in lines if " on " in line), lines[0])


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
    """Return a value as one line of text; mappings and lists whole, as YAML in one line."""
    if isinstance(value, str):
        return value
    if isinstance(value, Mapping) and set(value) == {"type"}:
        return str(value["type"])
    if isinstance(value, Mapping | list | tuple):
        return _flow(value)
    return brief(json.loads(json.dumps(value, default=str)), _LONGEST)


def _flow(value: Any) -> str:
    """Return a value as YAML in one line; text in quotes where it would read as something else."""
    if isinstance(value, Mapping):
        return f"{{{', '.join(f'{_flow(key)}: {_flow(each)}' for key, each in value.items())}}}"
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(_flow, value))}]"
    if isinstance(value, str) and _PLAIN.fullmatch(value) and value not in _WORDS:
        return value
    return json.dumps(value, default=str, ensure_ascii=False)
