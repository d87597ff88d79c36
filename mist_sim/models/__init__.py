"""The models that are served: their sizes, read from Hugging Face `config.json`."""

from mist_sim.models.mixers import MlaSpec
from mist_sim.models.model_loading import check_generates, load_generating, load_model, model_names
from mist_sim.models.moe import MoeSpec
from mist_sim.models.quantization import Quantization
from mist_sim.models.spec import ModelSpec
from mist_sim.models.speculative import SpeculativeConfig

__all__ = [
    "MlaSpec",
    "ModelSpec",
    "MoeSpec",
    "Quantization",
    "SpeculativeConfig",
    "check_generates",
    "load_generating",
    "load_model",
    "model_names",
]
