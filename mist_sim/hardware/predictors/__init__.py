"""Predictors of step times: one interface, several sources (MIST §III-F)."""

from typing import TYPE_CHECKING

from mist_sim.hardware.predictors.analytic.bestserve import BestServePredictor
from mist_sim.hardware.predictors.analytic.linear import LinearPredictor
from mist_sim.hardware.predictors.analytic.roofline import RooflinePredictor
from mist_sim.hardware.predictors.base import PREDICTORS, Predictor, PredictorTraits, traits_of
from mist_sim.hardware.predictors.drafting import with_drafting
from mist_sim.hardware.predictors.overhead import EngineOverhead
from mist_sim.hardware.predictors.ranks import PipelinePredictor, pipeline_predictor, ranks_of
from mist_sim.on_demand import on_demand

if TYPE_CHECKING:
    from mist_sim.hardware.predictors.external import ProgramPredictor
    from mist_sim.hardware.predictors.measured.regression import RegressionPredictor
    from mist_sim.hardware.predictors.measured.table import TablePredictor

__all__ = [
    "PREDICTORS",
    "BestServePredictor",
    "EngineOverhead",
    "LinearPredictor",
    "PipelinePredictor",
    "Predictor",
    "PredictorTraits",
    "ProgramPredictor",
    "RegressionPredictor",
    "RooflinePredictor",
    "TablePredictor",
    "pipeline_predictor",
    "ranks_of",
    "traits_of",
    "with_drafting",
]

__getattr__ = on_demand(
    __name__,
    {
        "ProgramPredictor": "external",
        "RegressionPredictor": "measured.regression",
        "TablePredictor": "measured.table",
    },
)
