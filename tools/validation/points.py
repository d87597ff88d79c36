"""Many points of a measurement as one row."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from mist_sim.validation.runs import Row


def points_row(metric: str, errors: NDArray[np.float64]) -> Row:
    """Return one row for many points, from their relative errors."""
    sizes = np.abs(errors)
    spread, middle = float(sizes.mean()), float(np.median(sizes))
    return Row(metric, "", None, None, float(np.median(errors)), spread, middle)
