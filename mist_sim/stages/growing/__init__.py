"""Stages that decide what follows them: branches, searches, tool calls, passes of other models."""

from mist_sim.stages.growing.augmentation import Augment
from mist_sim.stages.growing.base import Deliver, Growing
from mist_sim.stages.growing.branches import BestOfN
from mist_sim.stages.growing.passes import ModelPass
from mist_sim.stages.growing.tools import ToolLoop
from mist_sim.stages.growing.tree import TreeSearch

__all__ = ["Augment", "BestOfN", "Deliver", "Growing", "ModelPass", "ToolLoop", "TreeSearch"]
