"""Writes the tables of docs/reference/engines.md from the versions that the package knows.

python docs/make_engine_page.py
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from mist_sim.scenario.engines.server_start import RULES
from mist_sim.scenario.engines.versions import VERSIONS

TARGET = Path(__file__).parent / "reference" / "engines.md"
_BEGIN, _END = "<!-- begin: written by docs/make_engine_page.py -->", "<!-- end -->"


def page() -> str:
    """Return the text of the page, with current tables."""
    text = TARGET.read_text("utf-8")
    tables = "\n".join(lines())
    return re.sub(
        f"{_BEGIN}.*?{_END}", lambda _: f"{_BEGIN}\n{tables}\n{_END}", text, flags=re.DOTALL
    )


def lines() -> Iterator[str]:
    """Yield values by version, where vLLM's package has them, and what keeps it from starting."""
    versions = list(VERSIONS.values())
    yield f"| option | {' | '.join(version.name for version in versions)} |"
    yield f"|---|{'---|' * len(versions)}"
    for key in versions[0].defaults:
        cells = [_written(version.defaults[key].value) for version in versions]
        yield f"| `{key}` | {' | '.join(_unlike_before(cells))} |"
    yield ""
    yield "| option | in vLLM's package |"
    yield "|---|---|"
    for key in versions[0].defaults:
        yield f"| `{key}` | {'; '.join(_sources(key))} |"
    yield ""
    yield "| not simulated, or not by default | " + " | ".join(v.name for v in versions) + " |"
    yield f"|---|{'---|' * len(versions)}"
    for topic in versions[-1].notes:
        cells = [version.notes.get(topic, "") for version in versions]
        yield f"| {topic} | {' | '.join(_unlike_before(cells))} |"
    yield ""
    yield "| a server starts only if | of | in vLLM's package |"
    yield "|---|---|---|"
    for rule in RULES:
        versions = list(VERSIONS.values())
        of = "all" if len(rule.versions) == len(versions) else ", ".join(rule.versions)
        yield f"| {rule.what} | {of} | {_escaped(rule.source)} |"


def _escaped(text: str) -> str:
    return text.replace("__", r"\_\_").replace("*", r"\*")


def _unlike_before(cells: list[str]) -> Iterator[str]:
    """Yield a mark instead of a cell that equals the one before it."""
    before = None
    for cell in cells:
        yield '"' if cell and cell == before else cell
        before = cell


def _sources(key: str) -> Iterator[str]:
    before = ""
    for version in VERSIONS.values():
        source = version.defaults[key].source
        if source != before:
            yield f"{version.name}: {source}".replace("__", r"\_\_")
        before = source


def _written(value: Any) -> str:
    if isinstance(value, tuple):
        return ", ".join(value)
    return json.dumps(value) if value is None or isinstance(value, bool) else str(value)


if __name__ == "__main__":
    TARGET.write_text(page(), encoding="utf-8")
