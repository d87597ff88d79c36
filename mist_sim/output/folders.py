"""Folders of results: claimed before a run, filled after it, whole or not at all."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import NoReturn

from mist_sim.errors import ScenarioError
from mist_sim.interruptions import put_off
from mist_sim.output import journals, replacement
from mist_sim.output.claims import claim, is_room, telling, without_links
from mist_sim.output.sums import write_sums, written_here
from mist_sim.user_paths import user_path


@dataclass
class OutputFolder:
    """A folder that no other mist-sim process may write until the claim on it ends.

    path: as the user named it. target: without links. room: private folder for incomplete files.
    replace: whether earlier results make room. written: where the results are, as soon as they are
    there, which is beside the folder where others took it.
    """

    path: Path
    target: Path
    room: Path
    replace: bool
    written: Path | None = None

    def fill(self, write: Callable[[Path], None]) -> list[str]:
        """Let `write` put files into a private folder, and move them into place.

        Returns their names, sorted. Raises ScenarioError when that cannot be done. If another
        process took the place during the run, the results go beside it.
        """
        with telling(f"output folder {self.path}"):
            new = self.room / replacement.NEW
            new.mkdir()
            write(new)
            write_sums(new)
            names = sorted(file.name for file in new.iterdir())
            with put_off():
                self._put_in_place(new, names)
                self.written = self.path
                self.journal.unlink(missing_ok=True)
        return names

    @property
    def is_new(self) -> bool:
        """Whether nothing is there that results would replace."""
        return not self.target.exists() or not _entries(self.target)

    @property
    def journal(self) -> Path:
        """Where a study notes its results until they are whole; it outlives a process."""
        return self.room / journals.NAME

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
            put = ", ".join(taken) or "a file"
            self._keep_beside(new, f"another program put {put} there during the run")
        try:
            replacement.replace(self.room, self.target, ours, names)
        except OSError as error:
            problem = f"cannot be written: {error.strerror or error}"
            if not replacement.is_under_way(self.room):
                self._keep_beside(new, problem)
            raise ScenarioError(
                f"output folder {self.path}: {problem}; some files are moved, and the next run "
                "into this folder moves the others"
            ) from error

    def _replaceable(self) -> list[str]:
        """Return the files to replace: earlier results."""
        if not self.replace or not self.target.is_dir():
            return []
        return [name for name, unchanged in written_here(self.target).items() if unchanged]

    def _keep_beside(self, new: Path, problem: str) -> NoReturn:
        beside = _free_name(self.room.parent, self.target.name)
        new.rename(beside)
        where = os.path.relpath(beside)
        if self.path.is_absolute() or where.startswith(os.pardir):
            where = str(beside)
        self.written = Path(where)
        raise ScenarioError(
            f"output folder {self.path}: {problem}; the results are in {where}"
        ) from None


@contextmanager
def output_folder(
    named: str | Path, *, replace: bool = False, resume: bool = False
) -> Iterator[OutputFolder]:
    """Claim a folder for results; it stays as it is until it is filled.

    named: new or empty. replace: accept a folder of earlier results, and replace these; other files
    are kept. resume: continue the journal of a stopped study; without it, `replace` removes the
    journal. Raises ScenarioError when the folder is neither, holds a journal that is not asked for,
    cannot be written, or is in use.
    """
    path = user_path(named)
    with ExitStack() as stack:
        with telling(f"output folder {path}"):
            target = without_links(path)
            if target.exists() and not target.is_dir():
                raise ScenarioError(f"output folder {path}: is a file; name a folder")
            room = stack.enter_context(claim(target))
            _require_place(path, target, replace=replace)
            _require_no_journal(path, room, replace=replace, resume=resume)
        yield OutputFolder(path, target, room, replace)


def is_free(named: str | Path) -> bool:
    """Tell whether a folder is new or empty, and not claimed."""
    target = Path(os.path.realpath(named))
    try:
        with claim(target) as room:
            is_new = not os.path.lexists(target) or (target.is_dir() and not _entries(target))
            return is_new and not journals.holds_rows(room)
    except (BlockingIOError, ScenarioError):
        return False
    except OSError:
        return not os.path.lexists(target)  # why it cannot be written shows when it is claimed


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


def _require_no_journal(path: Path, room: Path, *, replace: bool, resume: bool) -> None:
    """Raise ScenarioError where the journal of a study that was stopped would be lost."""
    if resume or not journals.holds_rows(room):
        return
    if not replace:
        raise ScenarioError(
            f"output folder {path}: a study that was stopped has left its results so far in "
            f"{room.name} beside it; the same command with --resume goes on with them, --force "
            "begins anew"
        )
    (room / journals.NAME).unlink()


def _entries(folder: Path) -> list[Path]:
    """Return the entries of a folder, without those of a claim."""
    return [entry for entry in folder.iterdir() if not is_room(entry)]


def _free_name(folder: Path, name: str) -> Path:
    """Return the first of NAME-2, NAME-3, ... that a folder does not hold."""
    places = (folder / f"{name}-{number}" for number in count(2))
    return next(place for place in places if not os.path.lexists(place))
