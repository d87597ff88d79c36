"""Folders of results: claimed before a run, filled after it, whole or not at all."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from shutil import move
from typing import NoReturn

from mist_sim.errors import ScenarioError
from mist_sim.output.claims import claim, is_room, telling
from mist_sim.output.sums import write_sums, written_here
from mist_sim.user_paths import user_path


@dataclass(frozen=True)
class OutputFolder:
    """A folder that nobody else of mist-sim may write until the claim on it ends.

    path: as the user named it. target: without links. room: private, for what is not whole yet.
    replace: whether earlier results make room.
    """

    path: Path
    target: Path
    room: Path
    replace: bool

    def fill(self, write: Callable[[Path], None]) -> list[str]:
        """Let `write` put files into a private folder, and move them into place.

        Returns their names, sorted. Raises ScenarioError when that cannot be done. Where others
        took the place during the run, theirs stays, and the results are kept beside it.
        """
        with telling(f"output folder {self.path}"):
            new = self.room / "new"
            new.mkdir()
            write(new)
            write_sums(new)
            names = sorted(file.name for file in new.iterdir())
            self._put_in_place(new, names)
        return names

    def _put_in_place(self, new: Path, names: list[str]) -> None:
        if not os.path.lexists(self.target):
            try:
                new.rename(self.target)
                return
            except OSError:
                if not os.path.lexists(self.target):
                    raise
        ours = self._replaceable()
        taken = [n for n in names if os.path.lexists(self.target / n) and n not in ours]
        if taken or not self.target.is_dir():
            self._keep_beside(new, ", ".join(taken) or "a file")
        old = self.room / "old"
        old.mkdir()
        away = [(self.target / name, old / name) for name in ours]
        _move_all([*away, *((new / name, self.target / name) for name in names)])

    def _replaceable(self) -> list[str]:
        """Return the files that make room: earlier results, as they were written."""
        if not self.replace or not self.target.is_dir():
            return []
        return [name for name, unchanged in written_here(self.target).items() if unchanged]

    def _keep_beside(self, new: Path, taken: str) -> NoReturn:
        beside = _free_name(self.target)
        new.rename(beside)
        raise ScenarioError(
            f"output folder {self.path}: somebody else put {taken} there during the run; the "
            f"results are in {self.path.with_name(beside.name)}"
        )


@contextmanager
def output_folder(named: str | Path, *, replace: bool = False) -> Iterator[OutputFolder]:
    """Claim a folder for results; it stays as it is until it is filled.

    named: new or empty. replace: or a folder of earlier results, which make room; files of others
    stay. Raises ScenarioError when it is neither, cannot be written, or is in use.
    """
    path = user_path(named)
    with ExitStack() as stack:
        with telling(f"output folder {path}"):
            target = Path(os.path.realpath(path))
            if target.exists() and not target.is_dir():
                raise ScenarioError(f"output folder {path}: is a file; name a folder")
            room = stack.enter_context(claim(target))
            _require_place(path, target, replace=replace)
        yield OutputFolder(path, target, room, replace)


def is_free(named: str | Path) -> bool:
    """Tell whether a folder is new or empty, and nobody is about to write it."""
    target = Path(os.path.realpath(named))
    if target.exists() and not (target.is_dir() and not _entries(target)):
        return False
    try:
        with claim(target):
            return True
    except BlockingIOError:
        return False
    except OSError:
        return True  # nobody has it; why it cannot be written shows when it is claimed


def _require_place(path: Path, target: Path, *, replace: bool) -> None:
    """Raise ScenarioError unless results may go into a folder; OSError when it is not readable."""
    if not target.exists():
        return
    if not os.access(target, os.W_OK | os.X_OK):
        raise PermissionError(None, "Permission denied")
    if not _entries(target):
        return
    earlier = written_here(target)
    if not earlier and replace:
        raise ScenarioError(
            f"output folder {path}: is not empty and holds no results that --force could replace; "
            "name another folder"
        )
    if not earlier:
        raise ScenarioError(f"output folder {path}: is not empty; choose another or clear it")
    if not replace:
        raise ScenarioError(
            f"output folder {path}: holds earlier results; --force (replace=True in Python) "
            "replaces them, or name another"
        )
    if changed := [name for name, unchanged in earlier.items() if not unchanged]:
        raise ScenarioError(
            f"output folder {path}: {', '.join(changed)} changed since mist-sim wrote it, and is "
            "not replaced; move it away, or name another folder"
        )


def _entries(folder: Path) -> list[Path]:
    """Return what is in a folder, without what a claim puts there."""
    return [entry for entry in folder.iterdir() if not is_room(entry)]


def _free_name(target: Path) -> Path:
    """Return the first of NAME-2, NAME-3, ... that does not exist."""
    names = (target.with_name(f"{target.name}-{number}") for number in count(2))
    return next(path for path in names if not os.path.lexists(path))


def _move_all(moves: Iterable[tuple[Path, Path]]) -> None:
    """Move files; when one cannot be moved, or on an interruption, all are moved back."""
    begun: list[tuple[Path, Path]] = []
    try:
        for source, destination in moves:
            begun.append((source, destination))
            move(source, destination)
    except BaseException:
        for source, destination in reversed(begun):
            if not os.path.lexists(source):
                move(destination, source)
        raise
