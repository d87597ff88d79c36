"""A space of scenarios: which of them is best, or which are, for several objectives."""

from mist_sim.search.spaces.searching import SearchOptions, search_space
from mist_sim.search.spaces.space import Space, read_space
from mist_sim.search.spaces.space_result import SpaceSearch

__all__ = ["SearchOptions", "Space", "SpaceSearch", "read_space", "search_space"]
