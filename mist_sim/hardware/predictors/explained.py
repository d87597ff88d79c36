"""A step taken apart: which operator takes how long, and what binds it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal, NamedTuple

from mist_sim.core.batch import StepBatch
from mist_sim.hardware.predictors.base import Predictor

Bound = Literal["compute", "memory", "latency", "links", "host", "unknown"]
"""What takes most of an operator's time: FLOP/s, memory bandwidth, kernels that take their time
however small they are, the links between GPUs, or the engine's own work on the CPU."""


class OperatorTime(NamedTuple):
    """One operator of a step on one GPU, in all layers that have it.

    seconds: in all these layers. layers: how many run it. flops, num_bytes: work and memory traffic
    in all of them, 0 if an operator has none or they are unknown. kernel: the kind of kernel whose
    figures time it, as named in the GPU's entry; empty if there are none. dtype: the type that it
    is computed in where the GPU has it, which picks the peak of its FLOP/s.
    """

    name: str
    seconds: float
    bound: Bound
    layers: int = 1
    flops: float = 0.0
    num_bytes: float = 0.0
    kernel: str = ""
    dtype: str = "bf16"


def explained(
    predictor: Predictor, batch: StepBatch, *, is_on_the_spot: bool = False
) -> list[OperatorTime]:
    """Return the operators of a step, whose seconds add up to its time.

    A predictor that can take its steps apart has a method `explain(batch, is_on_the_spot)`; for
    others the whole step is one operator.
    is_on_the_spot: whether async scheduling could not plan the step ahead
    (`PredictorTraits.step_time_on_the_spot`).
    """
    explain = getattr(predictor, "explain", None)
    if explain is not None:
        found: list[OperatorTime] = explain(batch, is_on_the_spot)
        return found
    name = f"whole step ({type(predictor).__name__})"
    return [OperatorTime(name, predictor.step_time(batch), "unknown")]


def merged(operators: Iterable[OperatorTime]) -> list[OperatorTime]:
    """Return operators of one name, kernel and type as one, bound as the longest of them is."""
    found: dict[tuple[str, str, str], list[OperatorTime]] = {}
    for operator in operators:
        found.setdefault((operator.name, operator.kernel, operator.dtype), []).append(operator)
    return [
        max(same, key=lambda each: each.seconds)._replace(
            seconds=sum([each.seconds for each in same]),
            layers=sum([each.layers for each in same]),
            flops=sum([each.flops for each in same]),
            num_bytes=sum([each.num_bytes for each in same]),
        )
        for same in found.values()
    ]
