"""Whole files, as bytes or text, with a limit on their length."""

from __future__ import annotations

import bz2
import gzip
import lzma
import stat
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import IO, Any

from mist_sim.bounds import SPEC_BYTES
from mist_sim.errors import ScenarioError, cut

_PACKED: Mapping[str, Callable[..., Any]] = {
    ".gz": gzip.open,
    ".bz2": bz2.open,
    ".xz": lzma.open,
}
_MOST_ENTRIES = 2_000  # files of a folder to consider for a suggestion
_LONGEST = 1_000  # characters of a path that is no file
_ADVICE = "is it another file?"


def is_there(path: Path) -> bool:
    """Tell whether a path exists; an impossible path does not."""
    try:
        return path.exists()
    except (OSError, ValueError):
        return False


def names_in(folder: Path) -> list[str]:
    """Return the names in a folder; empty if it is not a readable folder."""
    try:
        return [entry.name for entry in islice(folder.iterdir(), _MOST_ENTRIES)]
    except OSError:
        return []


def content_of(path: Path, most_bytes: int, advice: str = _ADVICE) -> bytes:
    """Return the bytes of a file, unpacked if its name ends in .gz, .bz2 or .xz.

    most_bytes: limit of its length. advice: remedy for a longer file.
    Raises ScenarioError unless it is an ordinary, readable file within the limit.
    """
    with opened(path) as file:
        content: bytes = file.read(most_bytes + 1)
    if len(content) > most_bytes:
        raise ScenarioError(f"{path}: must have <= {most_bytes} bytes; {advice}")
    return content


def text_of(path: Path, most_bytes: int = SPEC_BYTES, advice: str = _ADVICE) -> str:
    """Return the text of a file; see `content_of`. Raises ScenarioError unless it is UTF-8."""
    try:
        return content_of(path, most_bytes, advice).decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise ScenarioError(f"{path}: not a UTF-8 text file: {error.reason}") from None


@contextmanager
def opened(path: Path) -> Iterator[IO[bytes]]:
    """Open an ordinary file to read its bytes.

    Raises ScenarioError where it is missing, is something else (a pipe would be waited for, a
    device has no end), or cannot be read or unpacked.
    """
    try:
        check_ordinary(path)
        with _PACKED.get(path.suffix, open)(path, "rb") as file:
            yield file
    except FileNotFoundError:
        raise ScenarioError(f"{cut(str(path), _LONGEST)}: no such file") from None
    except (OSError, EOFError, lzma.LZMAError, ValueError) as error:
        if isinstance(error, ScenarioError):
            raise
        reason = getattr(error, "strerror", None) or error
        raise ScenarioError(f"{cut(str(path), _LONGEST)}: cannot be read: {reason}") from None


def check_ordinary(path: Path) -> None:
    """Raise ScenarioError for a path that is no file, OSError for a missing one."""
    mode = path.stat().st_mode
    if stat.S_ISDIR(mode):
        raise ScenarioError(f"{path}: is a folder, and must be a file")
    if not stat.S_ISREG(mode):
        raise ScenarioError(f"{path}: must be an ordinary file, not a pipe or a device")
