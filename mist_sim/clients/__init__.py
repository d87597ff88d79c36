"""Serving units: what takes a request's stages and works on them (MIST §III-D)."""

from mist_sim.clients.base import Client
from mist_sim.clients.llm import LlmClient
from mist_sim.clients.processing import SequentialClient

__all__ = ["Client", "LlmClient", "SequentialClient"]
