"""Records of a run and the figures computed from them."""

from mist_sim.metrics.clients import InterferenceLaw
from mist_sim.metrics.goodput import Slo
from mist_sim.metrics.replications import Estimate, Replications
from mist_sim.metrics.result import Result
from mist_sim.metrics.spending import ApiPrices, CostOptions, PowerOptions

__all__ = [
    "ApiPrices",
    "CostOptions",
    "Estimate",
    "InterferenceLaw",
    "PowerOptions",
    "Replications",
    "Result",
    "Slo",
]
