"""Downloads of traces: they resume where they stopped, and leave no partial files."""

from __future__ import annotations

import hashlib
import shutil
from collections.abc import Callable
from http.client import HTTPException
from pathlib import Path
from typing import IO, Any
from urllib.error import HTTPError, URLError
from urllib.request import Request, urlopen

from mist_sim.errors import ScenarioError, brief, cut

_CHUNK = 1 << 18  # bytes
_PATIENCE = 60.0  # s without a byte
_POINTER = b"version https://git-lfs.github.com/spec/"
_PAGE = (b"<!doctype html", b"<html")
_PARTIAL, _DONE, _NOT_SATISFIABLE = 206, 200, 416
_SCHEMES = ("https://", "http://", "file://")

Progress = Callable[[int, int | None], None]
"""Called with the bytes that are there, and all that there will be, where it is known."""


def fetch(url: str, target: Path, *, sha256: str = "", progress: Progress | None = None) -> str:
    """Download a file to `target`, which must not exist yet; return its SHA-256.

    The received part is kept in `target`.part until it is complete, and a later call resumes it if
    the server can. sha256: the expected checksum; empty: any.

    Raises ScenarioError for a URL that cannot be read, a file of another checksum, a Git LFS
    pointer or a page of HTML in its place; a .part of these is removed.
    """
    if not url.startswith(_SCHEMES):
        raise ScenarioError(f"{cut(url, 200)}: a URL must begin with {', '.join(_SCHEMES)}")
    part = target.with_name(f"{target.name}.part")
    try:
        _download(url, part, progress)
    except (OSError, HTTPException, ValueError) as error:
        if isinstance(error, HTTPError):
            error.close()
        kept = f"; {part} keeps what has come, call again to go on" if _size(part) else ""
        raise ScenarioError(f"{cut(url, 200)}: cannot be read: {_reason(error)}{kept}") from None
    try:
        _check_kind(url, part)
        found = _digest(part)
        if sha256 and found != sha256.lower():
            raise ScenarioError(
                f"{cut(url, 200)}: sha256 must be {sha256}, got {found}; the file has changed or "
                "was damaged on the way: call again, or give the URL itself to take it as it is"
            )
    except ScenarioError:
        part.unlink()
        raise
    shutil.move(part, target)
    return found


def _download(url: str, part: Path, progress: Progress | None) -> None:
    """Append the missing bytes to the part, or begin again if the server cannot resume."""
    have = _size(part)
    headers = {"Range": f"bytes={have}-"} if have else {}
    try:
        answer: Any = urlopen(Request(url, headers=headers), timeout=_PATIENCE)  # noqa: S310
    except HTTPError as error:
        if error.code != _NOT_SATISFIABLE or not have:
            raise
        error.close()
        answer = urlopen(url, timeout=_PATIENCE)  # noqa: S310 - the part is no beginning of it
    with answer:
        goes_on = have > 0 and getattr(answer, "status", _DONE) == _PARTIAL
        length = answer.headers.get("Content-Length")
        done = have if goes_on else 0
        total = done + int(length) if length else None
        with part.open("ab" if goes_on else "wb") as file:
            done = _copy(answer, file, done, total, progress)
    if total is not None and done != total:
        raise OSError(f"the connection ended after {done} of {total} bytes")


def _copy(
    answer: Any, file: IO[bytes], done: int, total: int | None, progress: Progress | None
) -> int:
    while chunk := answer.read(_CHUNK):
        file.write(chunk)
        done += len(chunk)
        if progress is not None:
            progress(done, total)
    return done


def _check_kind(url: str, part: Path) -> None:
    """Raise ScenarioError for pages and pointers that servers send instead of a file."""
    with part.open("rb") as file:
        begin = file.read(512)
    if begin.startswith(_POINTER):
        raise ScenarioError(
            f"{cut(url, 200)}: is a Git LFS pointer, not the file itself; download it with git lfs "
            "pull, or from the page where the repository offers it"
        )
    if begin.lstrip().lower().startswith(_PAGE):
        raise ScenarioError(
            f"{cut(url, 200)}: is a page of HTML, not a trace; take the link of the file itself"
        )
    if not begin:
        raise ScenarioError(f"{cut(url, 200)}: is empty; take the link of the file itself")


def _digest(part: Path) -> str:
    with part.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _size(part: Path) -> int:
    return part.stat().st_size if part.exists() else 0


def _reason(error: Exception) -> str:
    if isinstance(error, URLError) and not isinstance(error, HTTPError):
        error = error.reason if isinstance(error.reason, Exception) else error
    if isinstance(error, HTTPError):
        return f"status {error.code}"
    return brief(str(getattr(error, "strerror", None) or error) or type(error).__name__, 200)
