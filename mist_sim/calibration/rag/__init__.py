"""From timed searches of faiss to the seconds of a search's operations (`mist calibrate rag`)."""

from __future__ import annotations

import re
from pathlib import Path

from mist_sim.calibration.rag.search_fit import SearchFit, coefficients_text, fit_searches
from mist_sim.calibration.rag.searches import TimedSearch, read_searches, searches_text
from mist_sim.errors import ScenarioError

__all__ = [
    "SearchFit",
    "TimedSearch",
    "calibrate_rag",
    "coefficients_text",
    "fit_searches",
    "notes_of",
    "read_searches",
    "searches_text",
]

_NOTES = ("software", "machine", "date")


def notes_of(software: str, machine: str, date: str) -> list[str]:
    """Return the comment lines of a CSV of searches."""
    plain = (re.sub(r'["\\\n]', " ", text) for text in (software, machine, date))
    return [f"{name}: {text}" for name, text in zip(_NOTES, plain, strict=True)]


def calibrate_rag(path: Path) -> SearchFit:
    """Return the coefficients of the searches in a CSV, whose comments name machine and date.

    Raises ScenarioError for another kind of file, or too few rows.
    """
    searches, notes = read_searches(path)
    said = dict(note.split(": ", 1) for note in notes if ": " in note)
    missing = [name for name in _NOTES if name not in said]
    if missing:
        raise ScenarioError(
            f"{path}: must begin with lines such as '# machine: AMD EPYC 9575F'; "
            f"missing: {', '.join(missing)}"
        )
    return fit_searches(searches, **{name: said[name] for name in _NOTES})
