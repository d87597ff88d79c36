"""The language models that are served: their sizes, read from Hugging Face `config.json`."""

from mist_sim.models.loading import load_model, model_names
from mist_sim.models.spec import ModelSpec

__all__ = ["ModelSpec", "load_model", "model_names"]
