"""Measured seconds of batches in place of a model of the hardware (MIST Table II)."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from mist_sim.errors import ScenarioError
from mist_sim.inputs.tables import as_numbers, read_csv
from mist_sim.user_paths import user_path

if TYPE_CHECKING:
    import pandas as pd

_SIZE, _SECONDS, _PROBES = "batch_size", "seconds", "num_probes"
Curve = tuple[tuple[float, ...], tuple[float, ...]]


@dataclass(frozen=True, slots=True, kw_only=True)
class LatencyTable:
    """Seconds of a batch by its size, from a CSV file with a header.

    path: a file with the columns batch_size and seconds, and num_probes if the probes were varied.
    num_probes: lists that a query scans; required if the file has the column.

    Between rows the seconds are linear in the size, and in the probes. There is no extrapolation: a
    table begins at batch_size 1, and reaches the client's largest batch.
    Raises ScenarioError for any other file, ValueError for other parameters.
    """

    path: str
    num_probes: int | None = None
    _curve: Curve = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        curves = _read(user_path(self.path))
        object.__setattr__(self, "_curve", self._at(curves))

    @property
    def largest_batch(self) -> int:
        """The largest batch that it has a row for."""
        return int(self._curve[0][-1])

    def seconds(self, batch_size: int) -> float:
        """Return how long a batch of so many takes."""
        return float(np.interp(batch_size, *self._curve))

    def _at(self, curves: dict[float, Curve]) -> Curve:
        """Return the seconds by size for the probes that are asked for."""
        probes, known = self.num_probes, sorted(curves)
        if (probes is None) != (known == [0]):
            rule = "be left out" if probes is not None else "be given"
            has = "no column" if probes is not None else "a column"
            raise ValueError(f"num_probes must {rule}, since {self.path} has {has} num_probes")
        if probes is None:
            return curves[0]
        if not known[0] <= probes <= known[-1]:
            raise ValueError(
                f"num_probes must be from {known[0]:g} to {known[-1]:g}, which {self.path} has, "
                f"got {probes}"
            )
        above = next(value for value in known if value >= probes)
        below = max(value for value in known if value <= probes)
        return _between(curves[below], curves[above], (probes - below) / ((above - below) or 1))


def _between(low: Curve, high: Curve, share: float) -> Curve:
    """Return the curve at a share of the way from one to another, as far as both go."""
    end = min(low[0][-1], high[0][-1])
    sizes = sorted(size for size in {*low[0], *high[0]} if size <= end)
    first, second = np.interp(sizes, *low), np.interp(sizes, *high)
    return tuple(sizes), tuple((first + share * (second - first)).tolist())


def _read(path: Path) -> dict[float, Curve]:
    """Return sizes and seconds by probes; all by 0 where the file has no such column."""
    rows = read_csv(path, (_SIZE, _SECONDS, _PROBES), needed=(_SIZE, _SECONDS))
    for name in rows.columns:
        least = 0 if name == _SECONDS else 1
        values = rows[name] = as_numbers(rows[name])
        if name != _SECONDS:
            values = values.where(values % 1 == 0)
        wrong = rows.index[~(values >= least) | (values == np.inf)]
        if len(wrong):
            what = f"a number >= {least}" if name == _SECONDS else f"a whole number >= {least}"
            raise ScenarioError(f"{path}:{wrong[0]}: {name} must be {what}")
    if _PROBES not in rows:
        rows[_PROBES] = 0
    if not len(rows):
        raise ScenarioError(f"{path}: must have a row with batch_size 1, got no rows")
    numbers: list[float] = rows[_PROBES].unique().tolist()
    return {probes: _curve(path, rows[rows[_PROBES] == probes]) for probes in numbers}


def _curve(path: Path, rows: pd.DataFrame) -> Curve:
    rows = rows.sort_values(_SIZE)
    sizes, seconds = rows[_SIZE].tolist(), rows[_SECONDS].tolist()
    twice = rows.index[rows[_SIZE].duplicated()]
    if len(twice):
        raise ScenarioError(f"{path}:{twice[0]}: batch_size must differ from those of other rows")
    if sizes[0] != 1:
        raise ScenarioError(f"{path}: must have a row with batch_size 1, got {sizes[0]:g} first")
    return tuple(sizes), tuple(seconds)
