"""The life of clients: they fail, are repaired, start, drain, and are scaled (DESIGN §11)."""

from mist_sim.lifecycle.assembly import Manager
from mist_sim.lifecycle.autoscaling import (
    AUTOSCALERS,
    Autoscaler,
    Autoscaling,
    GroupView,
    QueueLength,
    Schedule,
    SloAttainment,
    Utilisation,
)
from mist_sim.lifecycle.lifecycle_options import Drain, Failures, Lifecycle, OnFailure
from mist_sim.lifecycle.start_up import StartUp

__all__ = [
    "AUTOSCALERS",
    "Autoscaler",
    "Autoscaling",
    "Drain",
    "Failures",
    "GroupView",
    "Lifecycle",
    "Manager",
    "OnFailure",
    "QueueLength",
    "Schedule",
    "SloAttainment",
    "StartUp",
    "Utilisation",
]
