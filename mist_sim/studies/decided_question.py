"""A study's question as plain data: to recognise it, and to name differences to another."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import fields, is_dataclass
from hashlib import file_digest, sha256
from inspect import getsource
from pathlib import Path
from typing import Any

from mist_sim.errors import brief
from mist_sim.hardware.devices import base_files

_ABSENT = "nothing"
_LONGEST_PATH = 4_096


def plain(value: Any) -> Any:
    """Return dataclasses, functions and classes as mappings and texts; the rest as it is."""
    if is_dataclass(value) and not isinstance(value, type):
        return {field.name: plain(getattr(value, field.name)) for field in fields(value)}
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    if callable(value):
        return _code(value)
    return value


def digest(run: Callable[..., Any], arguments: tuple[Any, ...]) -> str:
    """Return a key that identifies a call."""
    text = json.dumps([run.__module__, run.__qualname__, plain(arguments)], default=repr)
    return sha256(text.encode()).hexdigest()[:32]


def named_files(value: Any) -> dict[str, str]:
    """Return the files that plain data names, such as a trace, with the sum of each."""
    found: dict[str, str] = {}
    for text in _texts(value):
        if text not in found and 0 < len(text) < _LONGEST_PATH and "\0" not in text:
            path = Path(text)
            if path.is_file():
                found[text] = _sum(path)
                found |= {str(base): _sum(base) for base in base_files(path)}
    return found


def _sum(path: Path) -> str:
    with path.open("rb") as file:
        return file_digest(file, "sha256").hexdigest()


def difference(this: Any, that: Any, place: str = "") -> tuple[str, str, str] | None:
    """Return where two pieces of plain data differ first, and both values as text."""
    if isinstance(this, dict) and isinstance(that, dict):
        for key in dict.fromkeys([*this, *that]):
            where = f"{place}.{key}" if place else str(key)
            if key not in this or key not in that:
                return where, _shown(this, key), _shown(that, key)
            if found := difference(this[key], that[key], where):
                return found
        return None
    if isinstance(this, list) and isinstance(that, list) and len(this) == len(that):
        pairs = enumerate(zip(this, that, strict=True))
        all_found = (difference(mine, yours, f"{place}.{k}") for k, (mine, yours) in pairs)
        return next(filter(None, all_found), None)
    return None if this == that else (place, brief(this), brief(that))


def _shown(data: dict[str, Any], key: str) -> str:
    return brief(data[key]) if key in data else _ABSENT


def _code(function: Any) -> dict[str, str]:
    """Return the name of a function, and the sum of its source where that is known."""
    name = getattr(function, "__qualname__", type(function).__qualname__)
    found = {"function": f"{getattr(function, '__module__', '')}.{name}"}
    with suppress(OSError, TypeError):
        found["source"] = sha256(getsource(function).encode()).hexdigest()
    return found


def _texts(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for item in value.values():
            yield from _texts(item)
    elif isinstance(value, list | tuple):
        for item in value:
            yield from _texts(item)
