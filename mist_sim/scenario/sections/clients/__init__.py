"""The clients of a scenario file: engines of a language model, workers, and plugins of others."""

from mist_sim.scenario.sections.clients.afd import AfdPart
from mist_sim.scenario.sections.clients.base import ClientPart
from mist_sim.scenario.sections.clients.family import CLIENT, AnyClient, with_engine
from mist_sim.scenario.sections.clients.keys import EngineName, ModelName
from mist_sim.scenario.sections.clients.llm import LlmPart
from mist_sim.scenario.sections.clients.rules import client_problems
from mist_sim.scenario.sections.clients.sequential import SequentialPart

__all__ = [
    "CLIENT",
    "AfdPart",
    "AnyClient",
    "ClientPart",
    "EngineName",
    "LlmPart",
    "ModelName",
    "SequentialPart",
    "client_problems",
    "with_engine",
]
