"""Findings with a table, a row a point: how they are saved."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from mist_sim.metrics.tables import Findings
from mist_sim.output import json_text, write_text

if TYPE_CHECKING:
    import pandas as pd


class Tabled(Findings):
    """Findings of many points. stem: name of their files, NAME.json and NAME.csv."""

    stem: ClassVar[str]

    @property
    @abstractmethod
    def cells(self) -> Iterable[Mapping[str, Any]]:
        """The rows of `table`, as mappings."""

    @property
    def table(self) -> pd.DataFrame:
        """A row a point; `cells` says which columns it has."""
        import pandas as pd

        return pd.DataFrame(list(self.cells))

    def write_files(self, folder: Path) -> None:
        """Write NAME.json and NAME.csv; a subclass may add others."""
        write_text(folder / f"{self.stem}.json", json_text(self.summary))
        write_csv(folder / f"{self.stem}.csv", self.table)


def write_csv(path: Path, frame: pd.DataFrame, *, index: bool = False) -> None:
    """Write a table as text, with the same bytes on every system."""
    write_text(path, frame.to_csv(index=index, lineterminator="\n"))
