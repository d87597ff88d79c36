"""The clients of a scenario file: engines of a language model, workers, and plugins of others."""

from mist_sim.scenario.sections.clients.base import ClientPart
from mist_sim.scenario.sections.clients.family import CLIENT, AnyClient, with_engine
from mist_sim.scenario.sections.clients.keys import EngineName, ModelName

__all__ = [
    "CLIENT",
    "AnyClient",
    "ClientPart",
    "EngineName",
    "ModelName",
    "with_engine",
]
