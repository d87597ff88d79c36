"""Which layouts to prefill and decode in, by Seesaw's appendix A."""

from mist_sim.search.resharding.layout_pairs import Choices, PairOptions, rank_pairs
from mist_sim.search.resharding.pair_times import Lengths, PairTimes

__all__ = ["Choices", "Lengths", "PairOptions", "PairTimes", "rank_pairs"]
