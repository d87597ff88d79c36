"""The latency coefficients of an AFD bundle by regression on measured times."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from mist_sim.bounds import NUMBER
from mist_sim.errors import ScenarioError, brief
from mist_sim.hardware.afd import AfdCoefficients
from mist_sim.traces.readers.opening import At, csv_records, open_trace

Floats = NDArray[np.float64]

_COLUMNS = ("part", "size", "time")
_PARTS = {"attention": "a", "ffn": "f", "communication": "c"}


@dataclass(frozen=True)
class AfdFit:
    """Coefficients fitted to measured times.

    r_squared: share of the variance of the times that the line explains, by part.
    """

    coefficients: AfdCoefficients
    r_squared: dict[str, float]


def fit_afd_coefficients(path: Path) -> AfdFit:
    """Fit a line to each part's times by least squares (arXiv 2601.21351v3, table 3).

    path: a CSV file with the columns part (attention, ffn, communication), size (tokens held by an
    attention worker; requests in the batch of an FFN worker) and time (in the unit that the
    coefficients then have).
    Raises TraceError for a bad row, ScenarioError where a part has fewer than two sizes or a line
    that falls.
    """
    points = _read(path)
    found: dict[str, float] = {}
    r_squared = {}
    for part, letter in _PARTS.items():
        sizes, times = np.array(points[part]).reshape(-1, 2).T
        if len(np.unique(sizes)) < 2:
            raise ScenarioError(
                f"{path}: {part} must be measured at two sizes or more, "
                f"got {len(np.unique(sizes))}; add rows"
            )
        slope, base = _line(sizes, times)
        for name, value in ((f"alpha_{letter}", slope), (f"beta_{letter}", base)):
            if value < 0:
                raise ScenarioError(
                    f"{path}: the line through the times of {part} gives {name} = {value:.4g}, "
                    "and it must be >= 0; measure over a wider range of sizes"
                )
            found[name] = value
        spread = float(np.var(times))
        left = float(np.mean((times - base - slope * sizes) ** 2))
        r_squared[part] = 1 - left / spread if spread else 1.0
    try:
        return AfdFit(AfdCoefficients(**found), r_squared)
    except ValueError as error:
        raise ScenarioError(f"{path}: {error}") from error


def _line(sizes: Floats, times: Floats) -> tuple[float, float]:
    """Return slope and intercept of the least-squares line."""
    centred = sizes - sizes.mean()
    slope = float(centred @ times / (centred @ centred))
    return slope, float(times.mean() - slope * sizes.mean())


def _read(path: Path) -> dict[str, list[tuple[float, float]]]:
    """Return (size, time) of each part's rows."""
    points: dict[str, list[tuple[float, float]]] = {part: [] for part in _PARTS}
    name = str(path)
    with open_trace(name) as file:
        for at, (part, size, time) in csv_records(file, name, _COLUMNS):
            if part.strip() not in points:
                known = ", ".join(points)
                raise at.error(f"part must be one of {known}, got {brief(part)}")
            numbers = (_positive(size, at, "size"), _positive(time, at, "time"))
            points[part.strip()].append(numbers)
    return points


def _positive(text: str, at: At, column: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    smallest, largest = NUMBER
    if not smallest <= value <= largest:
        raise at.error(
            f"{column} must be a number from {smallest:g} to {largest:g}, got {brief(text)}; "
            "correct or remove the row"
        )
    return value
