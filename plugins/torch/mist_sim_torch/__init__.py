"""Layers of a model run with PyTorch on this machine: `mist profile`, `predictor: execution`."""

from mist_sim_torch.predictor import ExecutionPredictor

__all__ = ["ExecutionPredictor"]
