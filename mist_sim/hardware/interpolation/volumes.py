"""Interpolation along four coordinates: the time that decodes add beside a chunk of a prompt.

As in `grids`, one step in plain floats and a run in vectors give the same bits.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property

import numpy as np

from mist_sim.hardware.interpolation.grids import Array, Axis, resampled, with_end

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
