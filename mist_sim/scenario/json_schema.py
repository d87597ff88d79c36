"""The JSON Schema of scenario files, with which editors check and complete them."""

from __future__ import annotations

from typing import Any

from mist_sim.scenario.plugins import find_plugins
from mist_sim.scenario.schema import Scenario
from mist_sim.units import KINDS


def json_schema() -> dict[str, Any]:
    """Return the JSON Schema of a scenario file, plugins of installed packages included."""
    find_plugins()
    schema = Scenario.model_json_schema(by_alias=True)
    _write_defaults(schema)
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **schema}


def _write_defaults(schema: Any) -> None:
    """Write the defaults of quantities with their units, as a file has to."""
    for inner in schema.values() if isinstance(schema, dict) else schema:
        if isinstance(inner, dict | list):
            _write_defaults(inner)
    if isinstance(schema, dict) and isinstance(schema.get("default"), float):
        for choice in (schema, *schema.get("anyOf", ())):
            if "pattern" in choice:
                kind = next(kind for kind in KINDS if choice["examples"] == [f"1 {kind.base}"])
                schema["default"] = kind.format(schema["default"])
