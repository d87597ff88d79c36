"""Writes the tables of docs/reference/engines.md from the versions that the package knows.

python docs/make_engine_page.py
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from mist_sim.scenario.engines.engine_version import LATEST, OLDEST, Default
from mist_sim.scenario.engines.server_start import RULES
from mist_sim.scenario.engines.versions import DEFAULTS, NOTES

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
    """Yield what each release does, since when, where its package has it, what keeps it down."""
    yield "| option or rule | value, and the releases since which it holds | in vLLM's package |"
    yield "|---|---|---|"
    for key, rows in DEFAULTS.items():
        sources = dict.fromkeys(f"0.{row.since}: {row.source}" for row in rows)
        values = [
            _value(row, is_first=not at)
            for at, row in enumerate(rows)
            if not at or row.value != rows[at - 1].value
        ]
        yield f"| `{key}` | {'; '.join(values)} | {_escaped('; '.join(sources))} |"
    yield ""
    yield "| not simulated, or not by default | since | what vLLM does |"
    yield "|---|---|---|"
    for topic, note in NOTES.items():
        yield f"| {topic} | 0.{note.since} | {note.text} |"
    yield ""
    yield "| a server starts only if | of | in vLLM's package |"
    yield "|---|---|---|"
    for rule in RULES:
        since = f"from 0.{rule.since} on" * (rule.since > OLDEST)
        until = f"up to 0.{rule.until}" * (rule.until < LATEST)
        of = " ".join(filter(None, (since, until))) or "all"
        yield f"| {rule.what} | {of} | {_escaped(rule.source)} |"


def _value(row: Default, *, is_first: bool) -> str:
    """Return a value, since when it holds, and the releases on which it was measured."""
    seen = f" (measured on {', '.join(f'0.{each}' for each in row.seen)})" if row.seen else ""
    return f"{'' if is_first else f'0.{row.since}: '}{_written(row.value)}{seen}"


def _escaped(text: str) -> str:
    return text.replace("__", r"\_\_").replace("*", r"\*")


def _written(value: Any) -> str:
    if isinstance(value, tuple):
        return ", ".join(value)
    return json.dumps(value) if value is None or isinstance(value, bool) else str(value)


if __name__ == "__main__":
    TARGET.write_text(page(), encoding="utf-8")
