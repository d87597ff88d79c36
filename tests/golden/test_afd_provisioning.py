"""AFD provisioning: the figures of arXiv 2601.21351v3.

B = 256 slots, prompts of 100 tokens on average, geometric answers of 500, coefficients of table 3.
The readings of what is ambiguous stand in docs/background/afd.md.
"""

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest

from mist_sim.hardware.afd import PRESETS
from mist_sim.rng import Streams
from mist_sim.search import (
    BundleSpec,
    estimate_slot_load,
    expected_maximum,
    geometric_slot_load,
    predict,
    provision,
)
from mist_sim.search.afd import mean_field_cycle, per_instance

LOAD = geometric_slot_load(100, 9900, 500)
SPEC = BundleSpec(PRESETS["deepseek-v3-ascend-910c"], LOAD, slots=256)


def test_load_of_a_slot():
    assert LOAD.mean == pytest.approx(599, abs=1e-9)
    assert LOAD.std == pytest.approx(509.3133, abs=1e-4)


@pytest.mark.parametrize(
    ("workers", "kappa"),
    [(2, 0.5642), (4, 1.0294), (8, 1.4236), (12, 1.6292), (16, 1.7660), (24, 1.9477), (32, 2.0697)],
)
def test_kappa(workers, kappa):
    assert expected_maximum(workers) == pytest.approx(kappa, abs=1e-4)


def test_attention_time():
    c = SPEC.coefficients
    assert c.attention_time(256 * LOAD.mean) == pytest.approx(303.0176, abs=1e-6)
    assert c.alpha_a * 16 * LOAD.std == pytest.approx(13.4459, abs=1e-4)


def test_candidates_of_the_mean_field_rule():
    found = provision(SPEC).candidates
    assert [c.ratio for c in found] == [
        pytest.approx(9.5547, abs=1e-4),
        pytest.approx(1.8844, abs=1e-4),
        pytest.approx(2.1694, abs=1e-4),
        None,  # -5.12: FFN takes longer than communication at every ratio
    ]


def test_throughput_of_the_mean_field_rule():
    best = provision(SPEC).mean_field
    assert best.rule == "attention"
    assert best.throughput == pytest.approx(0.76479, abs=1e-4)
    cycle = mean_field_cycle(SPEC.coefficients, LOAD.mean, 256, best.ratio)
    assert cycle == pytest.approx(303.0176, abs=1e-4)


@pytest.mark.parametrize(
    ("slots", "ratio", "paper", "integer", "gaussian"),
    [(128, 7.2015, 7.08, 7, 8), (256, 9.5547, 9.34, 9, 10), (512, 10.7313, 10.31, 10, 11)],
)
def test_best_ratios(slots, ratio, paper, integer, gaussian):
    found = provision(replace(SPEC, slots=slots))
    assert found.mean_field.ratio == pytest.approx(ratio, abs=1e-4)
    assert found.mean_field.ratio == pytest.approx(paper, rel=0.05)
    assert found.mean_field_integer.attention_workers == integer
    assert found.gaussian.attention_workers == gaussian


@pytest.mark.parametrize(
    ("workers", "cycle", "throughput"),
    [
        (2, 310.60, 0.54947),
        (4, 316.86, 0.64635),
        (8, 322.16, 0.70635),
        (9, 322.98, 0.71335),
        (10, 323.88, 0.71856),
        (12, 354.98, 0.66570),
    ],
)
def test_gaussian_cycle(workers, cycle, throughput):
    found = predict(SPEC, workers)
    assert found.cycle_gaussian == pytest.approx(cycle, abs=1e-2)
    assert found.throughput_gaussian == pytest.approx(throughput, abs=1e-4)


def test_the_best_of_the_papers_grid():
    grid = [predict(SPEC, workers) for workers in (1, 2, 4, 8, 16, 24, 32)]
    assert max(grid, key=lambda p: p.throughput_gaussian).attention_workers == 8


def test_mean_field_throughput_of_every_ratio():
    """The theory's column beside the simulation."""
    expected = [0.4224, 0.5632, 0.6759, 0.7510, 0.7448, 0.6657, 0.5476, 0.4029, 0.3183]
    ratios = (1, 2, 4, 8, 10, 12, 16, 24, 32)
    cycles = [predict(SPEC, ratio).cycle_mean_field for ratio in ratios]
    found = [per_instance(256, *pair) for pair in zip(ratios, cycles, strict=True)]
    assert found == pytest.approx(expected, abs=1e-4)


# --- table 1: how much longer the barrier makes attention ---------------------------------------

OVERHEADS = {2: 3.00, 4: 5.47, 8: 7.57, 12: 8.66, 16: 9.39, 24: 10.35, 32: 11.00}


@pytest.mark.parametrize(("workers", "percent"), OVERHEADS.items())
def test_overhead_of_the_barrier(workers, percent):
    """The row that the paper calls r = 24 (11.01 %) is that of r = 32."""
    overhead = LOAD.std / LOAD.mean * expected_maximum(workers) / 256**0.5
    assert 100 * overhead == pytest.approx(percent, abs=0.011)


@pytest.fixture(scope="module")
def worker_loads():
    """Tokens of so many workers of 256 slots, drawn at a random step."""
    rng = Streams(7).generator("monte carlo")
    num_workers = 320_000
    # of a geometric stay the age, met at random, is geometric too, from 0 on
    ages = rng.negative_binomial(256, 1 / 500, num_workers)
    prompts = rng.negative_binomial(256, 1 / 100, num_workers) + 256
    return ages + prompts


@pytest.mark.parametrize(
    ("workers", "percent"),
    [(2, 3.03), (4, 5.53), (8, 7.70), (12, 8.88), (16, 9.64), (24, 10.68), (32, 11.40)],
)
def test_monte_carlo_of_the_barrier(worker_loads, workers, percent):
    """10,000 trials or more: the standard error is at most 0.03 points."""
    groups = worker_loads[: len(worker_loads) // workers * workers].reshape(-1, workers)
    overhead = groups.max(axis=1).mean() / (256 * LOAD.mean) - 1
    assert 100 * overhead == pytest.approx(percent, abs=0.1)


# --- the estimator ------------------------------------------------------------------------------


def test_spread_of_the_estimator():
    """With 10,000 requests theta is known to 7 tokens (standard deviation)."""
    rng = Streams(3).generator("lengths")
    prefill, decode = rng.geometric(1 / 100, 10_000), rng.geometric(1 / 500, 10_000)
    found = estimate_slot_load(prefill, decode)
    assert (found.theta.high - found.theta.low) / 2 / 1.96 == pytest.approx(7.0, abs=0.7)
    assert found.theta.low < LOAD.mean < found.theta.high
    assert found.nu_squared.low < LOAD.variance < found.nu_squared.high


@pytest.mark.parametrize(("trace", "ratio"), [("conv", 22.016), ("code", 40.040)])
def test_azure_traces(shared, trace, ratio):
    """The estimate is mean and variance of the loads of all requests at all their steps."""
    rows = pd.read_csv(shared(f"traces/AzureLLMInferenceTrace_{trace}.csv"))
    prefill, decode = rows["ContextTokens"].to_numpy(), rows["GeneratedTokens"].to_numpy() - 1
    first = np.cumsum(decode) - decode
    loads = np.repeat(prefill - first, decode) + np.arange(decode.sum())
    found = estimate_slot_load(prefill, decode)
    assert found.theta.value == pytest.approx(loads.mean(), rel=1e-12)
    assert found.nu_squared.value == pytest.approx(loads.var(), rel=1e-9)
    best = provision(BundleSpec(SPEC.coefficients, found.load, 256)).mean_field
    assert best.ratio == pytest.approx(ratio, abs=1e-3)
