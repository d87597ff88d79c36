"""Triton's experts in releases whose default tiles suit few tokens only."""

import pytest

from mist_sim.core.batch import StepBatch
from mist_sim.hardware import Cluster, load_gpu
from mist_sim.hardware.kernel_choice import BEYOND_EXPERTS, KernelChoice, has_tuned_tiles
from mist_sim.hardware.predictors import RooflinePredictor
from mist_sim.models import load_model


@pytest.mark.parametrize(
    ("model", "gpu", "ranks", "spread", "release", "tuned"),
    [
        ("mixtral-8x7b", "h100-sxm", 2, False, 15, True),
        ("mixtral-8x7b", "h100-sxm", 1, False, 15, False),
        ("qwen3-235b-a22b", "h100-sxm", 8, False, 12, True),
        ("qwen3-235b-a22b", "h100-sxm", 8, True, 12, False),
        ("qwen3-235b-a22b", "h100-sxm", 8, True, 17, True),
        ("qwen3-30b-a3b", "b200", 1, False, 13, False),
        ("qwen3-30b-a3b", "b200", 1, False, 14, True),
        ("qwen3-8b", "h100-sxm", 1, False, 11, True),
    ],
)
def test_shapes_with_tuned_tiles(model, gpu, ranks, spread, release, tuned):
    cluster = Cluster(load_gpu(gpu), ranks, enable_expert_parallel=spread)
    assert has_tuned_tiles("triton", load_model(model), cluster, release) == tuned
    assert has_tuned_tiles("deep_gemm", load_model(model), cluster, release)


def test_more_tokens_than_experts_take_longer():
    model = load_model("qwen3-235b-a22b")
    plain = Cluster(load_gpu("h100-sxm"), 8, enable_expert_parallel=True)
    slow = KernelChoice("triton", has_tuned_tiles=False).timed(model, plain)
    for number, factor in ((16, 1.0), (17, BEYOND_EXPERTS)):
        times = [
            sum(
                each.seconds
                for each in RooflinePredictor(model, cluster).explain(
                    StepBatch((), number, number * 100)
                )
                if each.name in ("experts_up", "experts_down")
            )
            for cluster in (plain, slow)
        ]
        assert times[1] == pytest.approx(times[0] * factor)
