"""Linear interpolation on measured grids, in plain floats for one step and in vectors for a run.

Both forms do the same floating-point operations in the same order, so they give the same bits.
Below the first point of an axis its value holds; beyond the last the last slope goes on.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from mist_sim.errors import brief

Array = NDArray[np.float64]

_FAR = 64.0  # times the last measured point: where values are carried on to


class Axis:
    """The measured points of one coordinate, strictly rising.

    A single point means no dependence on the coordinate: it becomes a flat, endless line.

    measured: number of measured points, by default all; an extrapolated table has one more.

    top: the last measured point; infinite for a single one.
    """

    __slots__ = ("_last", "_points", "_widths", "lowest", "num_points", "points", "top", "widths")

    def __init__(self, points: Array, measured: int | None = None) -> None:
        self.num_points = len(points)
        self.lowest = float(points[0])
        self.top = float(points[(measured or len(points)) - 1]) if len(points) > 1 else math.inf
        self.points = points if len(points) > 1 else np.append(points, points + 1.0)
        self.widths = np.diff(self.points)
        self._points: list[float] = self.points.tolist()
        self._widths: list[float] = self.widths.tolist()
        self._last = len(self._points) - 2

    def place(self, x: float) -> tuple[int, float]:
        """Return the interval of a value, and how far in it lies: 0 at its start, 1 at its end."""
        if x <= self.lowest:
            return 0, 0.0
        i = bisect_right(self._points, x, 1, self._last + 1) - 1
        return i, (x - self._points[i]) / self._widths[i]

    def places(self, x: Array) -> tuple[NDArray[np.intp], Array]:
        """Return `place` of every value."""
        x = np.maximum(x, self.lowest)
        i = np.minimum(self.points.searchsorted(x, "right") - 1, self._last)
        return i, (x - self.points[i]) / self.widths[i]

    def stretched(self, values: Array, dimension: int) -> Array:
        """Return values along the axis with one more point where a single one became a line."""
        return values if self.num_points > 1 else np.repeat(values, 2, axis=dimension)


class Curve:
    """A quantity of one coordinate, a whole number such as tokens; each is looked up once."""

    def __init__(self, points: Array, values: Array) -> None:
        self.axis = Axis(points)
        self._values: list[float] = self.axis.stretched(values, 0).tolist()
        self._known: dict[int, float] = {}

    def at(self, x: int) -> float:
        """Return the value at `x`."""
        value = self._known.get(x)
        if value is None:
            i, part = self.axis.place(x)
            low, high = self._values[i], self._values[i + 1]
            value = self._known[x] = low + (high - low) * part
        return value


class Plane:
    """A quantity of a whole number, such as decodes, and of a coordinate that moves in a run.

    holds: beyond the last whole number its values hold, instead of going on as they rose.
    measured: how many points of the coordinate that moves were measured, all of them by default.
    """

    def __init__(
        self,
        fixed: Array,
        moving: Array,
        values: Array,
        *,
        holds: bool = False,
        measured: int | None = None,
    ) -> None:
        self.fixed, self.moving = Axis(fixed), Axis(moving, measured)
        self.holds = holds
        self.values = self.moving.stretched(self.fixed.stretched(values, 0), 1)
        self._rows: dict[int, tuple[list[float], Array]] = {}

    def at(self, n: int, x: float) -> float:
        """Return the value at `n`, `x`."""
        row = (self._rows.get(n) or self._row(n))[0]
        j, part = self.moving.place(x)
        low = row[j]
        return low + (row[j + 1] - low) * part

    def along(self, n: int, x: Array) -> Array:
        """Return the values at `n` and every `x`."""
        row = (self._rows.get(n) or self._row(n))[1]
        j, part = self.moving.places(x)
        low = row[j]
        return np.asarray(low + (row[j + 1] - low) * part)

    def _row(self, n: int) -> tuple[list[float], Array]:
        """Return the values along the moving axis at `n`, as a list and as an array."""
        i, part = self.fixed.place(min(n, self.fixed.top) if self.holds else n)
        row = self.values[i] + (self.values[i + 1] - self.values[i]) * part
        if part > 1.0:  # slopes along both axes, carried far, must not make it fall
            row = np.maximum.accumulate(row)
        self._rows[n] = row.tolist(), row
        return self._rows[n]


def rising_plane(fixed: Array, moving: Array, values: Array, base: Array | float = 0.0) -> Plane:
    """Return a plane whose values, above a base, never fall, even where extrapolated.

    values: shape (len(fixed), len(moving)); with the base they never fall along an axis.
    base: time of the rest of a step at each fixed point, shape (len(fixed), 1).
    The last slope along the moving axis continues to a point far beyond, where a value is raised to
    those of less work; otherwise a steeper slope at one number could cross that of a larger one.
    """
    if len(moving) == 1:
        return Plane(fixed, moving, values)
    further = with_end(moving)
    values = resampled(values, moving, further, 1) + base
    values[:, -1] = np.maximum.accumulate(values[:, -1])
    return Plane(fixed, further, values - base, measured=len(moving))


def with_end(axis: Array) -> Array:
    """Return an axis with a point far beyond; one of a single point has no end as it is."""
    return np.append(axis, axis[-1] * _FAR) if len(axis) > 1 else axis


def seconds_plane(
    fixed: Sequence[float], moving: Sequence[float], seconds: Sequence[Sequence[float]] | Array
) -> Plane:
    """Return a source's times as a plane on which more work never takes less time.

    fixed, moving: points, increasing. seconds: shape (len(fixed), len(moving)), > 0; times that
    fall along an axis are raised to those before them.
    Raises ValueError for axes that do not increase, and seconds of another shape or sign.
    """
    axes = [np.asarray(axis, dtype=np.float64) for axis in (fixed, moving)]
    for name, axis in zip(("fixed", "moving"), axes, strict=True):
        if not len(axis) or not (np.diff(axis) > 0).all():
            raise ValueError(f"{name} must have points that increase, got {brief(axis.tolist())}")
    table = np.asarray(seconds, dtype=np.float64)
    shape = len(axes[0]), len(axes[1])
    if table.shape != shape:
        raise ValueError(f"seconds must have the shape {shape}, got {table.shape}")
    if not (np.isfinite(table).all() and (table > 0).all()):
        raise ValueError("seconds must be finite and > 0")
    raised = np.maximum.accumulate(np.maximum.accumulate(table, axis=0), axis=1)
    return rising_plane(axes[0], axes[1], raised)


def rising(values: Array, *dimensions: int) -> Array:
    """Return values that never fall along the given dimensions.

    If noise makes a measurement fall, it is replaced by the isotonic fit with the smallest largest
    change: midway between the running maximum from below and the running minimum from above.
    Dimensions are processed one after another; each pass keeps the order along the others.
    """
    for dimension in dimensions:
        if (np.diff(values, axis=dimension) < 0).any():
            below = np.maximum.accumulate(values, axis=dimension)
            above = np.flip(
                np.minimum.accumulate(np.flip(values, dimension), axis=dimension), dimension
            )
            values = (below + above) / 2
    return values


def resampled(values: Array, old: Array, new: Array, dimension: int) -> Array:
    """Return values at other points of one dimension, interpolated as in `Axis`."""
    axis = Axis(old)
    values = np.moveaxis(axis.stretched(values, dimension), dimension, 0)
    i, part = axis.places(new)
    part = part.reshape(-1, *[1] * (values.ndim - 1))
    return np.moveaxis(values[i] + (values[i + 1] - values[i]) * part, 0, dimension)
