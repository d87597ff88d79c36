"""Measured step times: files of timings as grids for the table predictor."""

from mist_sim.hardware.tables.base import OF_LAYERS, TABLE_FORMATS, WITH_SUBSETS, StepTables
from mist_sim.hardware.tables.layer_profile import read_layer_profile
from mist_sim.hardware.tables.splitwise import read_splitwise
from mist_sim.hardware.tables.steps import read_steps
from mist_sim.hardware.tables.vidur import read_vidur

__all__ = [
    "OF_LAYERS",
    "TABLE_FORMATS",
    "WITH_SUBSETS",
    "StepTables",
    "read_layer_profile",
    "read_splitwise",
    "read_steps",
    "read_vidur",
]
