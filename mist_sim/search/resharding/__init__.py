"""Which layouts to prefill and decode in, by Seesaw's appendix A."""

from mist_sim.search.resharding.pair_times import Lengths, PairTimes
from mist_sim.search.resharding.pairs import Choices, PairOptions, rank_pairs

__all__ = ["Choices", "Lengths", "PairOptions", "PairTimes", "rank_pairs"]
