"""The parts of AFD provisioning: loads of slots, the barrier, candidates, tails."""

import math
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mist_sim.errors import ScenarioError
from mist_sim.hardware.afd import PRESETS, AfdCoefficients
from mist_sim.rng import Streams
from mist_sim.search import (
    BundleSpec,
    SlotLoad,
    best_bundles,
    check_tail,
    estimate_slot_load,
    expected_maximum,
    geometric_slot_load,
    predict,
    provision,
    provision_interval,
    tail_of,
)
from mist_sim.search.afd import (
    best_candidate,
    candidates,
    excess_by_quadrature,
    expected_cycle,
    expected_excess,
    mean_field_cycle,
    per_instance,
)
from tests.refusals import refused

TABLE_3 = PRESETS["deepseek-v3-ascend-910c"]
LOAD = geometric_slot_load(100, 9900, 500)


def rng(name: str) -> np.random.Generator:
    return Streams(11).generator(name)


# --- the load of a slot -------------------------------------------------------------------------


def test_three_requests_by_hand():
    """(P, D) = (10, 1), (5, 3), (7, 0): a slot holds 10; 5, 6, 7; nothing."""
    ten = [10, 5, 7] * 20, [1, 3, 0] * 20
    found = estimate_slot_load(*ten)
    assert found.num_requests == 40
    assert found.theta.value == 7.0
    assert found.nu_squared.value == np.var([10, 5, 6, 7])


def moments(decode, joint):
    """Return theta and nu^2 by (3), of E[D], E[D^2], E[D^3] and E[D P], E[D P^2], E[D^2 P]."""
    (d1, d2, d3), (dp, dpp, ddp) = decode, joint
    theta = (dp + (d2 - d1) / 2) / d1
    return theta, (dpp + ddp - dp + (2 * d3 - 3 * d2 + d1) / 6) / d1 - theta**2


def mean_load(prefill, decode, variance, covariance=0.0):
    """Return theta by (4), of the means of both, Var[D] and Cov[P, D]."""
    return prefill + (decode - 1) / 2 + variance / (2 * decode) + covariance / decode


def test_the_geometric_load_is_the_general_one():
    p = 1 / 500
    decode = (500.0, (2 - p) / p**2, (p**2 - 6 * p + 6) / p**3)  # E D, E D^2, E D^3
    d1, d2, _ = decode
    theta, nu_squared = moments(decode, (d1 * 100.0, d1 * (9900 + 100**2), d2 * 100.0))
    assert theta == pytest.approx(LOAD.mean, rel=1e-12)
    assert nu_squared == pytest.approx(LOAD.variance, rel=1e-9)


def test_the_covariance_of_prompts_and_answers_counts():
    decode = rng("decode").geometric(1 / 50, 5000)
    prefill = 3 * decode + 10
    found = estimate_slot_load(prefill, decode)
    mean = mean_load(prefill.mean(), decode.mean(), decode.var(), found.covariance)
    assert found.theta.value == pytest.approx(mean, rel=1e-12)
    assert found.covariance == pytest.approx(3 * decode.var(), rel=1e-12)


def test_the_paper_prints_another_variance_than_the_geometric():
    """294,500 is a slip for 249,500 = 500 x 499: theta would be 644, and the ratio 10.45."""
    assert mean_load(100, 500, 249_500) == pytest.approx(599, abs=1e-9)
    assert mean_load(100, 500, 294_500) == pytest.approx(644, abs=1e-9)


@pytest.mark.statistical
def test_intervals_contain_truth_as_often_as_they_say():
    """Of 400 intervals at 90 %, 340 to 378 hold the truth in 99.9 % of all tests."""
    draws = rng("intervals")
    found = [
        estimate_slot_load(
            draws.geometric(1 / 100, 2000), draws.geometric(1 / 500, 2000), confidence=0.9
        )
        for _ in range(400)
    ]
    theta = sum(f.theta.low <= LOAD.mean <= f.theta.high for f in found)
    variance = sum(f.nu_squared.low <= LOAD.variance <= f.nu_squared.high for f in found)
    assert 338 <= theta <= 380
    assert 320 <= variance <= 380  # fourth moments come slowly: 88 % at this length


test_a_trace_that_says_too_little = refused(
    estimate_slot_load,
    ([5] * 29, [3] * 29, "30 requests that decode, or more, got 29"),
    ([5] * 50, [0] * 50, "got 0"),
    ([5] * 40, [1] * 39 + [100_000], "40 of them count for 1.0 equal ones"),
    ([0] * 30 + [10**6] * 2, [10] * 32, "theta = 6.25e[+]04 tokens is known to [+]-8"),
)


@pytest.mark.parametrize(
    ("prefill", "decode", "confidence"),
    [([1] * 40, [1] * 41, 0.95), ([-1] * 40, [1] * 40, 0.95), ([1] * 40, [1] * 40, 1.0)],
)
def test_lengths_that_are_none(prefill, decode, confidence):
    with pytest.raises(ValueError, match="must be"):
        estimate_slot_load(prefill, decode, confidence=confidence)


@pytest.mark.parametrize(("mean", "variance"), [(0, 1), (-1, 1), (1, -1), (math.nan, 1)])
def test_a_load_that_is_none(mean, variance):
    with pytest.raises(ValueError, match="must be finite"):
        SlotLoad(mean, variance)


# --- the barrier --------------------------------------------------------------------------------


@pytest.mark.parametrize("num_workers", [1, 2])
@pytest.mark.parametrize("z", [-12.0, -3.0, -0.4, 0.0, 1.7, 6.0])
def test_closed_forms_are_what_quadrature_gives(num_workers, z):
    exact = expected_excess(num_workers, z)
    assert exact == pytest.approx(excess_by_quadrature(num_workers, z), rel=1e-9, abs=1e-14)


def test_quadrature_against_draws():
    largest = rng("normal").normal(size=(200_000, 12)).max(axis=1)
    for z in (-1.0, 1.5, 2.5):
        drawn = np.maximum(largest - z, 0)
        error = 4 * drawn.std() / math.sqrt(len(drawn))
        assert expected_excess(12, z) == pytest.approx(drawn.mean(), abs=error)


def test_kappa_grows_and_has_known_values():
    assert expected_maximum(1) == pytest.approx(0.0, abs=1e-12)
    assert expected_maximum(2) == pytest.approx(1 / math.sqrt(math.pi), rel=1e-12)
    assert expected_maximum(3) == pytest.approx(1.5 / math.sqrt(math.pi), rel=1e-12)
    kappas = [expected_maximum(n) for n in range(1, 200)]
    assert all(a < b for a, b in pairwise(kappas))


@pytest.mark.parametrize("batches", [0, 2, 3, 5])
@pytest.mark.parametrize("others", [250.0, 300.0, 330.0])
def test_a_cycle_is_the_mean_of_a_maximum(batches, others):
    mean, std, rest = 300.0, 15.0, others + 40
    slowest = mean + std * rng("cycle").normal(size=(100_000, 8)).max(axis=1)
    drawn = np.maximum(slowest, others)
    if batches:
        drawn = np.maximum(drawn, (slowest + rest) / batches)
    found = expected_cycle(mean, std, others, 8, rest=rest, batches=batches)
    assert found == pytest.approx(drawn.mean(), abs=5 * drawn.std() / 316 + 1e-9)


def test_cycle_without_variance_is_that_of_mean_field():
    assert expected_cycle(300, 0, 280, 8) == 300
    assert expected_cycle(300, 0, 280, 8, rest=340, batches=2) == 320


# --- candidates ---------------------------------------------------------------------------------

numbers = st.floats(0.01, 1000)
spreads = st.floats(1e-4, 1)


@given(a=spreads, b=numbers, c=spreads, d=numbers, e=spreads, f=numbers, theta=st.floats(1, 1e4))
def test_no_ratio_is_better_than_the_best_candidate(a, b, c, d, e, f, theta):
    coefficients = AfdCoefficients(alpha_a=a, beta_a=b, alpha_f=c, beta_f=d, alpha_c=e, beta_c=f)
    best = best_candidate(candidates(coefficients, theta, 64))
    for ratio in np.geomspace(1e-4, 1e6, 400):
        cycle = mean_field_cycle(coefficients, theta, 64, ratio)
        assert per_instance(64, ratio, cycle) <= best.throughput * (1 + 1e-9)


@given(slots=st.integers(1, 2000), a=spreads, f=st.floats(0.01, 1), batches=st.integers(2, 4))
def test_the_search_over_whole_ratios_misses_none(slots, a, f, batches):
    coefficients = AfdCoefficients(alpha_a=a, beta_a=50, alpha_f=f, beta_f=100, alpha_c=0, beta_c=9)
    spec = BundleSpec(coefficients, SlotLoad(30.0, 500.0), slots, batches)
    found = provision(spec)
    limit = 2 * max(found.gaussian.attention_workers, found.in_flight.attention_workers) + 50
    others = [predict(spec, workers) for workers in range(1, limit)]
    assert max(p.throughput for p in others) == found.in_flight.throughput
    assert max(p.throughput_gaussian for p in others) == found.gaussian.throughput_gaussian


def test_more_batches_in_flight_come_to_gaussian_cycle():
    two, three, many = (predict(BundleSpec(TABLE_3, LOAD, 256, m), 9) for m in (2, 3, 9))
    assert two.cycle > three.cycle >= many.cycle == pytest.approx(many.cycle_gaussian)
    assert two.tpot == 2 * two.cycle
    assert many.ffn_idle == pytest.approx(1 - 291.232 / many.cycle_gaussian)


def test_a_bundle_of_several_ffn_workers_has_the_barrier_of_all_its_attention_workers():
    spec = BundleSpec(TABLE_3, LOAD, 256)
    whole, half = predict(spec, 7), predict(spec, 14, 2)
    assert whole.ratio == half.ratio
    assert whole.cycle_mean_field == half.cycle_mean_field
    assert whole.cycle_gaussian < half.cycle_gaussian


def test_the_interval_of_the_ratio():
    draws = rng("interval")
    found = estimate_slot_load(draws.geometric(1 / 100, 10**4), draws.geometric(1 / 500, 10**4))
    low, high = provision_interval(BundleSpec(TABLE_3, found.load, 256), found)
    assert low < provision(BundleSpec(TABLE_3, found.load, 256)).mean_field.ratio < high


def test_a_ratio_out_of_bounds_is_refused():
    slow = AfdCoefficients(alpha_a=100, beta_a=0, alpha_f=1e-3, beta_f=0, alpha_c=0, beta_c=0)
    with pytest.raises(ScenarioError, match="best ratio must be <= 1024"):
        provision(BundleSpec(slow, LOAD, 256))


@pytest.mark.parametrize(
    ("name", "value"),
    [("alpha_a", 0.0), ("alpha_f", -1.0), ("beta_c", -0.1), ("alpha_c", math.inf)],
)
def test_coefficients_that_are_none(name, value):
    given = {"alpha_a": 1, "beta_a": 0, "alpha_f": 1, "beta_f": 0, "alpha_c": 0, "beta_c": 0}
    with pytest.raises(ValueError, match=f"{name} must be"):
        AfdCoefficients(**(given | {name: value}))


@pytest.mark.parametrize(("slots", "batches"), [(0, 2), (8, 1), (2**17, 2)])
def test_a_bundle_that_is_none(slots, batches):
    with pytest.raises(ValueError, match="must be in "):
        BundleSpec(TABLE_3, LOAD, slots, batches)


# --- tails --------------------------------------------------------------------------------------


def test_geometric_lengths_have_a_light_tail():
    tail = tail_of(rng("geometric").geometric(1 / 500, 20_000))
    assert tail.verdict == "finite"
    check_tail(tail)


def test_an_infinite_variance_is_seen():
    lengths = np.ceil(100 * (rng("pareto").pareto(2.4, 100_000) + 1))
    tail = tail_of(lengths)
    assert tail.alpha == pytest.approx(2.4, abs=0.4)
    assert tail.verdict == "infinite variance"


def test_an_infinite_mean_is_refused_with_the_exponent():
    tail = tail_of(np.ceil(100 * (rng("pareto").pareto(1.3, 100_000) + 1)))
    with pytest.raises(ScenarioError, match=r"must be > 2 .* got 1\.[234]"):
        check_tail(tail)


def test_equal_lengths_and_few_lengths():
    assert tail_of([1] * 300 + [500] * 300).alpha == math.inf
    assert tail_of([7] * 1000).verdict == "finite"
    assert tail_of([1, 2, 3]) is None
    check_tail(None)


# --- limits -------------------------------------------------------------------------------------


def test_without_limits_more_slots_are_better():
    best, *_ = best_bundles(TABLE_3, LOAD, slots=[64, 256, 512], batches=[2, 3])
    assert (best.prediction.slots, best.batches) == (512, 3)
    assert best.prediction.attention_workers == 11


def test_a_limit_of_tpot_costs_slots_and_throughput():
    slots = [32, 64, 128, 256, 512]
    free, *_ = best_bundles(TABLE_3, LOAD, slots=slots)
    bound, *others = best_bundles(TABLE_3, LOAD, slots=slots, max_tpot=500)
    assert bound.prediction.tpot <= 500 < free.prediction.tpot
    assert bound.prediction.slots < free.prediction.slots
    assert bound.prediction.throughput < free.prediction.throughput
    assert all(c.prediction.tpot <= 500 for c in others)
    throughputs = [c.prediction.throughput for c in (bound, *others)]
    assert throughputs == sorted(throughputs, reverse=True)


def test_memory_bounds_slots_times_batches():
    found = best_bundles(TABLE_3, LOAD, slots=[128, 256, 512], max_kv_tokens=400_000)
    assert {(c.prediction.slots, c.batches) for c in found} == {
        (128, 2),
        (128, 3),
        (128, 4),
        (256, 2),
    }
    tokens = next(c.kv_tokens for c in found if c.prediction.slots * c.batches == 512)
    assert tokens == pytest.approx(512 * 599 + 4 * math.sqrt(512) * LOAD.std)


test_limits_that_no_bundle_keeps = refused(
    lambda limits: best_bundles(TABLE_3, LOAD, **({"slots": [64, 128]} | limits)),
    ({"max_tpot": 100}, "max_tpot must be >= 2.* the shortest of all bundles, got 100"),
    ({"max_kv_tokens": 1000}, "max_kv_tokens must be >= .* got 1,000"),
    ({"slots": []}, "must have a value each"),
)


def test_a_slot_whose_answers_follow_from_their_prompts():
    """P and D of one draw: the moments give what all steps of all requests give."""
    rng = Streams(8).generator("lengths")
    prefill = rng.integers(1, 200, 5000)
    decode = prefill // 2 + rng.integers(1, 30, 5000)
    p, d = prefill.astype(float), decode.astype(float)
    theta, nu_squared = moments(
        (d.mean(), (d**2).mean(), (d**3).mean()),
        ((d * p).mean(), (d * p**2).mean(), (d**2 * p).mean()),
    )
    found = estimate_slot_load(prefill, decode).load
    assert (found.mean, found.variance) == pytest.approx((theta, nu_squared), rel=1e-9)
    loads = np.concatenate([np.arange(a, a + b) for a, b in zip(prefill, decode, strict=True)])
    assert found.mean == pytest.approx(loads.mean(), rel=1e-9)
    assert found.variance == pytest.approx(loads.var(), rel=1e-9)
    covariance = np.mean((p - p.mean()) * (d - d.mean()))
    assert found.mean == pytest.approx(mean_load(p.mean(), d.mean(), d.var(), covariance))


@pytest.mark.parametrize("weight", [1.0, 3.0, 16.0])
def test_an_ffn_worker_that_counts_as_several(weight):
    """The candidates hold the best of all ratios, and the best whole ones are those of a search."""
    spec = BundleSpec(PRESETS["deepseek-v3-ascend-910c"], LOAD, 64, 3, weight)
    found = provision(spec)
    cycles = [
        mean_field_cycle(PRESETS["deepseek-v3-ascend-910c"], LOAD.mean, 64, ratio)
        for ratio in np.arange(0.1, 60, 0.01)
    ]
    rates = [
        64 * ratio / (ratio + weight) / cycle
        for ratio, cycle in zip(np.arange(0.1, 60, 0.01), cycles, strict=True)
    ]
    assert found.mean_field.throughput == pytest.approx(max(rates), rel=1e-4)
    assert found.mean_field.throughput >= max(rates) * (1 - 1e-9)
    every = [predict(spec, workers) for workers in range(1, 200)]
    best = max(every, key=lambda p: p.throughput)
    assert found.in_flight == best
    assert best.throughput == pytest.approx(
        64 * best.attention_workers / (best.attention_workers + weight) / best.cycle
    )


def test_a_weight_out_of_range():
    with pytest.raises(ValueError, match="ffn_weight must be finite and > 0, got 0"):
        BundleSpec(PRESETS["deepseek-v3-ascend-910c"], LOAD, 64, 2, 0.0)
