"""The folder of results: checked before the run, filled after it, and never left half full."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from shutil import rmtree
from typing import TYPE_CHECKING

from mist_sim.errors import ScenarioError

if TYPE_CHECKING:
    from mist_sim.metrics import Result

_PARTIAL = ".mist-partial"


class ResultsFolder:
    """A new or empty folder that takes the files of a run all together."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def fill(self, result: Result) -> list[str]:
        """Write a run's files and return their names, sorted."""
        partial = self.path / _PARTIAL
        try:
            result.save(partial)
            names = sorted(file.name for file in partial.iterdir())
            for name in names:
                (partial / name).replace(self.path / name)
        except OSError as error:
            raise ScenarioError(
                f"output folder {self.path}: cannot be written: {error.strerror or error}"
            ) from error
        partial.rmdir()
        return names


@contextmanager
def results_folder(path: Path) -> Iterator[ResultsFolder]:
    """Make sure that a folder can take results, and clean up when the run fails.

    Raises ScenarioError unless the folder is new or empty and can be written. When the block
    raises, folders that were made here are removed again.
    """
    from mist_sim.metrics.result import prepare_folder

    if path.exists() and not path.is_dir():
        raise ScenarioError(f"output folder {path}: is a file; name a folder")
    missing = [folder for folder in (path, *path.parents) if not folder.exists()]
    prepare_folder(path)
    try:
        yield ResultsFolder(path)
    except BaseException:
        _empty(path)
        for folder in missing:
            folder.rmdir()
        raise


def _empty(path: Path) -> None:
    """Remove what a failed run wrote into a folder that was empty before."""
    for entry in path.iterdir():
        if entry.is_dir():
            rmtree(entry)
        else:
            entry.unlink()
