"""Findings with a table: how they are saved."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, TypeAlias

from mist_sim.metrics.tables import Findings
from mist_sim.output import json_text, write_text

if TYPE_CHECKING:
    import pandas as pd

    from mist_sim.report.pictures.picture import Picture

Content: TypeAlias = "str | pd.DataFrame | Callable[[], Picture]"
"""Of a file: text, a table, or what makes its picture."""


class Tabled(Findings):
    """Findings of many points, as all searches and studies have them.

    stem: name of NAME.json, with everything. sheet: name of NAME.csv, with `table`; "": the same.
    title: what was simulated.
    """

    stem: ClassVar[str]
    sheet: ClassVar[str] = ""
    title: str

    @property
    @abstractmethod
    def cells(self) -> Iterable[Mapping[str, Any]]:
        """The rows of `table`, as mappings."""

    @property
    def table(self) -> pd.DataFrame:
        """A row a point; `cells` says which columns it has."""
        import pandas as pd

        return pd.DataFrame(list(self.cells))

    @property
    def files(self) -> Mapping[str, Content]:
        """The files beside NAME.json and NAME.csv, by name."""
        return {}

    def write_files(self, folder: Path) -> None:
        """Write NAME.json, NAME.csv and `files`; pictures where Matplotlib is installed."""
        write_text(folder / f"{self.stem}.json", json_text(self.summary))
        for name, content in {f"{self.sheet or self.stem}.csv": self.table, **self.files}.items():
            self._write(folder / name, content)

    def _write(self, path: Path, content: Content) -> None:
        if isinstance(content, str):
            write_text(path, content)
        elif callable(content):
            from mist_sim.report.pictures.picture import write_png

            write_png(content, path, self.warnings, self.title)
        elif path.suffix == ".csv":  # the same bytes on every system
            named = content.index.name is not None
            write_text(path, content.to_csv(index=named, lineterminator="\n"))
        else:
            content.to_parquet(path, index=False)
