"""A space of scenarios: which of them is best, or which are, for several objectives."""

from mist_sim.search.spaces.reading import read_space
from mist_sim.search.spaces.result import SpaceSearch
from mist_sim.search.spaces.searching import SearchOptions, search_space
from mist_sim.search.spaces.space import Space

__all__ = ["SearchOptions", "Space", "SpaceSearch", "read_space", "search_space"]
