"""Weights of models whose layers differ, added up by hand from their configs, on one rank and two.

Matrices are split; norms and routers lie whole on every rank.
"""

import pytest

from mist_sim.models import load_model


def qwen35_27b(t: int) -> float:
    """Return the bytes of Qwen3.5-27B: 48 layers of Gated DeltaNet, 16 with attention."""
    h = 5_120
    # queries and keys of 16 heads of 128, values and gates of 48 of 128, decay and beta of each
    inputs = h * (2 * 16 * 128 + 2 * 48 * 128 + 2 * 48)
    convolution = (2 * 16 * 128 + 48 * 128) * 4
    delta = (inputs + 48 * 128 * h + convolution + 2 * 48) / t + 128  # norm of a head
    # 24 heads of 256 with gates of their size, 4 KV heads; norms of queries and keys
    full = (h * (2 * 24 + 2 * 4) * 256 + 24 * 256 * h) / t + 2 * 256
    mlp = 3 * h * 17_408 / t + 2 * h  # both norms of a layer
    return 2 * (48 * delta + 16 * full + 64 * mlp + h + 2 * 248_320 * h / t)


def nemotron_3_nano(t: int) -> float:
    """Return the bytes of Nemotron-3-Nano: 23 layers of Mamba-2, 23 of experts, 6 of attention."""
    h, inner, groups = 2_688, 64 * 64, 8 * 128
    # gate, values, B and C of 8 groups of 128, step of 64 heads; convolution of 4 with a bias
    inputs = h * (2 * inner + 2 * groups + 64)
    convolution = (inner + 2 * groups) * 5
    mamba = (inputs + inner * h + convolution + 3 * 64 + inner) / t  # decay, skip, step; norm
    attention = (h * (32 + 2 * 2) * 128 + 32 * 128 * h) / t
    # two matrices of 128 experts and of a shared one twice as large; router and its bias
    experts = (128 * 2 * h * 1_856 + 2 * h * 3_712) / t + h * 128 + 128
    norms = 52 * h + h  # one a layer, and the last
    return 2 * (23 * mamba + 6 * attention + 23 * experts + norms + 2 * 131_072 * h / t)


def llama_4_scout(t: int) -> float:
    """Return the bytes of Llama-4-Scout: 48 layers with 16 experts and a shared one."""
    h = 5_120
    attention = (h * (40 + 2 * 8) * 128 + 40 * 128 * h) / t
    experts = 17 * 3 * h * 8_192 / t + h * 16
    return 2 * (48 * (attention + experts + 2 * h) + h + 2 * 202_048 * h / t)


def gemma_4_31b_nvfp4(t: int) -> float:
    """Return the bytes of Gemma 4 31B: 50 layers with windows, 10 with all keys; MLPs in NVFP4.

    Keys are values in the ten. Four bits a parameter of the MLPs, and a byte for every 16.
    """
    h = 5_376
    window = (h * (32 + 2 * 16) * 256 + 32 * 256 * h) / t + 2 * 256
    full = (h * (32 + 4) * 512 + 32 * 512 * h) / t + 2 * 512
    mlp = 60 * 3 * h * 21_504 / t * (0.5 + 1 / 16)
    norms = 60 * 4 * h + h  # before and behind both parts
    return 2 * (50 * window + 10 * full + norms + 262_144 * h / t) + mlp


@pytest.mark.parametrize("ranks", [1, 2])
@pytest.mark.parametrize(
    ("name", "by_hand"),
    [
        ("qwen3.5-27b", qwen35_27b),
        ("nemotron-3-nano-30b-a3b-bf16", nemotron_3_nano),
        ("llama-4-scout-17b-16e-instruct", llama_4_scout),
        ("gemma-4-31b-it-nvfp4", gemma_4_31b_nvfp4),
    ],
)
def test_weights_of_a_rank_are_sum_by_hand(name, by_hand, ranks):
    assert load_model(name).weight_bytes_per_rank(ranks) == by_hand(ranks)
