"""Fits the shares of a device's power draw to measured power, and scores held-out samples."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import least_squares

from mist_sim.hardware import load_gpu
from mist_sim.hardware.power import Array, Demand, Load, PowerDraw, step_watts
from tools.power.power_runs import Kernels, PowerRun

FIGURES: Mapping[str, tuple[float, float, float]] = {
    "active": (0.1, 0.0, 1.0),
    "memory": (0.7, 0.5, 2.0),
    "compute": (2.0, 0.0, 10.0),
    "experts": (0.05, 0.0, 1.0),
    "peers": (0.05, 0.0, 1.0),
    "lockstep": (0.05, 0.0, 1.0),
}
"""What is fitted: where to begin, and the range.

Products of few rows on an H200 draw 105 W more than an idle one for each TB/s that they move
(aiconfigurator's), which is half of the design power of an H100 or A100 at full bandwidth: memory
is at least that. The H100's runs alone, whose bandwidth falls as batches grow, would put it at 0.
"""

_MILD = 0.1  # relative errors beyond this count less than their square


@dataclass(frozen=True, slots=True)
class Samples:
    """Measured mean watts of a GPU, and its work in one or more phases; flat arrays of phases.

    starts: the first phase of each sample. waits: seconds of each that the GPU was idle as well.
    groups: names for leaving out samples.
    """

    seconds: Array
    demand: Demand
    load: Array
    design_power: Array
    starts: NDArray[np.int64]
    waits: Array
    watts: Array
    groups: NDArray[np.str_]

    def predicted(self, draw: PowerDraw) -> Array:
        """Return the modelled mean watts of each sample."""
        watts = step_watts(draw, self.design_power, self.demand, self.seconds, self.load)
        energy = np.add.reduceat(watts * self.seconds, self.starts)
        energy += self.waits * draw.idle * self.design_power[self.starts]
        return np.asarray(energy / (np.add.reduceat(self.seconds, self.starts) + self.waits))

    def errors(self, draw: PowerDraw) -> Array:
        """Return modelled over measured watts of each sample, less 1."""
        return np.asarray(self.predicted(draw) / self.watts - 1)

    def where(self, chosen: NDArray[np.bool_]) -> Samples:
        """Return some of the samples."""
        ends = np.append(self.starts[1:], len(self.seconds))
        phases = np.repeat(chosen, ends - self.starts)
        sizes = (ends - self.starts)[chosen]
        return Samples(
            self.seconds[phases],
            Demand(self.demand.compute[phases], self.demand.memory[phases]),
            self.load[phases],
            self.design_power[phases],
            np.cumsum(sizes) - sizes,
            self.waits[chosen],
            self.watts[chosen],
            self.groups[chosen],
        )


def of_runs(runs: Sequence[PowerRun], left_out_by: Literal["setting", "model"]) -> Samples:
    """Return runs of engines as samples."""
    sizes = np.array([len(run.seconds) for run in runs])
    return Samples(
        np.concatenate([run.seconds for run in runs]),
        Demand(
            np.concatenate([run.demand.compute for run in runs]),
            np.concatenate([run.demand.memory for run in runs]),
        ),
        np.repeat(np.array([run.load for run in runs], dtype=float), sizes, axis=0),
        np.repeat([run.cluster.gpu.power for run in runs], sizes),
        np.cumsum(sizes) - sizes,
        np.array([run.waits for run in runs]),
        np.array([run.watts for run in runs]),
        np.array([getattr(run, left_out_by) for run in runs]),
    )


def of_kernels(kernels: Kernels, num_groups: int = 5) -> Samples:
    """Return kernels as samples; sizes of matrices are spread over some groups."""
    sizes = np.unique(kernels.weights, return_inverse=True)[1]
    number = len(kernels.watts)
    return Samples(
        kernels.seconds,
        kernels.demand,
        np.zeros((number, len(Load._fields))),
        np.full(number, load_gpu(kernels.gpu).power),
        np.arange(number),
        np.zeros(number),
        kernels.watts,
        np.char.mod("%d", sizes % num_groups),
    )


def fit_draw(samples: Samples, idle: float) -> PowerDraw:
    """Return shares that reproduce samples of one kind of GPU.

    idle: not fitted. Shares that no sample has, such as experts, stay 0.
    """
    loads = np.any(samples.load, axis=0).tolist()
    is_there: dict[str, bool] = dict(zip(("experts", "peers", "lockstep"), loads, strict=True))
    names = [name for name in FIGURES if is_there.get(name, True)]
    start, low, high = zip(*(FIGURES[name] for name in names), strict=True)

    def draw(values: Array) -> PowerDraw:
        return PowerDraw(
            idle=idle, confidence="fitted", **dict(zip(names, values.tolist(), strict=True))
        )

    def residuals(values: Array) -> Array:
        return samples.errors(draw(values))

    best = least_squares(
        residuals,
        start,
        bounds=(low, high),
        loss="soft_l1",
        f_scale=_MILD,
        max_nfev=100,
    )
    return draw(np.round(best.x, 2))


def left_out_errors(samples: Samples, idle: float) -> Array:
    """Return the relative error of every sample, by a fit on the samples of all other groups."""
    errors = np.zeros(len(samples.watts))
    for name in np.unique(samples.groups):
        out = samples.groups == name
        errors[out] = samples.where(out).errors(fit_draw(samples.where(~out), idle))
    return errors
