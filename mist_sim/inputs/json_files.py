"""JSON files that hold an object, read strictly."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from mist_sim.bounds import SPEC_BYTES
from mist_sim.errors import ScenarioError, brief
from mist_sim.inputs.files import text_of


def object_in(path: Path, most_bytes: int = SPEC_BYTES, name: str = "") -> dict[str, Any]:
    """Return the object of a JSON file; see `object_of` and `files.text_of`.

    name: of the file in messages; by default its path.
    """
    return object_of(text_of(path, most_bytes), name or str(path))


def object_of(text: str, where: str) -> dict[str, Any]:
    """Return the object of a JSON text. where: the file, in messages.

    Raises ScenarioError for text that is no JSON, nests deeper than Python's parser goes, gives a
    key twice, or holds something else.
    """
    try:
        found = json.loads(text, object_pairs_hook=_unique_keys)
    except (ValueError, RecursionError) as error:
        raise ScenarioError(f"{where}: not valid JSON: {error}") from None
    if not isinstance(found, dict):
        raise ScenarioError(f"{where}: must hold a JSON object, got {type(found).__name__}")
    return found


def _unique_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    keys: dict[str, Any] = {}
    for key, value in pairs:
        if key in keys:
            raise ValueError(f"key {brief(key)} is given twice")
        keys[key] = value
    return keys
