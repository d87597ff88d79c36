"""The law of measured times: all of them are equally likely."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from io import StringIO
from itertools import islice

import numpy as np

from mist_sim.bounds import MEASURED_TIMES, TABLE_BYTES
from mist_sim.durations.base import DURATIONS, Floats, require_positive
from mist_sim.errors import ScenarioError, TraceError, brief
from mist_sim.inputs.files import text_of
from mist_sim.inputs.lines import lines_of
from mist_sim.units import Seconds
from mist_sim.user_paths import user_path


@DURATIONS.register("empirical")
@dataclass(frozen=True, slots=True, kw_only=True)
class EmpiricalDuration:
    """Measured times, drawn with replacement; the mean is their mean.

    times: the measured times in seconds (> 0).
    path: a file of times instead, with a number of seconds (> 0) in each line. Blank lines, and
        lines that begin with #, are skipped.
    Raises ValueError for other times, TraceError for a bad line of the file and ScenarioError for a
    file that cannot be read.
    """

    times: Sequence[Seconds] | None = None
    path: str | None = None
    _values: Floats = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if self.times is None and self.path is None:
            raise ValueError("times must be given, or path in place of them, got neither")
        if self.times is not None and self.path is not None:
            raise ValueError("times must be left out with path, got both")
        if self.path is not None:
            values = tuple(islice(_times_in(self.path), MEASURED_TIMES + 1))
            if len(values) > MEASURED_TIMES:
                raise ScenarioError(f"{self.path}: must have <= {MEASURED_TIMES} times")
        else:
            values = tuple(self.times or ())
            for position, seconds in enumerate(values):
                require_positive(f"times[{position}]", seconds, "s")
            object.__setattr__(self, "times", values)
        if not values:
            raise ValueError(f"{self.path or 'times'} must have at least one time, got none")
        object.__setattr__(self, "_values", np.array(values, dtype=np.float64))

    def sample(self, rng: np.random.Generator, n: int) -> Floats:
        """Return n times."""
        return self._values[rng.integers(len(self._values), size=n)]


def _times_in(path: str) -> Iterator[float]:
    """Yield the seconds of each line of a file."""
    text = text_of(user_path(path), TABLE_BYTES)
    for number, line in enumerate(lines_of(StringIO(text, newline=""), path), start=1):
        said = line.strip()
        if not said or said.startswith("#"):
            continue
        seconds = _number(said)
        if seconds is None or not 0 < seconds < math.inf:
            got = "other text" if seconds is None else brief(said)
            problem = f"must be a finite number of seconds > 0, such as 0.25, got {got}"
            raise TraceError(path, number, problem)
        yield seconds


def _number(text: str) -> float | None:
    """Return a number; None for other text, which messages never show."""
    try:
        return float(text)
    except ValueError:
        return None
