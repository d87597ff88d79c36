"""The folder of a run that was saved: its summary, tables and scenario, read when they are used."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mist_sim.errors import ScenarioError
from mist_sim.inputs import object_in, read_parquet, text_of

if TYPE_CHECKING:
    import pandas as pd

_SUMMARY_BYTES = 64 * 2**20  # more than any summary has
_ADVICE = (
    "name a folder that mist run --out wrote, without replications or --vary; "
    "mist report draws others"
)


@dataclass(frozen=True)
class RunFolder:
    """Reads the files of `Result.save`.

    Raises ScenarioError for a folder without the `summary.json` of one run.
    """

    path: Path

    def __post_init__(self) -> None:
        if not (self.path / "summary.json").is_file():
            raise ScenarioError(f"{self.path}: has no summary.json; {_ADVICE}")
        if not {"completed", "duration"} <= self.summary.keys() or "replications" in self.summary:
            raise ScenarioError(f"{self.path / 'summary.json'}: is not of one run; {_ADVICE}")

    @cached_property
    def summary(self) -> dict[str, Any]:
        """The metrics of the whole run; None where a figure has no sample.

        Raises ScenarioError for a file that is no summary.
        """
        return object_in(self.path / "summary.json", _SUMMARY_BYTES)

    @cached_property
    def scenario(self) -> str | None:
        """The resolved scenario as YAML text; None if the run came from no scenario."""
        file = self.path / "scenario.resolved.yaml"
        return text_of(file, _SUMMARY_BYTES) if file.is_file() else None

    def table(self, name: str) -> pd.DataFrame:
        """Return a saved table.

        Raises ScenarioError if the table was not saved or its file is damaged.
        """
        if not self.has(name):
            raise ScenarioError(
                f"{self.path}: has no {name}.parquet, so this was not recorded; run the scenario "
                f"again with --tables that name it, such as --tables requests,{name}"
            )
        return read_parquet(self.path / f"{name}.parquet")[0]

    def has(self, name: str) -> bool:
        """Tell whether a table was saved."""
        return (self.path / f"{name}.parquet").is_file()
