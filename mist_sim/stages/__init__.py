"""The vocabulary of stages, and pipelines as ordered combinations of them (MIST §III-B)."""

from mist_sim.core.request import Stage
from mist_sim.stages.growing import (
    Augment,
    BestOfN,
    Deliver,
    Growing,
    ModelPass,
    ToolLoop,
    TreeSearch,
)
from mist_sim.stages.llm import Decode, Prefill, Prompted, Reasoning, Recomputation
from mist_sim.stages.pipeline import completion, validate_pipeline
from mist_sim.stages.processing import (
    EncodeImages,
    KvRetrieval,
    Postprocess,
    Preprocess,
    Rag,
    ToolCall,
)
from mist_sim.stages.stage_kinds import STAGES

__all__ = [
    "STAGES",
    "Augment",
    "BestOfN",
    "Decode",
    "Deliver",
    "EncodeImages",
    "Growing",
    "KvRetrieval",
    "ModelPass",
    "Postprocess",
    "Prefill",
    "Preprocess",
    "Prompted",
    "Rag",
    "Reasoning",
    "Recomputation",
    "Stage",
    "ToolCall",
    "ToolLoop",
    "TreeSearch",
    "completion",
    "validate_pipeline",
]
