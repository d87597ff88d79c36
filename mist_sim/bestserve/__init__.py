"""BestServe: strategies, its fast simulators, and the search for the best strategy.

Hu et al., "BestServe: Serving Strategies with Optimal Goodput in Collocation and Disaggregation
Architectures" (2025): `docs/background/bestserve.md`.
"""

from mist_sim.bestserve.drawn_requests import Requests, requests_of
from mist_sim.bestserve.optimizer import FEASIBLE, Entry, Ranking, rank_strategies, search_rate
from mist_sim.bestserve.oracle import Batch, Oracle, Times
from mist_sim.bestserve.simulators import Method, Served, simulate_strategy
from mist_sim.bestserve.strategy import Space, Strategy

__all__ = [
    "FEASIBLE",
    "Batch",
    "Entry",
    "Method",
    "Oracle",
    "Ranking",
    "Requests",
    "Served",
    "Space",
    "Strategy",
    "Times",
    "rank_strategies",
    "requests_of",
    "search_rate",
    "simulate_strategy",
]
