"""Watts of an accelerator: idle, or in steps that load its memory and its cores.

Watts of a step are no straight line in utilisation: kernels that do little still keep the chip
awake, and near the limit it slows its clock instead of drawing more. So the loads add up, and the
sum bends into the limit:

    load = idle + active + memory u_m + compute u_c (+ experts) (+ peers) (+ lockstep)
    watts = limit * load / (1 + load^4)^(1/4)

u_m and u_c are seconds at the peaks of bandwidth and arithmetic over the seconds of the step
(`hardware/work.py`). Energy of a request, a client and a run follows in
`metrics/spending.py`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Annotated, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from mist_sim.checks import Checked, NotNegative, Range

Array = NDArray[np.float64]
DrawConfidence = Literal["fitted", "spec-only", "assumed"]
"""Where watts come from: measured on the device, a data sheet, or assumed for want of both."""

_BEND = 4  # how sharply watts bend into the limit


@dataclass(frozen=True, slots=True, kw_only=True)
class PowerDraw(Checked):
    """The components of a device's power, as shares (>= 0) of its thermal design power.

    idle: without work, memory held; below 1.
    active: in addition, during any step.
    memory, compute: in addition, at full bandwidth and at the full dense rate.
    experts: in steps of a mixture of experts, whose kernels keep the cores awake.
    peers: in steps that several GPUs share; they busy-wait for one another.
    lockstep: in addition, if replicas share their experts and step together.
    confidence: "fitted" on measured power of the device, "spec-only", or "assumed".
    """

    idle: Annotated[float, Range("[0, 1)")]
    active: NotNegative[float]
    memory: NotNegative[float]
    compute: NotNegative[float]
    experts: NotNegative[float] = 0.0
    peers: NotNegative[float] = 0.0
    lockstep: NotNegative[float] = 0.0
    confidence: DrawConfidence = "spec-only"


# For a card without measurements: between the fits for A100, H100 and B200.
TYPICAL_DRAW = PowerDraw(
    idle=0.18, active=0.05, memory=0.7, compute=3.0, experts=0.1, peers=0.1, lockstep=0.4
)


@dataclass(frozen=True, slots=True)
class Demand:
    """Seconds that one GPU would take at its peaks, over a run of steps; arrays of one item a run.

    compute: for the FLOPs, at the dense rate of the type that they are computed in.
    memory: for the bytes, at the bandwidth of its memory.
    """

    compute: Array
    memory: Array

    def __add__(self, other: Demand) -> Demand:
        return Demand(self.compute + other.compute, self.memory + other.memory)


class Load(NamedTuple):
    """Load of a GPU in all steps of an engine beside memory and arithmetic (`PowerDraw`)."""

    has_experts: bool = False
    has_peers: bool = False
    in_lockstep: bool = False


def step_watts(
    draw: PowerDraw,
    design_power: float | Array,
    demand: Demand,
    seconds: Array,
    load: Load | Array,
    limit: float = math.inf,
) -> Array:
    """Return the mean watts of a GPU in runs of steps that took the given seconds (> 0).

    design_power: watts to which the shares of `draw` refer. load: of all runs, or a row for each.
    limit: watts of a power cap.
    """
    found = draw.idle + draw.active + draw.memory * np.minimum(demand.memory / seconds, 1.0)
    found = found + draw.compute * np.minimum(demand.compute / seconds, 1.0)
    found = found + np.asarray(load, dtype=float) @ [draw.experts, draw.peers, draw.lockstep]
    found = found / (1 + found**_BEND) ** (1 / _BEND)
    return np.asarray(np.minimum(design_power * np.maximum(found, draw.idle), limit))
