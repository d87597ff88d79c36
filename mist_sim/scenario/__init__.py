"""Scenario files: strict YAML, and the simulation objects made from it."""

from mist_sim.scenario.build import build, build_workload, simulate, start
from mist_sim.scenario.engines.defaults import server_limits
from mist_sim.scenario.engines.llm_client import llm_client
from mist_sim.scenario.schema import Scenario

__all__ = [
    "Scenario",
    "build",
    "build_workload",
    "llm_client",
    "server_limits",
    "simulate",
    "start",
]
