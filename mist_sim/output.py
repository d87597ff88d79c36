"""Results on disk: one writer at a time, complete or absent, and no data lost.

SHA256SUMS: the files that mist-sim wrote into a folder, so that no others are replaced.

`sha256sum --check SHA256SUMS` reads it too. Its first line distinguishes it from files of that name
with another origin.

Replaces old files by new ones: all of them, even if the process is killed meanwhile.

A journal lists the moves. It exists from before the first move until after the last, and the next
run that claims the place finishes them. Every move is a rename, which happens completely or not at
all.
"""

from __future__ import annotations

import errno
import json
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from hashlib import file_digest
from itertools import count
from math import isfinite
from pathlib import Path
from shutil import rmtree
from stat import S_IMODE
from typing import Any, NoReturn

from mist_sim.errors import ScenarioError
from mist_sim.interruptions import put_off
from mist_sim.user_paths import user_path

__all__ = ["is_free", "output_file", "output_folder", "write_whole"]


JOURNAL = "study.jsonl"
LOCK = ".lock"
"""Ends the name of the file that is locked while a journal is written."""


def holds_rows(room: Path) -> bool:
    """Tell whether a study that was stopped has left rows in a private folder."""
    try:
        with (room / JOURNAL).open("rb") as file:
            return sum(line.endswith(b"\n") for line in (file.readline(), file.readline())) > 1
    except FileNotFoundError:
        return False


def tidy(room: Path) -> None:
    """Remove files that are not rows of a study. The caller holds the private folder's claim."""
    (room / f"{JOURNAL}{LOCK}").unlink(missing_ok=True)
    if not holds_rows(room):
        (room / JOURNAL).unlink(missing_ok=True)


SUMS = "SHA256SUMS"
_HEADER = "# Results of mist-sim"


def write_sums(folder: Path) -> None:
    """Write the check sums of all files of a folder into the folder."""
    sums = [f"{of_file(file)}  {file.name}" for file in sorted(folder.iterdir())]
    text = "\n".join([_HEADER, *sums]) + "\n"
    (folder / SUMS).write_text(text, encoding="utf-8", newline="\n")


def written_here(folder: Path) -> dict[str, bool]:
    """Return the files in a folder that mist-sim wrote.

    The values tell whether they are unchanged; a link in the place of one is not. Empty if mist-sim
    wrote none.
    """
    lines = _lines(folder / SUMS)
    if not lines or lines[0] != _HEADER:
        return {}
    found = {SUMS: True}
    for line in lines[1:]:
        known, _, name = line.partition("  ")
        file = folder / name
        if name and file.name == name and os.path.lexists(file):
            found[name] = is_unchanged(file, known)
    return found


def is_unchanged(file: Path, known: str) -> bool:
    """Tell whether a path is a file, and no link, with a known sum."""
    return file.is_file() and not file.is_symlink() and of_file(file) == known


def of_file(file: Path) -> str:
    """Return the sum of a file, as `sha256sum` prints it."""
    with file.open("rb") as content:
        return file_digest(content, "sha256").hexdigest()


def _lines(file: Path) -> list[str]:
    if file.is_symlink():
        return []
    try:
        return file.read_text(encoding="utf-8").splitlines()
    except (FileNotFoundError, IsADirectoryError, UnicodeDecodeError):
        return []


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
    away = sorted(old, key=SUMS.__ne__)
    here = sorted(new, key=SUMS.__eq__)
    (room / OLD).mkdir()
    known = {name: of_file(target / name) for name in away}
    try:
        _write_plan(room, known, here)
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


def _write_plan(room: Path, old: dict[str, str], new: list[str]) -> None:
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
            with suppress(FileNotFoundError):  # another process has removed it
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
        if os.path.lexists(target / name) and not is_unchanged(target / name, known):
            found.add(name)
    return sorted(found)


_TAKEN = (errno.EACCES, errno.EAGAIN)  # some file systems say the former


def lock(path: Path) -> int | None:
    """Lock a file, which is made where it is missing, and return its descriptor.

    Returns None where its last owner has just removed it: ask again. Raises BlockingIOError when
    another process has it, OSError when it cannot be made or locked.
    """
    try:
        file = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
    except FileNotFoundError:
        return None
    try:
        _take(file)
        with suppress(FileNotFoundError):
            if os.path.samestat(os.fstat(file), path.stat()):
                return file
    except BaseException:
        os.close(file)
        raise
    os.close(file)
    return None


def _take(file: int) -> None:
    """Lock an open file. Raises BlockingIOError when another process has it, else OSError."""
    if sys.platform == "win32":
        from filelock import lock_descriptor

        is_mine = lock_descriptor(file, blocking=False)
    else:
        import fcntl  # what filelock calls here, which takes 30 ms to import

        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            is_mine = True
        except OSError as error:
            if error.errno not in _TAKEN:
                raise
            is_mine = False
    if not is_mine:
        raise BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN))


def unlock(path: Path, file: int) -> None:
    """Remove a locked file, and let go of it."""
    if sys.platform == "win32":  # an open file cannot be removed there
        os.close(file)
        with suppress(OSError):  # the next one has it
            path.unlink()
    else:
        path.unlink(missing_ok=True)
        os.close(file)


SUFFIX = ".mist-partial"
_LOCK = "lock"


@contextmanager
def claim(target: Path) -> Iterator[Path]:
    """Become the only writer of a file or folder, and yield an empty private folder.

    The private folder is `.NAME.mist-partial` beside the target, from where a complete result is
    renamed into place. It is removed at the end; one left behind by a killed process is used again,
    after finishing its replacement. Missing parent folders are made, and removed again if they stay
    empty.

    target: an absolute path without links.
    Raises BlockingIOError when another process, or thread, has the claim; OSError when the
    folders cannot be made; ScenarioError when a replacement cannot be finished.
    """
    room = _room_of(target)
    above = [folder for folder in (room.parent, *room.parent.parents) if not folder.exists()]
    with ExitStack() as at_the_end:
        for folder in reversed(above):
            at_the_end.callback(_remove_if_empty, folder)
        file = _enter(room)
        at_the_end.callback(_leave, room, file)
        finish(room, target)
        _clear(room)
        yield room


@contextmanager
def telling(what: str) -> Iterator[None]:
    """Turn an operating system's error inside into a ScenarioError. what: its subject, "file x"."""
    try:
        yield
    except BlockingIOError:
        raise ScenarioError(
            f"{what}: is in use: another run is about to write it; wait for its end, or name "
            "another"
        ) from None
    except OSError as error:
        raise ScenarioError(f"{what}: cannot be written: {error.strerror or error}") from error


def without_links(path: Path) -> Path:
    """Return the absolute path that a path leads to. Raises OSError for links in a circle."""
    target = Path(os.path.realpath(path))
    if any(place.is_symlink() for place in (target, *target.parents)):
        raise OSError(errno.ELOOP, os.strerror(errno.ELOOP))
    return target


def is_room(path: Path) -> bool:
    """Tell whether a path is the private folder of a claim."""
    return path.name.endswith(SUFFIX)


def _room_of(target: Path) -> Path:
    """Return the private folder of a target.

    It is inside a folder if the parent is not ours, or on another file system, where a rename would
    fail.
    """
    if target.is_dir() and (os.path.ismount(target) or not os.access(target.parent, os.W_OK)):
        return target / SUFFIX
    return target.with_name(f".{target.name}{SUFFIX}")


def _enter(room: Path) -> int:
    """Make and lock a private folder; return the descriptor of the lock."""
    while True:
        try:
            room.mkdir(parents=True, exist_ok=True)
        except FileExistsError:
            if os.path.lexists(room) and not room.is_dir():  # a file of the user's
                raise
            continue  # its last owner has just removed it
        if room.is_symlink():  # a folder of the user's
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST))
        file = lock(room / _LOCK)
        if file is not None:
            return file


def _leave(room: Path, file: int) -> None:
    """Remove a private folder, and give the claim back."""
    with suppress(OSError):  # another process removed it
        _clear(room)
    unlock(room / _LOCK, file)
    _remove_if_empty(room)


def _clear(room: Path) -> None:
    """Empty a claim's private folder, except for rows of a stopped study.

    Files needed by a replacement stay.
    """
    if is_under_way(room):
        return
    tidy(room)
    for entry in (room / name for name in OWN):
        if entry.is_dir() and not entry.is_symlink():
            rmtree(entry, ignore_errors=True)
        else:
            entry.unlink(missing_ok=True)


def _remove_if_empty(folder: Path) -> None:
    with suppress(OSError):  # another process put something there
        folder.rmdir()


def write_text(path: Path, text: str | Iterable[str]) -> None:
    """Write UTF-8 text with unchanged line ends. text: whole, or its pieces in order."""
    if isinstance(text, str):
        path.write_text(text, encoding="utf-8", newline="\n")
        return
    with path.open("w", encoding="utf-8", newline="\n") as file:
        file.writelines(text)


def json_text(data: Mapping[str, Any]) -> str:
    """Return indented JSON; NaN becomes null, JSON's value for 'no sample'."""
    return json.dumps(_jsonable(data), indent=2) + "\n"


def _jsonable(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _jsonable(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_jsonable(item) for item in value]
    if isinstance(value, float) and not isfinite(value):
        return None
    return value


@dataclass
class OutputFile:
    """A file that no other mist-sim process may write until the claim on it ends.

    path: as the user named it. target: without links. room: private folder for the incomplete file;
        None for a device or a pipe, which is written directly. written: the file, once written.
    """

    path: Path
    target: Path
    room: Path | None
    replace: bool
    written: Path | None = None

    def write(self, text: str | bytes | Iterable[str]) -> None:
        """Write UTF-8 text or bytes; the file is there when all of it is. Raises ScenarioError.

        text: whole, or its pieces in order, of which no more than one is held at a time.
        """
        with telling(f"{self.path}"):
            if self.room is None:
                _write(self.target, text)
                self.written = self.path
                return
            new = self.room / "new"
            _write(new, text)
            _require_place(self.path, replace=self.replace)  # others may have come meanwhile
            if self.target.exists():
                new.chmod(S_IMODE(self.target.stat().st_mode))
            with put_off():
                new.replace(self.target)
                self.written = self.path


@contextmanager
def output_file(named: str | Path, *, replace: bool = False) -> Iterator[OutputFile]:
    """Claim a file for the result of long work; the old file stays until the new one is written.

    replace: also a file that is there and not empty.
    Raises ScenarioError where no file can be written, or is there already, and when it is in use.
    """
    path = user_path(named)
    is_special = path.exists() and not path.is_file()  # a device or a pipe
    _require_place(path, replace=replace)
    with ExitStack() as stack:
        target, room = path, None
        if not is_special:
            with telling(f"{path}"):
                target = without_links(path)
                room = stack.enter_context(claim(target))
        yield OutputFile(path, target, room, replace)


def write_whole(named: str | Path, text: str) -> None:
    """Write a UTF-8 text file; an existing file is replaced once all of it is written.

    Raises ScenarioError if it cannot be written.
    """
    with output_file(named, replace=True) as file:
        file.write(text)


def _write(path: Path, content: str | bytes | Iterable[str]) -> None:
    if isinstance(content, bytes):
        path.write_bytes(content)
    else:
        write_text(path, content)


def _require_place(path: Path, *, replace: bool) -> None:
    """Raise ScenarioError where no file can be written."""
    folder = Path(os.path.realpath(path)).parent if path.is_symlink() else path.parent
    if path.is_dir():
        raise ScenarioError(f"{path}: cannot be written: is a folder; name a file")
    if not folder.is_dir():
        raise ScenarioError(f"{path}: cannot be written: there is no folder {folder}; make it")
    if not os.access(path if path.exists() else folder, os.W_OK):
        raise ScenarioError(f"{path}: cannot be written: permission denied; name another file")
    if path.is_file() and path.stat().st_size and not replace:
        raise ScenarioError(f"{path}: is there already; --force replaces it, or name another file")


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
            new = self.room / NEW
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
        return self.room / JOURNAL

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
            replace(self.room, self.target, ours, names)
        except OSError as error:
            problem = f"cannot be written: {error.strerror or error}"
            if not is_under_way(self.room):
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
            _require_folder(path, target, replace=replace)
            _require_no_journal(path, room, replace=replace, resume=resume)
        yield OutputFolder(path, target, room, replace)


def is_free(named: str | Path) -> bool:
    """Tell whether a folder is new or empty, and not claimed."""
    target = Path(os.path.realpath(named))
    try:
        with claim(target) as room:
            is_new = not os.path.lexists(target) or (target.is_dir() and not _entries(target))
            return is_new and not holds_rows(room)
    except (BlockingIOError, ScenarioError):
        return False
    except OSError:
        return not os.path.lexists(target)  # why it cannot be written shows when it is claimed


def _require_folder(path: Path, target: Path, *, replace: bool) -> None:
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
    if resume or not holds_rows(room):
        return
    if not replace:
        raise ScenarioError(
            f"output folder {path}: a study that was stopped has left its results so far in "
            f"{room.name} beside it; the same command with --resume goes on with them, --force "
            "begins anew"
        )
    (room / JOURNAL).unlink()


def _entries(folder: Path) -> list[Path]:
    """Return the entries of a folder, without those of a claim."""
    return [entry for entry in folder.iterdir() if not is_room(entry)]


def _free_name(folder: Path, name: str) -> Path:
    """Return the first of NAME-2, NAME-3, ... that a folder does not hold."""
    places = (folder / f"{name}-{number}" for number in count(2))
    return next(place for place in places if not os.path.lexists(place))
