"""The journal that a study keeps in the private folder of its results, until they are whole."""

from __future__ import annotations

from pathlib import Path

NAME = "study.jsonl"
LOCK = ".lock"
"""Ends the name of the file that is locked while a journal is written."""


def holds_rows(room: Path) -> bool:
    """Tell whether a study that was stopped has left rows in a private folder."""
    try:
        with (room / NAME).open("rb") as file:
            return sum(line.endswith(b"\n") for line in (file.readline(), file.readline())) > 1
    except FileNotFoundError:
        return False


def tidy(room: Path) -> None:
    """Remove files that are not rows of a study. The caller holds the private folder's claim."""
    (room / f"{NAME}{LOCK}").unlink(missing_ok=True)
    if not holds_rows(room):
        (room / NAME).unlink(missing_ok=True)
