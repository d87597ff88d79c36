"""vLLM's releases that `engine` names: what they do, and since which one."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.text import Text

from mist_sim.cli.listings.catalogs import captioned
from mist_sim.scenario.engines.versions import NEWEST, TABLE, VERSIONS, version_of


class Rule(NamedTuple):
    """An option or a rule of the engine, its values by release, and where vLLM has them."""

    key: str
    values: str
    sources: str


def rules() -> Iterator[Rule]:
    """Yield all options and rules that depend on the release."""
    for key, rows in TABLE.defaults.items():
        sources = dict.fromkeys(f"0.{row.since}: {row.source}" for row in rows)
        values = []
        for at, row in enumerate(rows):
            if not at or row.value != rows[at - 1].value:
                seen = ", ".join(f"0.{each}" for each in row.seen)
                measured = f" (measured on {seen})" if seen else ""
                values.append(f"{f'0.{row.since}: ' * bool(at)}{_written(row.value)}{measured}")
        yield Rule(key, "; ".join(values), "; ".join(sources))


def _written(value: Any) -> str:
    if isinstance(value, tuple):
        return ", ".join(value)
    return json.dumps(value) if value is None or isinstance(value, bool) else str(value)


def engines() -> RenderableType:
    """Return what depends on the release, with the releases since which a value holds."""
    lines = _lines((rule.key, rule.values) for rule in rules())
    note = f"engine: {next(iter(VERSIONS))} to {NEWEST.name}; mist list engines NAME shows one"
    return captioned(lines, f"{note}. Values hold from the release before them on")


def release(name: str) -> RenderableType:
    """Return what one release does. Raises ScenarioError for an unknown name."""
    version = version_of(name)
    rows = [(f"{key} = {_written(row.value)}", row.source) for key, row in version.defaults.items()]
    return captioned(_lines([*rows, *version.notes.items()]), f"engine: {version.name}")


def _lines(rows: Iterable[tuple[str, str]]) -> RenderableType:
    return Group(*(part for key, text in rows for part in (key, Padding(Text(text), (0, 0, 0, 4)))))
