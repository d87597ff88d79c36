"""Arrival processes: laws that all keep, and the distributions of their gaps.

Gaps are compared with theory by a Kolmogorov-Smirnov test at 0.0001 and means at 4.42 standard
errors; seeds are fixed, so a check that passes once passes for good.
"""

from itertools import islice

import numpy as np
import pytest
from scipy import stats

from mist_sim import Scenario, simulate
from mist_sim.rng import Streams
from mist_sim.traces import (
    ARRIVALS,
    AllAtOnce,
    ArrivalProcess,
    BurstyArrivals,
    ClosedLoop,
    ConstantArrivals,
    DailyArrivals,
    GammaArrivals,
    NormalArrivals,
    PoissonArrivals,
    ScheduledArrivals,
    TraceArrivals,
    UniformArrivals,
)

Z = 4.42
N = 200_000

# process, mean rate a second
RANDOM = [
    (PoissonArrivals(rate=5), 5),
    (GammaArrivals(rate=5, burstiness=0.4), 5),
    (UniformArrivals(rate=5), 5),
    (NormalArrivals(rate=5, cv=0.3), 5),
    (NormalArrivals(rate=5, cv=2.0), 5),
    (BurstyArrivals(rate_on=20, on=2, off=6), 5),
    (ScheduledArrivals(at=(0, 3), rates=(8, 0), period=4.8), 5),
    (DailyArrivals(peak=9, low=1, peak_at=14, starts_at=3, period=24), 5),
]
FIXED = [(ConstantArrivals(rate=5), 5), (AllAtOnce(), None)]


def draw(process: ArrivalProcess, count: int, seed: int = 7) -> np.ndarray:
    return np.array(list(islice(process.times(Streams(seed).generator("arrivals")), count)))


def test_every_registered_process_is_tested():
    tested = {type(case[0]) for case in RANDOM + FIXED} | {TraceArrivals, ClosedLoop}
    assert {ARRIVALS[name] for name in ARRIVALS} == tested
    assert sorted(ARRIVALS) == [
        "all_at_once",
        "bursty",
        "closed_loop",
        "constant",
        "day",
        "gamma",
        "normal",
        "poisson",
        "schedule",
        "trace",
        "uniform",
    ]


@pytest.mark.parametrize(("process", "rate"), RANDOM + FIXED)
def test_times_never_decrease_and_repeat(process, rate):
    assert isinstance(process, ArrivalProcess)
    times = draw(process, 10_000)
    assert np.all(np.diff(times) >= 0)
    assert times[0] >= 0
    assert np.array_equal(times, draw(process, 10_000))
    for count in (1, 4_096, 4_097):
        assert np.array_equal(times[:count], draw(process, count))


@pytest.mark.parametrize(("process", "rate"), RANDOM)
def test_random_processes_start_after_zero_and_follow_seed(process, rate):
    assert draw(process, 1)[0] > 0
    assert not np.array_equal(draw(process, 10), draw(process, 10, seed=8))


@pytest.mark.parametrize(("process", "rate"), RANDOM)
def test_the_mean_gap_is_one_over_the_rate(process, rate):
    gaps = np.diff(draw(process, N))
    assert abs(gaps.mean() - 1 / rate) < Z * gaps.std() / np.sqrt(len(gaps))


def interrupted_poisson(process: BurstyArrivals) -> stats.rv_continuous:
    """The gap's distribution after Kuczura (1973): a mixture of two exponentials."""
    rate, to_off, to_on = process.rate_on, 1 / process.on, 1 / process.off
    total = rate + to_off + to_on
    fast, slow = (total + sign * np.sqrt(total**2 - 4 * rate * to_on) for sign in (1, -1))
    fast, slow = fast / 2, slow / 2
    share = (rate - slow) / (fast - slow)
    return lambda t: 1 - share * np.exp(-fast * t) - (1 - share) * np.exp(-slow * t)


def truncated_normal(process: NormalArrivals) -> stats.rv_continuous:
    unit = stats.truncnorm(-1 / process.cv, np.inf, loc=1, scale=process.cv)
    mean = 1 / (process.rate * unit.mean())
    return stats.truncnorm(-1 / process.cv, np.inf, loc=mean, scale=process.cv * mean).cdf


@pytest.mark.statistical
@pytest.mark.parametrize(
    ("process", "cdf"),
    [
        (PoissonArrivals(rate=5), stats.expon(scale=1 / 5).cdf),
        (GammaArrivals(rate=5, burstiness=1), stats.expon(scale=1 / 5).cdf),
        (GammaArrivals(rate=5, burstiness=0.4), stats.gamma(0.4, scale=0.5).cdf),
        (UniformArrivals(rate=5), stats.uniform(0, 0.4).cdf),
        (NormalArrivals(rate=5, cv=0.3), truncated_normal(NormalArrivals(rate=5, cv=0.3))),
        (NormalArrivals(rate=5, cv=2), truncated_normal(NormalArrivals(rate=5, cv=2))),
        (
            BurstyArrivals(rate_on=20, on=2, off=6),
            interrupted_poisson(BurstyArrivals(rate_on=20, on=2, off=6)),
        ),
    ],
)
def test_gaps_have_the_distribution_that_theory_gives(process, cdf):
    result = stats.kstest(np.diff(draw(process, N)), cdf)
    assert result.pvalue > 1e-4
    assert result.statistic < 0.01, "too few gaps to notice a real error"


@pytest.mark.statistical
def test_bursty_arrivals_have_their_mean_rate_from_start():
    """Over one mean cycle from time 0; starting in a burst for sure would give 1.6 x as many."""
    process = BurstyArrivals(rate_on=20, on=2, off=6)
    counts = [np.searchsorted(draw(process, 600, seed), 8.0) for seed in range(2_000)]
    error = Z * np.std(counts) / np.sqrt(len(counts))
    assert abs(np.mean(counts) - 40) < error
    assert error < 0.12 * 40, "too few runs to notice a real error"


@pytest.mark.statistical
@pytest.mark.parametrize(
    ("process", "rate_at"),
    [
        (
            ScheduledArrivals(at=(0, 10, 30), rates=(2, 0, 5), period=40),
            lambda t: np.select([t % 40 < 10, t % 40 < 30], [2, 0], 5),
        ),
        (ScheduledArrivals(at=(0, 100), rates=(0.5, 4)), lambda t: np.where(t < 100, 0.5, 4)),
        (
            DailyArrivals(peak=6, low=1, peak_at=20, starts_at=5, period=50),
            lambda t: 3.5 + 2.5 * np.cos(2 * np.pi * (t + 5 - 20) / 50),
        ),
    ],
)
def test_changing_rates_are_poisson_on_their_own_clock(process, rate_at):
    """Times passed through the cumulative rate are a Poisson process of rate 1."""
    times = draw(process, 50_000)
    grid = np.linspace(0, times[-1] + 1, 4_000_001)
    middles = (grid[1:] + grid[:-1]) / 2
    expected = np.concatenate(([0], np.cumsum(rate_at(middles)) * grid[1]))
    gaps = np.diff(np.interp(times, grid, expected))
    result = stats.kstest(gaps, stats.expon().cdf)
    assert result.pvalue > 1e-4
    assert result.statistic < 0.02, "too few gaps to notice a real error"


def test_nothing_arrives_while_the_rate_is_zero():
    times = draw(ScheduledArrivals(at=(0, 10, 30), rates=(2, 0, 5), period=40), 10_000) % 40
    assert not ((times > 10 + 1e-6) & (times < 30 - 1e-6)).any()


def test_impossible_plans_of_rates_are_refused():
    for settings, rule in [
        ({"at": (), "rates": ()}, "at must begin with 0 s"),
        ({"at": (0, 5, 5), "rates": (1, 2, 3)}, "at must be ascending"),
        ({"at": (0, 5), "rates": (1,)}, "rates must have a number for each of 2 times, got 1"),
        ({"at": (0, 5), "rates": (1, 2), "period": 5}, "period must be finite and > 5 s"),
        ({"at": (0, 5), "rates": (1, -2)}, "rates must be finite and >= 0 /s"),
        ({"at": (0, 5), "rates": (1, 0)}, "the last of rates must be > 0 /s without a period"),
        ({"at": (0, 5), "rates": (0, 0), "period": 9}, "one of rates must be > 0 /s"),
    ]:
        with pytest.raises(ValueError, match=rule):
            ScheduledArrivals(**settings)
    day = {"peak": 5, "low": 1, "peak_at": 3600}
    for settings, rule in [
        ({"low": 6}, "low must be from 0 to peak"),
        ({"peak": 0}, "peak must be finite and > 0 /s"),
        ({"peak_at": 90_000}, "peak_at must be >= 0 s and < period"),
        ({"starts_at": -1}, "starts_at must be >= 0 s and < period"),
    ]:
        with pytest.raises(ValueError, match=rule):
            DailyArrivals(**day | settings)


def test_constant_arrivals_do_not_drift():
    assert draw(ConstantArrivals(rate=10), 100_001)[100_000] == 10_000.0
    assert draw(ConstantArrivals(rate=10), 3).tolist() == [0.0, 0.1, 0.2]
    assert draw(AllAtOnce(), 3).tolist() == [0.0, 0.0, 0.0]


RATES = [PoissonArrivals, UniformArrivals, ConstantArrivals]


@pytest.mark.parametrize("bad", [0, -1, float("nan"), float("inf")])
def test_impossible_parameters_are_refused(bad):
    for process in RATES:
        with pytest.raises(ValueError, match="rate must be finite and > 0 /s, got"):
            process(rate=bad)
    with pytest.raises(ValueError, match="rate must be finite and > 0 /s, got"):
        GammaArrivals(rate=bad, burstiness=1)
    with pytest.raises(ValueError, match="burstiness must be finite and > 0, got"):
        GammaArrivals(rate=1, burstiness=bad)
    with pytest.raises(ValueError, match="rate must be"):
        NormalArrivals(rate=bad, cv=1)
    with pytest.raises(ValueError, match="cv must be"):
        NormalArrivals(rate=1, cv=bad)
    for name in ("rate_on", "on", "off"):
        with pytest.raises(ValueError, match=f"{name} must be finite and > 0"):
            BurstyArrivals(**{"rate_on": 1, "on": 1, "off": 1} | {name: bad})
    with pytest.raises(ValueError, match="speedup must be finite and > 0, got"):
        TraceArrivals(speedup=bad)


def test_impossible_closed_loops_are_refused():
    with pytest.raises(ValueError, match="concurrency must be in .1, 1000000000., got 0"):
        ClosedLoop(concurrency=0)
    for bad in (-1, float("nan"), float("inf")):
        with pytest.raises(ValueError, match="think_time must be finite and >= 0 s, got"):
            ClosedLoop(concurrency=1, think_time=bad)
        with pytest.raises(ValueError, match="ramp_up must be finite and >= 0 s, got"):
            ClosedLoop(concurrency=1, ramp_up=bad)


@pytest.mark.parametrize(
    "process",
    [{"type": "poisson", "rate": "4 /s"}, {"type": "gamma", "rate": "4 /s", "burstiness": 0.3}],
)
def test_a_stretched_schedule_is_the_same_one_and_ends_at_n_over_the_rate(process):
    """As `vllm bench serve` sends requests: the rate of a run is the one asked for."""

    def times(**more):
        workload = {"lengths": {"type": "profile", "num_requests": 50}, "arrivals": process | more}
        scenario = Scenario.from_dict(
            {"model": "llama-3.1-8b", "clients": [{"name": "a", "gpu": "h100-sxm"}]}
            | {"workload": workload}
        )
        return simulate(scenario).requests["arrival_time"].to_numpy()

    drawn, stretched = times(), times(stretched=True)
    assert stretched[-1] == pytest.approx(50 / 4, rel=1e-12)
    assert abs(drawn[-1] / 12.5 - 1) > 0.01, "this draw has another rate"
    np.testing.assert_allclose(stretched / stretched[-1], drawn / drawn[-1], rtol=1e-9)
