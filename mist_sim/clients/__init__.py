"""Serving units: clients that take a request's stages and work on them (MIST §III-D)."""

from typing import TYPE_CHECKING

from mist_sim.clients.base import Client
from mist_sim.clients.llm import LlmClient
from mist_sim.clients.options.engine_config import EngineConfig
from mist_sim.clients.registry import CLIENTS
from mist_sim.clients.workers.application import ApplicationClient
from mist_sim.clients.workers.processing import SequentialClient
from mist_sim.on_demand import on_demand

if TYPE_CHECKING:
    from mist_sim.clients.afd import AfdClient
    from mist_sim.clients.rag import RagClient
    from mist_sim.clients.retrieval.client import KvRetrievalClient
    from mist_sim.clients.workers.text import TextClient, TimedFunction

__all__ = [
    "CLIENTS",
    "AfdClient",
    "ApplicationClient",
    "Client",
    "EngineConfig",
    "KvRetrievalClient",
    "LlmClient",
    "RagClient",
    "SequentialClient",
    "TextClient",
    "TimedFunction",
]

__getattr__ = on_demand(
    __name__,
    {
        "AfdClient": "afd",
        "KvRetrievalClient": "retrieval.client",
        "RagClient": "rag",
        "TextClient": "workers.text",
        "TimedFunction": "workers.text",
    },
)
