"""Findings of simulations: they are shown, and saved as files."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Any, Protocol

from mist_sim.core.result_warnings import ResultWarning, merged
from mist_sim.errors import ScenarioError
from mist_sim.output import output_file, output_folder


class Drawn(Protocol):
    """A picture, which a notebook draws; of `report.pictures.picture.Picture`."""

    def figure(self) -> Any:
        """Return it as a figure of Matplotlib."""

    def save(self, path: str | Path, *, replace: bool = False) -> Path:
        """Write it as PNG, SVG or PDF, as the suffix of the file says."""


class Presenter(Protocol):
    """Shows findings of one kind; `report.presenters` hands it to the code that makes findings."""

    def show(self, found: Any, /) -> None:
        """Print them."""

    def as_html(self, found: Any, /) -> str:
        """Return the HTML for a notebook."""

    def report(self, found: Any, /) -> str:
        """Return a report of them as the text of an HTML file."""

    def plot(self, found: Any, name: str, /) -> Drawn:
        """Return a picture of them."""


_NO_PRESENTER = "these findings were given no presenter, so there is no report and no picture"


@dataclass(frozen=True)
class OneLine:
    """Shows findings as `print` does, if no other presenter was set."""

    def show(self, found: Any) -> None:
        """Print the findings in one line."""
        print(found)  # noqa: T201 - on demand

    def as_html(self, found: Any) -> str:
        """Return the same line as HTML."""
        return f"<pre>{escape(repr(found))}</pre>"

    def report(self, found: Any) -> str:
        """Raise ScenarioError: no presenter was set that makes pages."""
        raise ScenarioError(_NO_PRESENTER)

    def plot(self, found: Any, name: str) -> Drawn:
        """Raise ScenarioError: no presenter was set that draws."""
        raise ScenarioError(_NO_PRESENTER)


ONE_LINE = OneLine()


class UnansweredError(ScenarioError):
    """A search without an answer, with the reason.

    warnings: those of the figures that decided; tracebacks have them as notes. found: all that was
    tried; None: it has no files.
    """

    def __init__(
        self, reason: str, warnings: Sequence[ResultWarning], found: Findings | None = None
    ) -> None:
        super().__init__(reason)
        self.warnings = merged(warnings)
        for each in self.warnings:
            self.add_note(f"warning: {each}")
        self.found = found


class Findings(ABC):
    """Findings of one run, or of a search of many.

    A subclass says which files it has, its data and its warnings. These are part of the summary,
    from which every format is made.

    presenter: shows it.
    """

    presenter: Presenter = ONE_LINE

    @property
    @abstractmethod
    def data(self) -> Mapping[str, Any]:
        """Everything but the warnings as plain data."""

    @property
    @abstractmethod
    def warnings(self) -> Sequence[ResultWarning]:
        """What the reader of the figures has to know; `KINDS` has all kinds."""

    @property
    def summary(self) -> Mapping[str, Any]:
        """Everything as plain data."""
        return {**self.data, "warnings": [each.data for each in merged(self.warnings)]}

    @abstractmethod
    def write_files(self, folder: Path) -> None:
        """Write the files of `save` into an existing empty folder."""

    def show(self) -> None:
        """Print the tables that the `mist` command for it prints."""
        self.presenter.show(self)

    def _repr_html_(self) -> str:
        """Return the HTML for a notebook: the same tables."""
        return self.presenter.as_html(self)

    def plot(self, name: str) -> Drawn:
        """Return a picture which a notebook draws, and `save` writes.

        name: of a run, one of `report.pictures.PICTURES`, such as "latency"; of other findings, one
            of their report.
        Raises ScenarioError for a name that there is not, and without Matplotlib.
        """
        return self.presenter.plot(self, name)

    def report(self, path: str | Path, *, replace: bool = False) -> Path:
        """Write a report as one HTML file that needs no network; return its path.

        replace: whether to overwrite an existing file.
        Raises ScenarioError if the file cannot be written, and without Jinja2 or Matplotlib.
        """
        with output_file(path, replace=replace) as file:
            file.write(self.presenter.report(self))
        return Path(path)

    def save(self, folder: str | Path, *, replace: bool = False) -> Path:
        """Write the files of `write_files` into a new or empty folder; return it.

        The same findings write the same bytes. replace: remove earlier results in the folder; other
        files are kept. Raises ScenarioError when the folder cannot be written, holds files, or is
        in use.
        """
        with output_folder(folder, replace=replace) as place:
            place.fill(self.write_files)
        return place.path
