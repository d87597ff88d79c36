"""Measured reads in place of a latency and a bandwidth (MIST Table II: empirical run times)."""

from __future__ import annotations

import csv
from bisect import bisect_right
from dataclasses import dataclass
from math import inf, isfinite
from pathlib import Path

from mist_sim.errors import ScenarioError, TraceError, brief
from mist_sim.inputs import check_columns, has_swallowed, swallowed, text_of
from mist_sim.user_paths import user_path

_COLUMNS = ("num_bytes", "seconds")


@dataclass(frozen=True, slots=True)
class MeasuredTimes:
    """Seconds of reads of some sizes.

    Between two sizes it goes straight, below the smallest all reads take as long as that one, and
    behind the largest it goes on as between the last two, or in proportion to a single one.

    sizes: bytes, rising. times: seconds.
    """

    sizes: tuple[float, ...]
    times: tuple[float, ...]

    def seconds(self, num_bytes: float) -> float:
        """Return the seconds of a read of so many bytes."""
        sizes, times = self.sizes, self.times
        if num_bytes <= sizes[0]:
            return times[0]
        if len(sizes) == 1:
            return times[0] * num_bytes / sizes[0]
        right = min(bisect_right(sizes, num_bytes), len(sizes) - 1)
        left = right - 1
        slope = (times[right] - times[left]) / (sizes[right] - sizes[left])
        return times[left] + slope * (num_bytes - sizes[left])


def measured_times(path: str) -> MeasuredTimes:
    """Read a CSV file with the columns num_bytes and seconds, a row a size; others are ignored.

    Raises ScenarioError for a file without these columns or rows, and TraceError for a row with
    something else than sizes that rise and times that do not fall (> 0, finite).
    """
    file = user_path(path)
    rows = csv.reader(text_of(file).splitlines(keepends=True), strict=True)
    try:
        header = next(rows, [])
        check_columns(header, _COLUMNS, path)
        places = [header.index(name) for name in _COLUMNS]
        found: list[tuple[float, float]] = []
        last = rows.line_num
        for row in rows:
            line, last = last + 1, rows.line_num
            if last > line and has_swallowed(row, len(header)):
                raise swallowed(file, line, last)
            if any(cell.strip() for cell in row):
                found.append(_point(file, rows.line_num, row, places, found))
    except csv.Error as error:
        raise ScenarioError(f"{path}: not a CSV table: {error}") from None
    if not found:
        raise ScenarioError(f"{path}: has no row; at least one size and its time are needed")
    sizes, times = zip(*found, strict=True)
    return MeasuredTimes(sizes, times)


def _point(
    path: Path, line: int, row: list[str], places: list[int], before: list[tuple[float, float]]
) -> tuple[float, float]:
    """Return the size and time of a row. before: those of the rows above."""
    values = []
    for name, place in zip(_COLUMNS, places, strict=True):
        text = row[place] if place < len(row) else ""
        try:
            value = float(text)
        except ValueError:
            value = inf
        if not (isfinite(value) and value > 0):
            raise TraceError(path, line, f"{name} must be a finite number > 0, got {brief(text)}")
        values.append(value)
    size, time = values
    if before and size <= before[-1][0]:
        raise TraceError(path, line, f"num_bytes must rise, got {size:g} behind {before[-1][0]:g}")
    if before and time < before[-1][1]:
        raise TraceError(
            path, line, f"seconds must not fall, got {time:g} behind {before[-1][1]:g}"
        )
    return size, time
