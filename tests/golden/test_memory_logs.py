"""KV caches and weights as real engines logged them."""

from pathlib import Path
from statistics import median

import pytest

from benchmarks.memory_logs import LOGS, computed, table
from mist_sim.clients.kv_cache.profile_run import Needs
from mist_sim.hardware import Cluster, load_gpu
from mist_sim.models import load_model

GIB = 2.0**30
PAGE = Path(__file__).parents[2] / "docs" / "background" / "memory.md"


def test_caches_are_as_large_as_engines_logged():
    """The worst is gpt-oss-120B on one H100, of which 5 % are left for the cache."""
    errors = [abs(computed(log) / log.logged - 1) for log in LOGS]
    assert len(LOGS) >= 20
    assert median(errors) <= 0.0015
    assert max(errors) <= 0.015


def test_the_page_shows_the_comparison():
    rows = [line for line in PAGE.read_text("utf-8").splitlines() if " x " in line]
    assert len(rows) == 4
    assert set(rows) <= set(table())


@pytest.mark.parametrize(
    ("model", "gpu", "ranks", "backend", "logged", "within"),
    [
        ("gpt-oss-120b", "h100-sxm", 1, "marlin", 65.9651, 0.003),  # vllm-project/vllm#23278
        ("gpt-oss-120b", "h100-sxm", 1, "triton", 64.38, 0.003),  # vllm-project/vllm#33155
        ("gpt-oss-20b", "a100-80gb-sxm", 1, "marlin", 13.72, 0.005),  # myoceane.fr, 2026-04-18
        ("gpt-oss-20b", "h100-sxm", 1, "triton", 13.47, 0.01),  # llm-d-benchmark
        ("gpt-oss-20b", "h100-sxm", 2, "triton", 7.01, 0.035),  # llm-d-planner, vLLM 0.19
    ],
)
def test_weights_are_as_large_as_engines_logged(model, gpu, ranks, backend, logged, within):
    """ "Model loading took ... GiB", with the kernel of the experts that the log names."""
    cluster = Cluster(load_gpu(gpu), ranks)
    weights = Needs(moe_backend=backend).weights(load_model(model), cluster)
    assert weights / GIB == pytest.approx(logged, rel=within)
    assert weights > load_model(model).weight_bytes_per_rank(ranks)
    assert Needs().weights(load_model(model), cluster) == weights or backend != "triton"
