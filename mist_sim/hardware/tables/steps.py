"""Measured engine steps, one a row: the form of our own, as CSV or Parquet.

Columns: num_new_tokens, num_context_tokens (of the step's prompt; 0, 0 without one), num_decodes,
context_sum (tokens that the cache holds for the decodes, in all), seconds. A CSV file may begin
with lines "# key: value" about the measurement; model, gpu and tensor_parallel_size among them are
checked.
A Parquet file has the same pairs as metadata of its schema.
"""

from __future__ import annotations

from dataclasses import replace
from io import TextIOWrapper
from itertools import islice, takewhile
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from mist_sim.errors import ScenarioError
from mist_sim.hardware.cluster import Cluster
from mist_sim.hardware.tables.base import (
    StepTables,
    check_measured,
    checked,
    full_grid,
    read_columns,
)
from mist_sim.hardware.tables.whole_steps import Grid, whole_steps
from mist_sim.inputs import lines_of, opened, read_parquet
from mist_sim.models.spec import ModelSpec

if TYPE_CHECKING:
    import pandas as pd

_MOST_NOTES = 1_000
COLUMNS = ("num_new_tokens", "num_context_tokens", "num_decodes", "context_sum", "seconds")


def read_steps(path: Path, model: ModelSpec, cluster: Cluster, subset: str | None) -> StepTables:
    """Return the tables of a file of steps."""
    where = str(path)
    rows, notes = read_rows(path)
    other_rates = check_measured(notes, model, cluster, where)
    prompts, decodes = rows["num_new_tokens"] > 0, rows["num_decodes"] > 0
    rows = rows.assign(mean=rows["context_sum"] / np.maximum(rows["num_decodes"], 1))
    for kind, chosen in (
        ("prompts alone", prompts & ~decodes),
        ("decodes alone", ~prompts & decodes),
    ):
        if not chosen.any():
            raise ScenarioError(f"{where}: has no steps of {kind}")
    axes = ("num_new_tokens", "num_decodes", "num_context_tokens", "mean")
    mixed = rows[prompts & decodes]
    tables = whole_steps(
        Grid(*full_grid(rows[~decodes], (axes[0], axes[2]), "seconds", where)),
        Grid(*full_grid(rows[~prompts], (axes[1], axes[3]), "seconds", where)),
        Grid(*full_grid(mixed, axes, "seconds", where)) if len(mixed) else None,
    )
    return replace(tables, other_rates=other_rates)


def read_rows(path: Path) -> tuple[pd.DataFrame, dict[str, str]]:
    """Return the measured steps and the notes of a file.

    Raises ScenarioError for a file that is not of the form.
    """
    return _read_parquet(path) if path.suffix == ".parquet" else _read_csv(path)


def _read_csv(path: Path) -> tuple[pd.DataFrame, dict[str, str]]:
    with opened(path) as file:
        text = TextIOWrapper(file, "utf-8", errors="replace", newline="")
        some = islice(lines_of(text, path), _MOST_NOTES)
        lines = list(takewhile(lambda line: line.startswith("#"), some))
    pairs = (line[1:].partition(":") for line in lines)
    notes = {key.strip(): value.strip() for key, _, value in pairs}
    return read_columns(path, COLUMNS, num_notes=len(lines)), notes


def _read_parquet(path: Path) -> tuple[pd.DataFrame, dict[str, str]]:
    frame, notes = read_parquet(path, COLUMNS)
    return checked(frame, COLUMNS, (), str(path), "row"), notes
