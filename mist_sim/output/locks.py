"""Locks on files that the operating system gives back when their process ends, however it ends."""

from __future__ import annotations

import errno
import os
import sys
from contextlib import suppress
from pathlib import Path

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
