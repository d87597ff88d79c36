"""Fitted figures of a GPU's entry, and the spec file that holds the result."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import least_squares

from mist_sim.errors import ScenarioError, printable
from mist_sim.hardware import GpuSpec
from mist_sim.output import write_whole
from mist_sim.spec_files import toml_string

Array = NDArray[np.float64]

_MILD = 0.1  # relative errors beyond this count less than their square: outliers are measured too
_AT_BOUND = 0.01  # of where the fit begins: nearer to a bound, a figure is as good as there


@dataclass(frozen=True, slots=True)
class Figure:
    """A figure to fit, by its dotted name in a spec file: its start value, and its range.

    `overhead.*` and `dispatch.*` are seconds, `interconnect.bus_bandwidth.*` bytes/s by size of the
    message, the others shares.
    """

    name: str
    start: float
    low: float
    high: float


@dataclass(frozen=True)
class Observations:
    """Measured quantities, and a function that predicts them for a GPU.

    predict: returns the quantities of the chosen rows, in seconds.
    measured: seconds. quantity: the name of each row's quantity, for reports.
    weight: how much each row's relative error counts.
    held_out: rows that are scored instead of fitted.
    """

    predict: Callable[[GpuSpec, NDArray[np.bool_]], Array]
    measured: Array
    quantity: Sequence[str]
    weight: Array
    held_out: NDArray[np.bool_]


@dataclass(frozen=True)
class Calibration:
    """Fitted figures, and relative errors of all rows with them.

    at_bound: names of figures at an end of their range, which these rows do not determine.
    """

    base: str
    values: Mapping[str, float]
    observations: Observations
    errors: Array
    source: str
    at_bound: Sequence[str] = ()

    def error_of(self, quantity: str, *, held_out: bool) -> Array:
        """Return the relative errors of a quantity, of rows that were held out or fitted."""
        rows = np.array([name == quantity for name in self.observations.quantity])
        return np.asarray(self.errors[rows & (self.observations.held_out == held_out)])

    def report(self) -> list[tuple[str, str, int, float, float]]:
        """Return (quantity, "fitted" or "held out", rows, mean error, median error)."""
        found = []
        for quantity in dict.fromkeys(self.observations.quantity):
            for held_out, name in ((False, "fitted"), (True, "held out")):
                errors = np.abs(self.error_of(quantity, held_out=held_out))
                if len(errors):
                    mean, median = float(errors.mean()), float(np.median(errors))
                    found.append((quantity, name, len(errors), mean, median))
        return found


def calibrate(
    gpu: GpuSpec, figures: Sequence[Figure], observations: Observations, source: str
) -> Calibration:
    """Fit figures to the rows that are not held out: least squares of logarithms.

    Far outliers count less (soft L1). Needs some seconds to minutes, as `predict` does.

    Raises ScenarioError for fewer fitted rows than figures, and without held-out rows.
    """
    require_rows(observations.held_out, len(figures), source)
    fitted = ~observations.held_out
    logs = np.log(observations.measured)
    names = [figure.name for figure in figures]
    start = np.array([figure.start for figure in figures])

    def residuals(values: Array) -> Array:
        with_values = with_figures(gpu, dict(zip(names, values.tolist(), strict=True)))
        found = np.log(observations.predict(with_values, fitted))
        return np.asarray((found - logs[fitted]) * observations.weight[fitted])

    best = least_squares(
        residuals,
        start,
        bounds=([figure.low for figure in figures], [figure.high for figure in figures]),
        x_scale=start,
        diff_step=np.full(len(names), 1e-2),
        loss="soft_l1",
        f_scale=_MILD,
        max_nfev=25,
    )
    values = {name: float(f"{value:.3g}") for name, value in zip(names, best.x, strict=True)}
    every = np.ones(len(logs), dtype=bool)
    found = observations.predict(with_figures(gpu, values), every)
    errors = found / observations.measured - 1
    return Calibration(gpu.name, values, observations, errors, source, _at_bound(figures, values))


def require_rows(held_out: NDArray[np.bool_], num_figures: int, source: str) -> None:
    """Raise ScenarioError for fewer fitted rows than figures, and without held-out rows."""
    num_fitted, num_held_out = int((~held_out).sum()), int(held_out.sum())
    if num_fitted < num_figures or not num_held_out:
        raise ScenarioError(
            f"{source}: {num_figures} figures need as many rows to fit and others to score, got "
            f"{num_fitted} to fit and {num_held_out} to score; measure more points"
        )


def _at_bound(figures: Sequence[Figure], values: Mapping[str, float]) -> tuple[str, ...]:
    return tuple(
        figure.name
        for figure in figures
        if min(values[figure.name] - figure.low, figure.high - values[figure.name])
        < _AT_BOUND * figure.start
    )


def with_figures(gpu: GpuSpec, values: Mapping[str, float]) -> GpuSpec:
    """Return a GPU with other figures, by their dotted names."""
    for name, value in values.items():
        part, _, path = name.partition(".")
        gpu = replace(gpu, **{part: _with(getattr(gpu, part), path, value)})
    return gpu


def _with(part: Any, path: str, value: float) -> Any:
    """Return a part of a spec, a mapping or a dataclass that may hold one, with another figure."""
    field, _, inner = path.partition(".")
    if isinstance(part, Mapping):
        return {**part, field: value}
    changed = {**getattr(part, field), inner: value} if inner else value
    return replace(part, **{field: changed})


def as_quantity(name: str, value: float) -> str:
    """Return a figure in the unit of its kind, as a spec file holds it; a share has none."""
    if name.startswith(("overhead.", "dispatch.")):
        return f"{round(value * 1e6, 3):g} us"
    if "bus_bandwidth." in name:
        return f"{value * 1e-9:.3g} GB/s"
    return f"{value:.3g}"


def write_spec(path: Path, calibration: Calibration) -> None:
    """Write a GPU spec file. Raises ScenarioError when it cannot be written."""
    write_whole(path, spec_text(calibration))


def spec_text(calibration: Calibration) -> str:
    """Return a GPU spec file that a scenario's `gpu` can name; residuals stand at its head."""
    source = f"mist calibrate: {printable(calibration.source)}"
    lines = [f"# Fitted by {source}"]
    lines += [
        f"# {quantity}: {name}, {number} rows, mean error {mean:.1%}, median {median:.1%}"
        for quantity, name, number, mean, median in calibration.report()
    ]
    lines += [f"# {name} is at an end of its range" for name in calibration.at_bound]
    lines += [f"based_on = {toml_string(calibration.base)}", 'confidence = "fitted"']
    parts: dict[str, list[str]] = {}
    for name, value in calibration.values.items():
        part, _, key = _toml_key(name).partition(".")
        text = as_quantity(name, value)
        parts.setdefault(part, []).append(f'{key} = "{text}"' if " " in text else f"{key} = {text}")
    for part, entries in parts.items():
        lines += ["", f"[{part}]", *entries]
    lines += ["", "[sources]"]
    lines += [f"{_toml_key(name)} = {toml_string(source)}" for name in calibration.values]
    return "\n".join(lines) + "\n"


def _toml_key(name: str) -> str:
    """Return a dotted name as TOML takes it, with quotes where a part has a blank."""
    return ".".join(f'"{part}"' if " " in part else part for part in name.split("."))
