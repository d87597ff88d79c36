"""Seconds on a grid of two axes, interpolated: what slow sources of step times are compiled to."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]


class SecondsGrid:
    """Seconds at the nodes of two axes, bilinear between them.

    Below an axis's first node the first node counts; beyond the last one the last slope goes on.

    x, y: nodes, increasing. seconds: shape (len(x), len(y)), > 0; times that fall along an axis
        are raised to those before them, so that more work never takes less time.
    Raises ValueError for axes that do not increase, and seconds of another shape or sign.
    """

    __slots__ = ("_known", "_per_x", "_per_y", "_table", "_y", "x", "y")

    def __init__(
        self, x: Sequence[float], y: Sequence[float], seconds: Sequence[Sequence[float]] | Array
    ) -> None:
        self.x, self.y = [float(node) for node in x], [float(node) for node in y]
        for name, axis in (("x", self.x), ("y", self.y)):
            if not axis or any(not low < high for low, high in pairwise(axis)):
                raise ValueError(f"{name} must have nodes that increase, got {axis}")
        table = np.asarray(seconds, dtype=np.float64)
        if table.shape != (len(self.x), len(self.y)):
            shape = (len(self.x), len(self.y))
            raise ValueError(f"seconds must have the shape {shape}, got {table.shape}")
        if not (np.isfinite(table).all() and (table > 0).all()):
            raise ValueError("seconds must be finite and > 0")
        table = np.maximum.accumulate(np.maximum.accumulate(table, axis=0), axis=1)
        if len(self.x) == 1:  # a second node, so that there is always an interval
            self.x, table = [self.x[0], self.x[0] + 1.0], np.repeat(table, 2, axis=0)
        if len(self.y) == 1:
            self.y, table = [self.y[0], self.y[0] + 1.0], np.repeat(table, 2, axis=1)
        self._y = np.asarray(self.y)
        self._per_x = [1.0 / (high - low) for low, high in pairwise(self.x)]
        self._per_y = [1.0 / (high - low) for low, high in pairwise(self.y)]
        self._table = table
        self._known: dict[float, tuple[list[float], Array]] = {}

    def covers(self, x: float, y: float) -> bool:
        """Tell whether a point lies within the nodes."""
        return self.x[0] <= x <= self.x[-1] and self.y[0] <= y <= self.y[-1]

    def at(self, x: float, y: float) -> float:
        """Return the seconds at a point."""
        row = (self._known.get(x) or self._row(x))[0]
        nodes = self.y
        y = max(y, nodes[0])
        j = bisect_right(nodes, y, 1, len(nodes) - 1) - 1
        before = row[j]
        return before + (y - nodes[j]) * self._per_y[j] * max(row[j + 1] - before, 0.0)

    def along(self, x: float, ys: Array) -> Array:
        """Return `at` of one x and many y, bit for bit, in an array of its own."""
        row = (self._known.get(x) or self._row(x))[1]
        ys = np.maximum(ys, self._y[0])
        j = np.searchsorted(self._y[1:-1], ys, side="right")
        share_y = (ys - self._y[j]) * np.asarray(self._per_y)[j]
        found: Array = row[j] + share_y * np.maximum(np.diff(row), 0.0)[j]
        return found

    def _row(self, x: float) -> tuple[list[float], Array]:
        """Return the seconds at the nodes of y; they are kept, since steps repeat their x."""
        i, share = self._between(x)
        low, high = self._table[i], self._table[i + 1]
        row = low + share * (high - low)
        self._known[x] = row.tolist(), row
        return self._known[x]

    def _between(self, x: float) -> tuple[int, float]:
        """Return the interval that holds x, and how far into it x lies."""
        nodes = self.x
        x = max(x, nodes[0])
        i = bisect_right(nodes, x, 1, len(nodes) - 1) - 1
        return i, (x - nodes[i]) * self._per_x[i]
