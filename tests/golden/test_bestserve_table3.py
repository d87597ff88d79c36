"""BestServe, table 3: CodeLlama-34b on four Ascend 910B3, one request of 2,048 + 64 tokens.

Times are milliseconds. The readings of the ambiguous rows, and what each misses by, stand in
docs/background/bestserve.md.
"""

from dataclasses import replace

import numpy as np
import pytest

from mist_sim.core.batch import StepBatch, StepGrowth
from mist_sim.hardware import Cluster, load_gpu
from mist_sim.hardware.predictors import BestServePredictor
from mist_sim.hardware.predictors.analytic import bestserve
from mist_sim.models import load_model

PREFILL = StepBatch(chunks=((2048, 0),))
DECODE = StepBatch(num_decodes=1, context_sum=2110)  # attends to 2048 + 63 tokens with its own


def oracle(composition="running_clocks"):
    return BestServePredictor(
        load_model("codellama-34b"), Cluster(load_gpu("ascend-910b3"), 4), composition
    )


def cell(batch, module):
    """Return a module's compute time in ms."""
    modules = oracle().modules(batch, StepGrowth(), 0.0)
    return 1e3 * np.ravel({name: compute for name, compute, _ in modules}[module]).item()


@pytest.mark.parametrize(
    ("batch", "module", "paper_ms", "tolerance"),
    [
        (PREFILL, "rmsnorm", 0.223, 0.005),
        (PREFILL, "attention", 2.122, 0.005),
        (PREFILL, "mlp", 2.809, 0.005),
        (DECODE, "attention", 0.176, 0.015),
        (DECODE, "mlp", 0.530, 0.04),  # ours is 3.2 % low; no table has the missing 0.017 ms
    ],
)
def test_cells(batch, module, paper_ms, tolerance):
    assert cell(batch, module) == pytest.approx(paper_ms, rel=tolerance)


def test_decode_norm_rounds_to_zero():
    assert cell(DECODE, "rmsnorm") == pytest.approx(0.0, abs=0.0005)


@pytest.mark.parametrize(
    ("batch", "paper_ms", "tolerance"), [(PREFILL, 265.123, 0.015), (DECODE, 33.573, 0.02)]
)
def test_totals(batch, paper_ms, tolerance):
    assert 1e3 * oracle().step_time(batch) == pytest.approx(paper_ms, rel=tolerance)


@pytest.mark.parametrize(("batch", "expected_ms"), [(PREFILL, 266.134), (DECODE, 43.413)])
def test_printed_algorithm_is_an_option(batch, expected_ms):
    """As printed, dispatch of one layer is multiplied by all layers; decode misses by 29 %."""
    assert 1e3 * oracle("algorithm_1").step_time(batch) == pytest.approx(expected_ms, rel=0.001)


def test_prefill_time_is_proportional_to_the_batch():
    one, *others = (
        oracle().step_time(StepBatch(chunks=((2048, 0),) * batch_size)) for batch_size in (1, 2, 4)
    )
    for factor, seconds in zip((2, 4), others, strict=True):
        assert seconds == pytest.approx(factor * one, rel=0.002)


# --- layers folded into one -----------------------------------------------------------------------


@pytest.mark.parametrize("slower", [0.0, 0.1, 1.0, 30.0])
@pytest.mark.parametrize("model", ["codellama-34b", "llama-3.1-70b"])
def test_folded_layers_are_both_clocks_carried_through_all_of_them(model, slower):
    """Modules of attention and MLP on four ranks; the host from never to always the slower one."""
    gpu = load_gpu("ascend-910b3")
    gpu = replace(
        gpu, dispatch={name: slower * each for name, each in gpu.dispatch.items() if slower}
    )
    found = BestServePredictor(load_model(model), Cluster(gpu, 4))
    for batch in (PREFILL, DECODE, StepBatch(((9, 70),)), StepBatch((), 200, 90_000)):
        dispatched = computed = 0.0
        modules = found.modules(batch, StepGrowth(), 0.0)
        for name, compute, communication in modules * found.model.num_layers:
            dispatched += gpu.dispatch.get(name, 0.0)
            computed = max(dispatched, computed) + compute + communication
        assert found.step_time(batch) == pytest.approx(computed, rel=1e-12)


def test_what_is_remembered_is_bounded_and_changes_nothing(monkeypatch):
    batches = [StepBatch(((new, 0),), decodes, 900) for new in (1, 30, 500) for decodes in (1, 8)]
    plain = [oracle().step_time(batch) for batch in batches]
    monkeypatch.setattr(bestserve, "_MOST_KNOWN", 2)
    found = oracle()
    assert [found.step_time(batch) for batch in batches * 3] == plain * 3
    assert len(found._fixed) <= 2
