"""The right to write a file or folder, for one process at a time, and a private folder."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from shutil import rmtree

from mist_sim.errors import ScenarioError
from mist_sim.output import journals, replacement
from mist_sim.output.locks import lock, unlock

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
        replacement.finish(room, target)
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
            if os.path.lexists(room) and not room.is_dir():  # somebody's file
                raise
            continue  # its last owner has just removed it
        if room.is_symlink():  # somebody's folder
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST))
        file = lock(room / _LOCK)
        if file is not None:
            return file


def _leave(room: Path, file: int) -> None:
    """Remove a private folder, and give the claim back."""
    with suppress(OSError):  # somebody removed it
        _clear(room)
    unlock(room / _LOCK, file)
    _remove_if_empty(room)


def _clear(room: Path) -> None:
    """Empty a claim's private folder, except for rows of a stopped study.

    Files needed by a replacement stay.
    """
    if replacement.is_under_way(room):
        return
    journals.tidy(room)
    for entry in (room / name for name in replacement.OWN):
        if entry.is_dir() and not entry.is_symlink():
            rmtree(entry, ignore_errors=True)
        else:
            entry.unlink(missing_ok=True)


def _remove_if_empty(folder: Path) -> None:
    with suppress(OSError):  # somebody put something there
        folder.rmdir()
