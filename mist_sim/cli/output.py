"""The folder of results: checked before the run, filled after it, and never left half full."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from shutil import rmtree


@contextmanager
def results_folder(path: Path) -> Iterator[Path]:
    """Make sure that a folder can take results, and clean up when the run fails.

    Raises ScenarioError unless the folder is new or empty and can be written. When the block
    raises, folders that were made here are removed again.
    """
    from mist_sim.metrics.output.folders import prepare_folder

    missing = [folder for folder in (path, *path.parents) if not folder.exists()]
    prepare_folder(path)
    try:
        yield path
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
