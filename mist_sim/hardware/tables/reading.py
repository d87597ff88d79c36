"""Reads columns of numbers, and arranges measured rows as full grids."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from mist_sim.errors import ScenarioError, did_you_mean
from mist_sim.hardware.interpolation.grids import Array, resampled

if TYPE_CHECKING:
    import pandas as pd


def read_columns(
    path: Path,
    numbers: Sequence[str],
    words: Sequence[str] = (),
    *,
    optional: Sequence[str] = (),
    num_notes: int = 0,
) -> pd.DataFrame:
    """Return columns of a CSV file; the index is the line of each row.

    numbers: columns that must hold finite numbers. words: other columns.
    optional: columns of finite numbers that may be missing.
    num_notes: lines before the header.
    Raises ScenarioError that names the file and the missing column or the line.
    """
    import pandas as pd

    try:
        frame = pd.read_csv(path, skip_blank_lines=False, skiprows=num_notes, low_memory=False)
    except FileNotFoundError:
        raise ScenarioError(f"{path}: no such file") from None
    except OSError as error:
        raise ScenarioError(f"{path}: cannot be read: {error.strerror or error}") from None
    except (ValueError, pd.errors.ParserError) as error:
        raise ScenarioError(f"{path}: not a CSV table: {error}") from None
    frame.columns = frame.columns.str.strip()
    frame.index = pd.RangeIndex(num_notes + 2, num_notes + len(frame) + 2)
    numbers = [*numbers, *(name for name in optional if name in frame.columns)]
    return checked(frame, numbers, words, str(path), "line")


def checked(
    frame: pd.DataFrame, numbers: Sequence[str], words: Sequence[str], where: str, unit: str
) -> pd.DataFrame:
    """Return the columns asked for, with numbers as numbers; see `read_columns`."""
    import pandas as pd

    for name in (*numbers, *words):
        if name not in frame.columns:
            hint = did_you_mean(name, map(str, frame.columns))
            raise ScenarioError(
                f"{where}: no column {name!r}{hint} The file has "
                f"{', '.join(map(str, frame.columns))}; needed are {', '.join((*numbers, *words))}"
            )
    frame = frame[[*numbers, *words]].dropna(how="all")
    if frame.empty:
        raise ScenarioError(f"{where}: has no rows")
    for name in numbers:
        values = pd.to_numeric(frame[name], errors="coerce").astype(float)
        wrong = ~np.isfinite(values) | (values < 0)
        if wrong.any():
            line = frame.index[wrong][0]
            found = frame.loc[line, name]
            raise ScenarioError(
                f"{where}: {unit} {line}: {name} must be a number >= 0, got {found!r}"
            )
        frame = frame.assign(**{name: values})
    return frame


def curve(frame: pd.DataFrame, by: str, value: str) -> tuple[Array, Array]:
    """Return the points and median values of a column by another."""
    medians = frame.groupby(by)[value].median()
    return medians.index.to_numpy(float), medians.to_numpy(float)


def full_grid(frame: pd.DataFrame, axes: Sequence[str], value: str) -> tuple[list[Array], Array]:
    """Arrange rows as a full grid over several columns; repeated points count as their median.

    Where a value of one axis comes with fewer points along the later axes than others do, what
    lies between and beyond its points is interpolated as in a run (see `grids.Axis`).
    Returns the points of each axis and the values.
    """
    medians = frame.groupby(list(axes))[value].median()  # sorted by the axes
    columns = [medians.index.get_level_values(axis).to_numpy(float) for axis in axes]
    points = [np.unique(column) for column in columns]
    return points, _filled(columns, medians.to_numpy(float), points)


def _filled(columns: Sequence[Array], values: Array, points: Sequence[Array]) -> Array:
    """Return sorted rows as values on the grid of all points."""
    if len(columns) > 1:
        own, starts = np.unique(columns[0], return_index=True)
        bounds = zip(starts, [*starts[1:], len(values)], strict=True)
        slices = [
            _filled([column[a:b] for column in columns[1:]], values[a:b], points[1:])
            for a, b in bounds
        ]
        values = np.stack(slices)
    else:
        own = columns[0]
    return values if len(own) == len(points[0]) else resampled(values, own, points[0], 0)
