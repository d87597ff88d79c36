"""Vision towers: their sizes, and how many tokens an image becomes."""

from mist_sim.models.vision.resizing import (
    FillBudget,
    FixedSize,
    InTiles,
    PaddedUp,
    Resizing,
    WithinLimits,
)
from mist_sim.models.vision.serving import ImagesConfig
from mist_sim.models.vision.tower import VisionTower

__all__ = [
    "FillBudget",
    "FixedSize",
    "ImagesConfig",
    "InTiles",
    "PaddedUp",
    "Resizing",
    "VisionTower",
    "WithinLimits",
]
