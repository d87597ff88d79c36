"""Folders of results: checked before they are filled, and filled whole or not at all."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from shutil import rmtree

from mist_sim.errors import ScenarioError
from mist_sim.user_paths import user_path


def prepare_folder(folder: str | Path) -> Path:
    """Make a folder for results and return it.

    Raises ScenarioError unless it is new or empty and can be written.
    """
    target = user_path(folder)
    if target.exists() and not target.is_dir():
        raise ScenarioError(f"output folder {target}: is a file; name a folder")
    try:
        target.mkdir(parents=True, exist_ok=True)
        occupied = any(target.iterdir())
        probe = target / ".mist-probe"
        probe.touch()
        probe.unlink()
    except OSError as error:
        raise _unwritable(target, error) from error
    if occupied:
        raise ScenarioError(f"output folder {target}: is not empty; choose another or clear it")
    return target


def fill_folder(folder: str | Path, write: Callable[[Path], None]) -> Path:
    """Let `write` put files into a new or empty folder and return it.

    They appear all together, or not at all. Raises ScenarioError when the folder cannot be
    written or holds files.
    """
    target = prepare_folder(folder)
    partial = target / ".mist-partial"
    try:
        partial.mkdir()
        write(partial)
        for file in sorted(partial.iterdir()):
            file.replace(target / file.name)
        partial.rmdir()
    except OSError as error:
        raise _unwritable(target, error) from error
    finally:
        rmtree(partial, ignore_errors=True)
    return target


def _unwritable(target: Path, error: OSError) -> ScenarioError:
    reason = error.strerror or error
    return ScenarioError(f"output folder {target}: cannot be written: {reason}")
