"""Reads columns of numbers, and arranges measured rows as full grids."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from mist_sim.bounds import GRID_POINTS, NUMBER
from mist_sim.errors import ScenarioError, brief
from mist_sim.hardware.interpolation.grids import Array, resampled
from mist_sim.inputs.tables import as_numbers, check_columns, read_csv

if TYPE_CHECKING:
    import pandas as pd


def read_columns(
    path: Path,
    numbers: Sequence[str],
    words: Sequence[str] = (),
    *,
    optional: Sequence[str] = (),
    sparse: Sequence[str] = (),
    num_notes: int = 0,
) -> pd.DataFrame:
    """Return columns of a CSV file; the index is the line of each row.

    numbers: columns that must hold finite numbers. words: other columns.
    optional: columns of finite numbers that may be missing.
    sparse: columns as they are, which some rows leave empty; `checked` is for the other rows.
    num_notes: lines before the header.
    Raises ScenarioError that names the file and the missing column or the line.
    """
    needed = [*numbers, *words, *sparse]
    columns = [*needed, *optional]
    frame = read_csv(path, columns, needed=needed, words=words, num_notes=num_notes)
    numbers = [*numbers, *(name for name in optional if name in frame.columns)]
    return checked(frame, numbers, words, str(path), "line", sparse)


def checked(
    frame: pd.DataFrame,
    numbers: Sequence[str],
    words: Sequence[str],
    where: str,
    unit: str,
    sparse: Sequence[str] = (),
) -> pd.DataFrame:
    """Return the columns asked for, with numbers as numbers; see `read_columns`."""
    needed = [*numbers, *words, *sparse]
    check_columns([*map(str, frame.columns)], needed, where)
    frame = frame[needed].dropna(how="all")
    if frame.empty:
        raise ScenarioError(f"{where}: has no rows")
    frame = frame.assign(**{name: frame[name].fillna("").astype(str) for name in words})
    for name in numbers:
        values = as_numbers(frame[name])
        wrong = ~np.isfinite(values) | (values < 0)
        if wrong.any():
            line = frame.index[wrong][0]
            raise ScenarioError(
                f"{where}: {unit} {line}: {name} must be a number >= 0, "
                f"got {_shown(frame.loc[line, name])}"
            )
        beyond = (values > 0) & ~values.between(*NUMBER)
        if beyond.any():
            line = frame.index[beyond][0]
            raise ScenarioError(
                f"{where}: {unit} {line}: {name} must be 0 or from {NUMBER[0]:g} to {NUMBER[1]:g}, "
                f"got {values[line]:g}"
            )
        frame = frame.assign(**{name: values})
    return frame


def _shown(cell: Any) -> str:
    """Return a cell as it stands in the file."""
    plain = cell.item() if isinstance(cell, np.generic) else cell
    is_empty = plain is None or (isinstance(plain, float) and math.isnan(plain))
    return "an empty cell" if is_empty else brief(plain)


def curve(frame: pd.DataFrame, by: str, value: str) -> tuple[Array, Array]:
    """Return the points and median values of a column by another."""
    medians = frame.groupby(by)[value].median()
    return medians.index.to_numpy(float), medians.to_numpy(float)


def measured_grid(
    frame: pd.DataFrame, axes: Sequence[str], value: str, where: str
) -> tuple[list[Array], Array, list[tuple[float, ...]]]:
    """Arrange rows as a grid that rises along all axes and keeps measured values exactly.

    Cells without a row, such as 64 experts that two tokens cannot use, are filled as in
    `full_grid`, and kept between the measured cells below and above them. Measured cells that fall
    with more work are noise: they are replaced by the isotonic fit with the smallest largest
    change. Returns the points of each axis, the values, and the places of the changed cells. Raises
    ScenarioError as `full_grid` does.
    """
    points, filled = full_grid(frame, axes, value, where)
    medians = frame.groupby(list(axes))[value].median()
    columns = [medians.index.get_level_values(axis).to_numpy(float) for axis in axes]
    own = tuple(np.searchsorted(at, column) for at, column in zip(points, columns, strict=True))
    measured = np.full(filled.shape, np.nan)
    measured[own] = medians.to_numpy(float)
    below = _running(np.maximum, np.where(np.isnan(measured), -np.inf, measured))
    above = np.where(np.isnan(measured), np.inf, measured)
    above = np.flip(_running(np.minimum, np.flip(above)))
    kept = np.where(np.isnan(measured), np.clip(filled, below, np.maximum(below, above)), measured)
    moved = ~np.isnan(measured) & (below != above)
    kept[moved] = (below[moved] + above[moved]) / 2
    values = _running(np.maximum, kept)
    places = zip(*(column[moved[own]] for column in columns), strict=True)
    return points, values, [tuple(map(float, place)) for place in places]


def _running(ufunc: np.ufunc, values: Array) -> Array:
    """Return the largest or smallest of each cell and all before it along every axis."""
    for dimension in range(values.ndim):
        values = ufunc.accumulate(values, axis=dimension)
    return values


def full_grid(
    frame: pd.DataFrame, axes: Sequence[str], value: str, where: str
) -> tuple[list[Array], Array]:
    """Arrange rows as a full grid over several columns; repeated points count as their median.

    If a value of one axis has fewer points along the later axes than others, the missing ones are
    interpolated and extrapolated as in a run (see `grids.Axis`). Returns the points of each axis
    and the values. Raises ScenarioError, with the file in `where`, for no rows, and for more points
    than a grid may have.
    """
    if frame.empty:
        raise ScenarioError(f"{where}: has no rows to interpolate {value} by {' and '.join(axes)}")
    num_points = math.prod(frame[axis].nunique() for axis in axes)
    if num_points > GRID_POINTS:
        raise ScenarioError(
            f"{where}: {', '.join(axes)} must make a grid of <= {GRID_POINTS} points, got "
            f"{num_points}; measure at the same values of one for all of the others"
        )
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
