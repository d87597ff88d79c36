"""Text and JSON: the same content, the same bytes on every system."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from math import isfinite
from pathlib import Path
from typing import Any


def write_text(path: Path, text: str | Iterable[str]) -> None:
    """Write UTF-8 text with unchanged line ends. text: whole, or its pieces in order."""
    if isinstance(text, str):
        path.write_text(text, encoding="utf-8", newline="\n")
        return
    with path.open("w", encoding="utf-8", newline="\n") as file:
        file.writelines(text)


def json_text(data: Mapping[str, Any]) -> str:
    """Return indented JSON; NaN becomes null, JSON's value for 'no sample'."""
    return json.dumps(_jsonable(data), indent=2) + "\n"


def _jsonable(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _jsonable(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_jsonable(item) for item in value]
    if isinstance(value, float) and not isfinite(value):
        return None
    return value
