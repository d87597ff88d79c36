"""Experts that the busiest rank reads, beside routes that are drawn."""

import numpy as np
import pytest

from mist_sim.models.moe import MoeSpec
from mist_sim.rng import Streams


def drawn(moe, num_tokens, num_ranks):
    rng = Streams(0).generator("routes")
    found = []
    for _ in range(max(150, 2000 // num_tokens)):
        order = rng.random((num_tokens, moe.num_experts)).argpartition(
            moe.num_experts_per_token - 1, axis=1
        )
        reached = np.zeros(moe.num_experts, dtype=bool)
        reached[order[:, : moe.num_experts_per_token]] = True
        found.append(reached.reshape(num_ranks, -1).sum(axis=1).max())
    return np.mean(found)


@pytest.mark.parametrize(("experts", "each"), [(8, 2), (128, 8), (160, 8), (256, 8)])
@pytest.mark.parametrize("num_ranks", [2, 8])
@pytest.mark.parametrize("num_tokens", [1, 3, 16, 200])
def test_experts_of_the_busiest_rank(experts, each, num_ranks, num_tokens):
    moe = MoeSpec(num_experts=experts, num_experts_per_token=each, intermediate_size=1)
    found = moe.on_busiest_rank(num_tokens, num_ranks)
    assert found == pytest.approx(drawn(moe, num_tokens, num_ranks), rel=0.05)


def test_one_rank_has_the_experts_of_all():
    moe = MoeSpec(num_experts=128, num_experts_per_token=8, intermediate_size=1)
    assert moe.on_busiest_rank(5, 1) == moe.distinct_experts(5)
    numbers = [moe.on_busiest_rank(n, 8) for n in range(300)]
    assert numbers == sorted(numbers)
    assert numbers[0] == 0
    assert numbers[-1] == pytest.approx(16, rel=1e-3)
