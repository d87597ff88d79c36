"""The roofline beside measured kernels of aiconfigurator-core, on a part of the grid.

docs/background/roofline.md has all of it.
"""

import pytest

pytest.importorskip("aiconfigurator_core", reason="needs plugins/silicon")

from benchmarks import kernel_grid  # imports what the plugin brings
from mist_sim.hardware import load_gpu

CARDS, MODELS = ["h100-sxm", "l40s"], ["llama-3.1-8b", "gpt-oss-120b"]


def test_whole_steps_of_two_cards_and_models():
    """Every figure from figures of the catalog, which were fitted on these models as well."""
    grid = kernel_grid.measured(CARDS, MODELS, [1, 2])
    ours = kernel_grid.simulated(grid, lambda _, gpu: load_gpu(gpu))
    ratio = kernel_grid.ratios(grid, ours)
    found = kernel_grid.score(ratio)
    assert found["points"] > 400
    assert found["median"] < 0.06
    assert found["ninth"] < 0.17
    for step, limit in (("prompt", 0.10), ("decode", 0.06)):
        assert kernel_grid.score(ratio[grid["step"] == step])["median"] < limit


def test_the_table_of_architecture_is_what_measurements_say():
    card = load_gpu("l40s")
    for fit in kernel_grid.fits_of("ada"):
        kernel = card.kernels[fit.kind]
        for name, value in fit.values.items():
            held = getattr(kernel, name)
            if fit.kind == "bf16" and name in ("mfu", "mbu"):
                held = getattr(card.prefill, name)
            assert held == pytest.approx(value, rel=0.01), (fit.kind, name)
