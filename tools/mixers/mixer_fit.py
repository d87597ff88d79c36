"""Figures of states and sparse attention that fit measured ones best, and left-out scores."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import least_squares

from mist_sim.errors import ScenarioError
from tools.mixers.mixer_rows import Array, Figures, MixerRows

_FEWEST_ROWS = 20
_RANGES: Mapping[str, tuple[float, float, float]] = {
    # where each figure begins, and its range: seconds as logarithms, shares as log odds
    "floor": (float(np.log(1e-5)), -20.0, 0.0),
    "serial": (float(np.log(5e-6)), -20.0, 0.0),
    "mfu": (0.0, -6.0, 8.0),
    "mbu": (0.5, -6.0, 8.0),
}
_LESS, _FLAT = 0.9, 1e-3  # figures of which a tenth less moves predictions by a thousandth are open


@dataclass(frozen=True, slots=True)
class Score:
    """Absolute relative errors of some rows: their number, median and 90th percentile."""

    num_rows: int
    median: float
    ninth: float

    def __str__(self) -> str:
        return (
            f"{self.num_rows:,} rows, median error {self.median:.1%}, "
            f"nine in ten within {self.ninth:.0%}"
        )


@dataclass(frozen=True, slots=True)
class MixerFit:
    """Fitted figures by kernel, their errors on the fitted rows, and the undetermined figures."""

    figures: Figures
    score: Score
    undetermined: Sequence[str]


def score_of(errors: Array) -> Score:
    """Return the score of the errors of some rows."""
    return Score(len(errors), float(np.median(errors)), float(np.quantile(errors, 0.9)))


def fit_mixer(
    rows: MixerRows, free: Mapping[str, Sequence[str]], fixed: Figures | None = None
) -> MixerFit:
    """Fit the figures of some kernels to the rows.

    free: figures to fit, by kernel. fixed: figures of the other kernels.

    Raises ScenarioError for too few rows.
    """
    if len(rows) < _FEWEST_ROWS:
        raise ScenarioError(
            f"{len(rows)} rows of {', '.join(free)}: at least {_FEWEST_ROWS} needed"
        )
    names = [(kernel, name) for kernel, figures in free.items() for name in figures]
    start, low, high = (np.array([_RANGES[name][at] for _, name in names]) for at in range(3))
    logs = np.log(rows.seconds)

    def residuals(values: Array) -> Array:
        return np.asarray(np.log(rows.times(_figures(names, values, fixed))) - logs)

    best = least_squares(residuals, start, bounds=(low, high), loss="soft_l1")
    figures = _rounded(_figures(names, best.x, fixed))
    undetermined = [
        f"{kernel}.{name}" for kernel, name in names if _flat(rows, figures, kernel, name)
    ]
    return MixerFit(figures, score_of(rows.errors(figures)), undetermined)


def _flat(rows: MixerRows, figures: Figures, kernel: str, name: str) -> bool:
    """Whether a figure changes the rows' times so little that they do not determine it."""
    less = {**figures, kernel: {**figures[kernel], name: _LESS * figures[kernel][name]}}
    moved = rows.times(less) / rows.times(figures) - 1
    return bool(np.sqrt(np.mean(moved**2)) < _FLAT)


def left_out(
    rows: MixerRows,
    free: Mapping[str, Sequence[str]],
    by: NDArray[np.str_] | Array,
    fixed: Figures | None = None,
) -> Score | None:
    """Return the score of rows under figures fitted without theirs; None for one group alone.

    by: the group of each row: its model, or its heads.
    """
    groups = np.unique(by)
    if len(groups) < 2:
        return None
    errors = []
    for group in groups:
        fitted = fit_mixer(rows.only(by != group), free, fixed)
        errors.append(rows.only(by == group).errors(fitted.figures))
    return score_of(np.concatenate(errors))


def _figures(
    names: Sequence[tuple[str, str]], values: Array, fixed: Figures | None
) -> dict[str, dict[str, float]]:
    found: dict[str, dict[str, float]] = {name: dict(each) for name, each in (fixed or {}).items()}
    for (kernel, name), value in zip(names, values.tolist(), strict=True):
        is_share = name in ("mfu", "mbu")
        found.setdefault(kernel, {})[name] = (
            1 / (1 + float(np.exp(-value))) if is_share else float(np.exp(value))
        )
    return found


def _rounded(figures: Figures) -> dict[str, dict[str, float]]:
    return {
        kernel: {name: float(f"{value:.3g}") for name, value in each.items()}
        for kernel, each in figures.items()
    }
