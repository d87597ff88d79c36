"""What times an engine step: one interface, several sources (MIST §III-F)."""

from mist_sim.hardware.predictors.base import PREDICTORS, Predictor
from mist_sim.hardware.predictors.bestserve import BestServePredictor
from mist_sim.hardware.predictors.execution import ExecutionPredictor
from mist_sim.hardware.predictors.genz import GenzPredictor
from mist_sim.hardware.predictors.overhead import EngineOverhead
from mist_sim.hardware.predictors.pipeline import PipelinePredictor, pipeline_predictor
from mist_sim.hardware.predictors.program import ProgramPredictor
from mist_sim.hardware.predictors.regression import RegressionPredictor
from mist_sim.hardware.predictors.roofline import RooflinePredictor
from mist_sim.hardware.predictors.silicon import SiliconPredictor
from mist_sim.hardware.predictors.speculative import with_drafting
from mist_sim.hardware.predictors.table import TablePredictor

__all__ = [
    "PREDICTORS",
    "BestServePredictor",
    "EngineOverhead",
    "ExecutionPredictor",
    "GenzPredictor",
    "PipelinePredictor",
    "Predictor",
    "ProgramPredictor",
    "RegressionPredictor",
    "RooflinePredictor",
    "SiliconPredictor",
    "TablePredictor",
    "pipeline_predictor",
    "with_drafting",
]
