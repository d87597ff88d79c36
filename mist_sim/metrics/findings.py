"""What is found by simulating: it shows itself, and is saved as files."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mist_sim.output import output_folder

if TYPE_CHECKING:
    from rich.console import RenderableType


class Findings(ABC):
    """What one run, or a search of many, has found.

    A subclass says which tables it has, and which files.
    """

    @property
    @abstractmethod
    def summary(self) -> Mapping[str, Any]:
        """Everything as plain data."""

    @abstractmethod
    def _shown(self) -> tuple[str, RenderableType]:
        """Return a title, "" for none, and the tables below it."""

    @abstractmethod
    def write_files(self, folder: Path) -> None:
        """Write what `save` does into a folder that is there and empty."""

    def show(self) -> None:
        """Print the tables that the `mist` command for it prints."""
        from mist_sim.report.elements.shown import show

        show(*self._shown())

    def _repr_html_(self) -> str:
        """Return what a notebook shows: the same tables."""
        from mist_sim.report.elements.shown import as_html

        return as_html(*self._shown())

    def save(self, folder: str | Path, *, replace: bool = False) -> Path:
        """Write the files of `write_files` into a new or empty folder; return it.

        The same findings write the same bytes.
        replace: earlier results in the folder make room; files of others stay.
        Raises ScenarioError when the folder cannot be written, holds files, or is in use.
        """
        with output_folder(folder, replace=replace) as place:
            place.fill(self.write_files)
        return place.path
