"""Paths as users write them, and files that are written there whole or not at all."""

from __future__ import annotations

import os
from pathlib import Path

from mist_sim.bounds import SPEC_BYTES
from mist_sim.errors import ScenarioError


def user_path(text: str | Path) -> Path:
    """Return a path with `~` expanded, one that can be asked whether it exists.

    Raises ScenarioError for the home folder of an unknown user and for impossible names.
    """
    try:
        path = Path(text).expanduser()
        path.exists()
    except (OSError, RuntimeError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise ScenarioError(f"no path can be {str(text)[:80]!r}: {reason}") from None
    return path


def read_spec(path: Path) -> str:
    """Return the text of a model's config or a GPU's spec.

    Raises ScenarioError unless it can be read as UTF-8, and for one longer than `SPEC_BYTES`.
    """
    try:
        with path.open("rb") as file:
            content = file.read(SPEC_BYTES + 1)
    except OSError as error:
        raise ScenarioError(f"{path}: cannot be read: {error.strerror}") from None
    if len(content) > SPEC_BYTES:
        raise ScenarioError(f"{path}: must have <= {SPEC_BYTES} bytes; is it another file?")
    try:
        return content.decode("utf-8")
    except UnicodeDecodeError as error:
        raise ScenarioError(f"{path}: not a UTF-8 text file: {error.reason}") from None


def require_writable(named: Path) -> Path:
    """Return the path of a file to write, with `~` expanded.

    Raises ScenarioError where no file can be written; asked before hours of work for it.
    """
    path = user_path(named)
    folder = path.parent
    if path.is_dir():
        raise ScenarioError(f"{path}: cannot be written: is a folder; name a file")
    if not folder.is_dir():
        raise ScenarioError(f"{path}: cannot be written: there is no folder {folder}; make it")
    if not os.access(path if path.exists() else folder, os.W_OK):
        raise ScenarioError(f"{path}: cannot be written: permission denied; name another file")
    return path


def write_whole(named: Path, text: str) -> None:
    """Write a file of UTF-8 text; one that was there is replaced when all of it is written.

    Raises ScenarioError when that cannot be done.
    """
    path = require_writable(named)
    if path.exists() and not path.is_file():  # a device or a pipe
        _write(path, text, path)
        return
    partial = path.with_name(f".{path.name}.partial")
    try:
        _write(partial, text, path)
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)


def _write(path: Path, text: str, named: Path) -> None:
    try:
        path.write_text(text, encoding="utf-8", newline="\n")
    except OSError as error:
        raise ScenarioError(f"{named}: cannot be written: {error.strerror or error}") from None
