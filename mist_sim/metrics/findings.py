"""Findings of simulations: they are shown, and saved as files."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Any, Protocol

from mist_sim.output import output_folder


class Presenter(Protocol):
    """Shows findings of one kind; what makes these gives it to them (`report.presenters`)."""

    def show(self, found: Any, /) -> None:
        """Print them."""

    def as_html(self, found: Any, /) -> str:
        """Return what a notebook shows of them."""


@dataclass(frozen=True)
class OneLine:
    """Shows findings as `print` does, for those to which nothing else was given."""

    def show(self, found: Any) -> None:
        print(found)  # noqa: T201 - on demand

    def as_html(self, found: Any) -> str:
        return f"<pre>{escape(repr(found))}</pre>"


ONE_LINE = OneLine()


class Findings(ABC):
    """Findings of one run, or of a search of many.

    A subclass says which files it has.

    presenter: shows it.
    """

    presenter: Presenter = ONE_LINE

    @property
    @abstractmethod
    def summary(self) -> Mapping[str, Any]:
        """Everything as plain data."""

    @abstractmethod
    def write_files(self, folder: Path) -> None:
        """Write what `save` does into a folder that is there and empty."""

    def show(self) -> None:
        """Print the tables that the `mist` command for it prints."""
        self.presenter.show(self)

    def _repr_html_(self) -> str:
        """Return what a notebook shows: the same tables."""
        return self.presenter.as_html(self)

    def save(self, folder: str | Path, *, replace: bool = False) -> Path:
        """Write the files of `write_files` into a new or empty folder; return it.

        The same findings write the same bytes.
        replace: earlier results in the folder make room; files of others stay.
        Raises ScenarioError when the folder cannot be written, holds files, or is in use.
        """
        with output_folder(folder, replace=replace) as place:
            place.fill(self.write_files)
        return place.path
