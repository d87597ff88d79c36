"""Replaces old files by new ones: all of them, even if the process is killed meanwhile.

A journal lists the moves. It exists from before the first move until after the last, and the next
run that claims the place finishes them. Every move is a rename, which happens completely or not at
all.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from mist_sim.errors import ScenarioError
from mist_sim.output import sums

NEW, OLD = "new", "old"
_JOURNAL, _UNFINISHED = "journal", "journal.new"
OWN = (NEW, OLD, _JOURNAL, _UNFINISHED)
"""Contents of a private folder beside its lock."""


def replace(room: Path, target: Path, old: Iterable[str], new: Iterable[str]) -> None:
    """Move a folder's files into OLD of its private folder, and those of NEW into their place.

    The sums go first and come last: where they are, the results are whole. An error or an
    interruption changes nothing.
    room: the private folder. target: the folder. old, new: names of files.
    Raises OSError if a file cannot be moved.
    """
    away = sorted(old, key=sums.NAME.__ne__)
    here = sorted(new, key=sums.NAME.__eq__)
    (room / OLD).mkdir()
    known = {name: sums.of_file(target / name) for name in away}
    try:
        _write(room, known, here)
        _move_all(room, target, away, here)
        (room / _JOURNAL).unlink()
    except BaseException:
        if is_under_way(room):
            _move_back(room, target, away, here)
            (room / _JOURNAL).unlink()
        raise


def is_under_way(room: Path) -> bool:
    """Tell whether a replacement has begun, and not ended."""
    return (room / _JOURNAL).exists()


def finish(room: Path, target: Path) -> None:
    """Finish a replacement begun by a killed process, if there is one.

    If the folder is missing, a user removed it, and no file is moved. Raises ScenarioError if files
    came or changed since; OSError as `replace`.
    """
    if not is_under_way(room):
        return
    if target.is_dir():
        away, here = _read(room)
        if strange := _strange(room, target, away, here):
            raise ScenarioError(
                f"output folder {target}: a run was killed while it replaced the results, and "
                f"{', '.join(strange)} came or changed since; move it away, and the next run into "
                "this folder puts the results there"
            )
        _move_all(room, target, away, here)
    (room / _JOURNAL).unlink()


def _write(room: Path, old: dict[str, str], new: list[str]) -> None:
    text = json.dumps({"old": old, "new": new}, indent=1)
    (room / _UNFINISHED).write_text(text, "utf-8")
    (room / _UNFINISHED).replace(room / _JOURNAL)


def _read(room: Path) -> tuple[dict[str, str], list[str]]:
    """Return the old files with their sums, and the new ones. Raises ScenarioError for others'."""
    try:
        journal = json.loads((room / _JOURNAL).read_text("utf-8"))
        old, new = dict(journal["old"]), list(journal["new"])
        if all(Path(name).name == name for name in (*old, *new)):  # all are in the folder itself
            return old, new
    except (ValueError, TypeError, KeyError, RecursionError):
        pass
    raise ScenarioError(f"{room / _JOURNAL}: is none that mist-sim wrote; move it away")


def _move_all(room: Path, target: Path, old: Iterable[str], new: Iterable[str]) -> None:
    """Do the moves that are not done."""
    for name in old:
        if not os.path.lexists(room / OLD / name):
            with suppress(FileNotFoundError):  # somebody removed it since
                (target / name).rename(room / OLD / name)
    for name in new:
        if os.path.lexists(room / NEW / name):
            (room / NEW / name).rename(target / name)


def _move_back(room: Path, target: Path, old: list[str], new: list[str]) -> None:
    """Undo the moves that are done."""
    for name in reversed(new):
        if not os.path.lexists(room / NEW / name):
            (target / name).rename(room / NEW / name)
    for name in reversed(old):
        if os.path.lexists(room / OLD / name):
            (room / OLD / name).rename(target / name)


def _strange(room: Path, target: Path, old: dict[str, str], new: list[str]) -> list[str]:
    """Return files that others put where something is to be moved from or to."""
    waiting = {name: known for name, known in old.items() if not os.path.lexists(room / OLD / name)}
    coming = {name for name in new if os.path.lexists(room / NEW / name)} - waiting.keys()
    found = {name for name in coming if os.path.lexists(target / name)}
    for name, known in waiting.items():
        if os.path.lexists(target / name) and not sums.is_unchanged(target / name, known):
            found.add(name)
    return sorted(found)
