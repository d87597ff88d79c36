"""Measured step times: files of timings as grids for the table predictor."""

from mist_sim.hardware.tables.base import StepTables, TableFormat
from mist_sim.hardware.tables.layer_profile import read_layer_profile
from mist_sim.hardware.tables.splitwise import read_splitwise
from mist_sim.hardware.tables.steps import read_steps
from mist_sim.hardware.tables.vidur import read_vidur

__all__ = ["TABLE_FORMATS", "StepTables", "TableFormat"]

TABLE_FORMATS = {
    "layer_profile": TableFormat(read_layer_profile, of_layers=True),
    "splitwise": TableFormat(read_splitwise, has_subsets=True),
    "steps": TableFormat(read_steps),
    "vidur": TableFormat(read_vidur, of_layers=True),
}
"""By the names that scenarios use."""
