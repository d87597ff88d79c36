"""MIST §V: sizes of KV caches that follow from a model's shape."""

import pytest

from mist_sim.models import load_model


def test_kv_bytes_per_token_of_llama_70b():
    assert load_model("llama-3.1-70b").kv_bytes_per_token == 327_680


@pytest.mark.parametrize(("num_tokens", "gigabytes"), [(4096, 1.342), (24576, 8.053)])
def test_context_sizes_of_the_paper(num_tokens, gigabytes):
    size = num_tokens * load_model("llama-3.1-70b").kv_bytes_per_token
    assert size / 1e9 == pytest.approx(gigabytes, abs=0.0005)
