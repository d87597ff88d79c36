"""Laws of times in seconds: how long a user is patient, how long a worker takes for a stage."""

from mist_sim.durations.base import (
    BLOCK,
    DURATIONS,
    DurationDistribution,
    Floats,
    SecondsOrLaw,
    draws,
    lognormal,
    not_reached,
    require_plan,
    require_positive,
    require_spread,
)
from mist_sim.durations.empirical import EmpiricalDuration
from mist_sim.durations.laws import (
    ConstantDuration,
    ExponentialDuration,
    GammaDuration,
    LogNormalDuration,
    UniformDuration,
)

__all__ = [
    "BLOCK",
    "DURATIONS",
    "ConstantDuration",
    "DurationDistribution",
    "EmpiricalDuration",
    "ExponentialDuration",
    "Floats",
    "GammaDuration",
    "LogNormalDuration",
    "SecondsOrLaw",
    "UniformDuration",
    "draws",
    "lognormal",
    "not_reached",
    "require_plan",
    "require_positive",
    "require_spread",
]
