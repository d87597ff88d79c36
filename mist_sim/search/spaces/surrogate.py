"""A model of configurations' figures, which proposes the next tries to a learning method.

Each value of an axis has a factor, independent of the other axes: the logarithm of a figure is a
sum of one effect an axis (Scheffé, The Analysis of Variance, 1959, chapter 4), found by ridge
regression. A number that was not tried yet has the effect that a line through its tried neighbours
gives it; another value counts as the best tried one of its axis, so that it is tried, too
(optimism: Lai and Robbins, Advances in Applied Mathematics 6, 1985). A method whose proposals are
mixed with those of a model takes fewer runs (surrogate-assisted search: Jin, Swarm and Evolutionary
Computation 1, 2011).
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
Places = NDArray[np.int64]

_RIDGE = 0.1  # runs' worth of doubt about each effect: a value that was seen once keeps most of it
_LOST = 0.5  # logarithm by which broken constraints count as worse than the worst feasible figure


def predicted(places: Places, tried: Places, values: Array, is_ordered: NDArray[np.bool_]) -> Array:
    """Return the model's predictions for all configurations: lower is better.

    places: of all, one row each, a whole number per axis. tried: rows of those that were run.
    values: theirs, lower is better (>= 0); infinite for one that breaks a constraint. is_ordered:
    which axes are numbers.
    """
    known = np.isfinite(values) & (values > 0)
    if not known.any():
        return np.zeros(len(places))
    logs = np.log(np.where(known, values, 1.0))
    low, high = logs[known].min(), logs[known].max()
    logs = np.where(values == 0, low, np.where(known, logs, high + _LOST))
    rows = _indicators(places)
    mean = float(logs.mean())
    seen = rows[tried]
    weights = seen.T @ seen + _RIDGE * np.eye(rows.shape[1])
    effects = np.linalg.solve(weights, seen.T @ (logs - mean))
    first = 0
    for axis, ordered in enumerate(is_ordered):
        of_axis = slice(first, first + len(np.unique(places[:, axis])))
        guess = _on_lines if ordered else _as_the_best
        effects[of_axis] = guess(effects[of_axis], np.flatnonzero(seen[:, of_axis].sum(axis=0)))
        first = of_axis.stop
    return np.asarray(mean + rows @ effects)


def _as_the_best(effects: NDArray[Any], seen: Places) -> NDArray[Any]:
    """Return an axis's effects, those of unseen values as low as the lowest of the seen."""
    found = np.full_like(effects, effects[seen].min())
    found[seen] = effects[seen]
    return found


def _on_lines(effects: NDArray[Any], seen: Places) -> NDArray[Any]:
    """Return an axis's effects, those of unseen numbers on a line through the nearest two seen."""
    if len(seen) < 2:
        return effects
    found = effects.copy()
    for place in sorted({*range(len(effects))} - {*seen.tolist()}):
        after = int(np.clip(np.searchsorted(seen, place), 1, len(seen) - 1))
        left, right = seen[after - 1], seen[after]
        slope = (effects[right] - effects[left]) / (right - left)
        found[place] = effects[left] + slope * (place - left)
    return found


def _indicators(places: Places) -> Array:
    """Return a column for each value of each axis, 1 where a configuration has it."""
    columns = [places[:, [axis]] == np.unique(places[:, axis]) for axis in range(places.shape[1])]
    return np.concatenate(columns, axis=1).astype(float)
