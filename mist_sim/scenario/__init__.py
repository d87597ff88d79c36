"""Scenario files: strict YAML, turned into the objects of a simulation."""

from mist_sim.scenario.build import build, llm_client, simulate
from mist_sim.scenario.schema import Scenario

__all__ = ["Scenario", "build", "llm_client", "simulate"]
