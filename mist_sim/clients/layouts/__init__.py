"""How a model lies on the GPUs of a client, and how a client goes from one layout to another."""

from mist_sim.clients.layouts.layout import EngineLayout

__all__ = ["EngineLayout"]
