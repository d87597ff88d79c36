"""BestServe: strategies, its fast simulators, and the search for the best strategy.

Hu et al., "BestServe: Serving Strategies with Optimal Goodput in Collocation and Disaggregation
Architectures" (2025): `docs/background/bestserve.md`.
"""

from mist_sim.bestserve.goodput import search_rate
from mist_sim.bestserve.oracle import Batch, Oracle
from mist_sim.bestserve.requests import Requests
from mist_sim.bestserve.simulation import Method, Served, simulate_strategy
from mist_sim.bestserve.strategy import Strategy

__all__ = [
    "Batch",
    "Method",
    "Oracle",
    "Requests",
    "Served",
    "Strategy",
    "search_rate",
    "simulate_strategy",
]
