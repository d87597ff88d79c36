"""Autoscaling: policies, and the controller that starts and drains clients for them."""

from mist_sim.lifecycle.autoscaling.autoscaling_options import Autoscaling
from mist_sim.lifecycle.autoscaling.base import AUTOSCALERS, Autoscaler, GroupView
from mist_sim.lifecycle.autoscaling.policies import (
    QueueLength,
    Schedule,
    SloAttainment,
    Utilisation,
)

__all__ = [
    "AUTOSCALERS",
    "Autoscaler",
    "Autoscaling",
    "GroupView",
    "QueueLength",
    "Schedule",
    "SloAttainment",
    "Utilisation",
]
