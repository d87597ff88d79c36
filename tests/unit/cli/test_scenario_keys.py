"""`mist help scenario KEY`: every key that a file may have is there."""

from collections.abc import Iterator
from typing import Any

from mist_sim.cli.listings.scenario_keys import ROW, is_of_others, page
from mist_sim.scenario.json_schema import json_schema

NAMES = {"share"}  # of a class, beside the keys of its lengths


def keys_of(schema: Any) -> Iterator[str]:
    """Yield the keys of a schema, without those of plugins from other packages."""
    if isinstance(schema, dict):
        kind = schema.get("properties", {}).get("type", {}).get("const")
        if kind is not None and is_of_others(kind):
            return
        yield from schema.get("properties", ())
        for inner in schema.values():
            yield from keys_of(inner)
    elif isinstance(schema, list):
        for inner in schema:
            yield from keys_of(inner)


def test_every_key_of_the_schema_has_a_row():
    rows = {match[1] for line in page().splitlines() if (match := ROW.fullmatch(line))}
    assert set(keys_of(json_schema())) - NAMES - {"type"} - rows == set()
