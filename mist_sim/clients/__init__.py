"""Serving units: what takes a request's stages and works on them (MIST §III-D)."""

from mist_sim.clients.afd.client import AfdClient
from mist_sim.clients.base import Client
from mist_sim.clients.engine_config import EngineConfig
from mist_sim.clients.llm import LlmClient
from mist_sim.clients.registry import CLIENTS
from mist_sim.clients.workers.processing import SequentialClient

__all__ = ["CLIENTS", "AfdClient", "Client", "EngineConfig", "LlmClient", "SequentialClient"]
