"""Bytes of weights of vLLM 0.33.0's own model classes, built without storage on one rank.

Towers of images are left out. What we count less is listed: vLLM keeps the decay of each head of
linear layers in 32 bits, the routers of some models with their biases, too, and, until the weights
are loaded, four scales of attention in each quantized layer (2 bytes each).
"""

import pytest

from mist_sim.models import load_model

SCALES = 4 * 2  # bytes in a layer
MORE = 2  # bytes of a value in 32 bits beside one in 16

MODELS = {
    "qwen3-8b": (16_381_470_720, 0),
    "qwen3-30b-a3b-fp8": (31_174_545_792, 48 * SCALES),
    "gpt-oss-120b": (65_248_815_744, 0),
    "llama-4-scout-17b-16e-instruct": (215_539_722_240, 0),
    "qwen3.5-27b": (53_792_001_536, 48 * 48 * MORE),
    "qwen3.5-35b-a3b": (69_321_223_296, 30 * 32 * MORE),
    "qwen3.5-397b-a17b": (792_692_706_432, 45 * 64 * MORE),
    "qwen3.8-2.4t-a95b-fp8": (2_469_366_280_376, 69 * 128 * MORE + 23 * SCALES),
    "nemotron-h-56b-base-8k": (112_648_728_576, 54 * 256 * MORE),
    "nemotron-3-nano-30b-a3b-bf16": (63_171_716_352, 23 * (128 * (2_688 + 1) + 64) * MORE),
    "mimo-v2-flash": (310_252_037_120, 47 * 256 * (4_096 + 1) * MORE + 48 * SCALES),
}
"""By model: vLLM's bytes, and those of them that we do not count."""


@pytest.mark.parametrize("name", MODELS)
def test_weights_are_those_of_vllm(name):
    theirs, left_out = MODELS[name]
    assert load_model(name).weight_bytes_per_rank(1) == theirs - left_out


def test_sparse_attention_keeps_its_indexer_in_16_bits():
    """Of DeepSeek-V3.2 we count the indexer's keys and weights in 8, as the checkpoint has them.

    We also count the copies of `kv_b_proj` that vLLM makes after loading.
    """
    copies = 61 * 128 * (128 + 128) * 512 * 2
    indexer = 61 * (192 * 7_168 + 2 * 128 * MORE - 56 * 4)  # its norm in 32 bits, without scales
    biases = 58 * 256 * MORE  # of routers
    assert load_model("deepseek-v3.2").weight_bytes_per_rank(1) == (
        674_086_322_528 + copies - indexer - biases
    )
