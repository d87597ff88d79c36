"""Levels of links that are mended from change to change: what the plain water-filling says."""

import numpy as np
import pytest

from mist_sim.network.flows import Levels, fill_up
from mist_sim.rng import Streams


class Crowd:
    """Paths across random links, some of which carry more than others."""

    def __init__(self, seed: int, num_links: int, num_paths: int, bandwidths) -> None:
        self.rng = Streams(seed).generator("crowd")
        self.num_links = num_links
        self.capacities = [float(one) for one in self.rng.choice(bandwidths, num_links)]
        self.levels = Levels(self.capacities)
        self.paths: list[tuple[int, ...]] = []
        for _ in range(num_paths):
            self.join()

    def join(self) -> None:
        path = self.rng.permutation(self.num_links)[: self.rng.integers(1, 7)]
        if (path := tuple(int(link) for link in path)) not in self.paths:
            self.put(len(self.paths), path)

    def leave(self) -> None:
        gone, last = int(self.rng.integers(len(self.paths))), self.paths.pop()
        if gone < len(self.paths):
            self.put(gone, last)

    def put(self, column: int, path: tuple[int, ...]) -> None:
        self.paths[column : column + 1] = [path]
        self.levels.put(column, path)

    def check(self, rel: float) -> None:
        counts = self.rng.integers(1, 4, len(self.paths))
        rates = self.levels.rates(counts.astype(np.float64))
        plain = fill_up(self.capacities, dict(zip(self.paths, counts.tolist(), strict=True)))
        assert rates == pytest.approx([plain[path] for path in self.paths], rel=rel)


BANDWIDTHS = ([1.0, 2.0, 8.0], [1.0], np.linspace(1.0, 50.0, 99))


@pytest.mark.parametrize("bandwidths", BANDWIDTHS, ids=["few", "one", "many"])
@pytest.mark.parametrize("seed", range(5))
def test_rates_stay_max_min_fair_through_changes(seed, bandwidths):
    crowd = Crowd(seed, 12 + 6 * seed, 60, bandwidths)
    for _ in range(60):
        crowd.check(rel=1e-9)
        for _ in range(int(crowd.rng.integers(0, 4))):
            crowd.leave()
            crowd.join()


def test_links_that_nobody_crosses_any_more_are_not_full():
    levels = Levels([8.0, 4.0, 2.0])
    levels.put(0, (0, 1))
    levels.put(1, (0, 2))
    assert levels.rates(np.ones(2)).tolist() == [4.0, 2.0]
    levels.put(0, (0,))
    assert levels.rates(np.ones(2)).tolist() == [6.0, 2.0]
    levels.put(1, (0,))
    assert levels.rates(np.array([1.0, 3.0])).tolist() == [2.0, 2.0]
    levels.put(0, (1,))
    assert levels.rates(np.ones(1)).tolist() == [4.0]


def test_a_flow_of_many_changes_little_and_nothing_is_shared_anew(monkeypatch):
    """Of 300 changes among 200 paths, none needs more than Newton's steps."""
    crowd = Crowd(7, 80, 200, np.linspace(1.0, 50.0, 99))
    counts = np.ones(300)
    crowd.levels.rates(counts[: len(crowd.paths)])
    anew = []
    share = Levels._begin_anew
    monkeypatch.setattr(
        Levels, "_begin_anew", lambda *given: anew.append(1) or share(*given), raising=True
    )
    for _ in range(300):
        crowd.leave()
        crowd.join()
        crowd.levels.rates(counts[: len(crowd.paths)])
    assert len(anew) == 0
