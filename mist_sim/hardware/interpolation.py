"""Interpolation between measured times, for one step and for a run of steps.

Linear interpolation on measured grids, in plain floats for one step and in vectors for a run.

Both forms do the same floating-point operations in the same order, so they give the same bits.
Below the first point of an axis its value holds; beyond the last the last slope goes on.

Interpolation along four coordinates: the time that decodes add beside a chunk of a prompt.

As in `grids`, one step in plain floats and a run in vectors give the same bits.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Callable, Sequence
from functools import cached_property

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


FourAxes = tuple[Array, Array, Array, Array]


class Volume:
    """A quantity of two whole numbers, which stay in a run, and of two coordinates that move.

    Beyond the last point of the first of each pair (a chunk and its context) the value there
    holds; along the second (decodes and their contexts) the last slope goes on.

    values: by both fixed coordinates, then by both moving ones.
    measured: points of `n` and `y` that were measured; the axes may go beyond.

    tops: the last measured point of `c`, `n`, `x` and `y`.
    """

    def __init__(self, axes: FourAxes, values: Array, measured: tuple[Array, Array]) -> None:
        self.fixed = Axis(axes[0]), Axis(axes[1])
        self.moving = Axis(axes[2]), Axis(axes[3])
        counts, means = (Axis(points).top for points in measured)
        self.tops = self.fixed[0].top, counts, self.moving[0].top, means
        for dimension, axis in enumerate((*self.fixed, *self.moving)):
            values = axis.stretched(values, dimension)
        self.values = values
        self._places: tuple[dict[int, tuple[int, float]], ...] = {}, {}

    @cached_property
    def _nested(self) -> list[list[list[list[float]]]]:
        nested: list[list[list[list[float]]]] = self.values.tolist()
        return nested

    def lines(self, chunks: Sequence[tuple[int, int]], n: int, q: int) -> list[tuple[float, float]]:
        """Return (start, rise) along the interval `q` of `y` at `n`, for each chunk `c`, `x`."""
        of_chunks, of_counts = self._places
        p, along_n = of_counts.get(n) or self._place(1, n)
        nested, contexts = self._nested, self.moving[0]
        found = []
        for c, x in dict.fromkeys(chunks):
            i, along_c = of_chunks.get(c) or self._place(0, c)
            j, along_x = contexts.place(min(x, contexts.top))
            near, far = nested[i], nested[i + 1]
            rows = near[p], near[p + 1], far[p], far[p + 1]
            a, b = _edge(rows, j, q, along_c, along_n)
            if along_x:
                further, end = _edge(rows, j + 1, q, along_c, along_n)
                a += (further - a) * along_x
                b += (end - b) * along_x
            found.append((a, b - a))
        return found

    def along(self, c: int, n: int, x: Array, y: Array) -> Array:
        """Return the values at `c`, `n` and every pair of `x` and `y`."""
        i, along_c = self._place(0, c)
        p, along_n = self._place(1, n)
        j, along_x = self.moving[0].places(np.minimum(x, self.moving[0].top))
        q, along_y = self.moving[1].places(y)
        sheets = self.values[i] + (self.values[i + 1] - self.values[i]) * along_c
        sheet = sheets[p] + (sheets[p + 1] - sheets[p]) * along_n
        a, b = sheet[j, q], sheet[j, q + 1]
        a = a + (sheet[j + 1, q] - a) * along_x
        b = b + (sheet[j + 1, q + 1] - b) * along_x
        return np.asarray(a + (b - a) * along_y)

    def _place(self, dimension: int, number: int) -> tuple[int, float]:
        """Return `place` of a whole number, which is remembered."""
        axis = self.fixed[dimension]
        held = min(number, axis.top) if dimension == 0 else number
        place = self._places[dimension][number] = axis.place(held)
        return place


def _edge(
    rows: tuple[list[list[float]], ...], j: int, q: int, along_c: float, along_n: float
) -> tuple[float, float]:
    """Return the values at one context of the chunk, `j`, and both mean contexts around `y`.

    rows: at the chunks and counts around `c` and `n`, by both contexts.
    """
    near_low, near_high, far_low, far_high = rows
    one, other, far_one, far_other = near_low[j], near_high[j], far_low[j], far_high[j]
    low, high = one[q], other[q]
    low += (far_one[q] - low) * along_c
    high += (far_other[q] - high) * along_c
    start = low + (high - low) * along_n
    q += 1
    low, high = one[q], other[q]
    low += (far_one[q] - low) * along_c
    high += (far_other[q] - high) * along_c
    return start, low + (high - low) * along_n


def carried_on(axes: FourAxes, values: Array, base: Callable[..., Array]) -> Volume:
    """Return a volume whose values, above a base, never fall where extrapolated.

    axes: measured chunks, decodes, contexts of chunks and of decodes. base: returns the time of the
        rest of the step at such axes; with the values, more work never takes less time.
    The last slopes of decodes and of their contexts continue to a point far beyond, where a value
    is raised to those of less work; otherwise a steeper slope beside one chunk could cross that
    beside a larger one.
    """
    chunks, counts, contexts, means = axes
    further = chunks, with_end(counts), contexts, with_end(means)
    for dimension in (1, 3):
        values = resampled(values, axes[dimension], further[dimension], dimension)
    rest = base(*further)
    values = values + rest
    for dimension in range(4):
        values = np.maximum.accumulate(values, axis=dimension)
    return Volume(further, values - rest, measured=(counts, means))
