"""BestServe, Tables 4 and 5 and the goodputs of Algorithm 8: CodeLlama-34b on Ascend 910B3, TP 4.

Requests of 2,048 and 64 tokens, 10,000 a run, 3.5 a second. A single run of Table 4 is at 93 % of
what its prefill instance can do, so its TTFT varies by a sixth: means of 20 seeds are tested. The
bands and what is not reproduced stand in docs/background/bestserve.md.
"""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest

from mist_sim import BestServePredictor, Cluster, Slo, load_gpu, load_model
from mist_sim.bestserve import Method, Oracle, Requests, Strategy, search_rate, simulate_strategy
from mist_sim.bestserve.optimizer import at_rate, most_a_second
from mist_sim.rng import Streams
from mist_sim.search.bracketing import around
from mist_sim.studies.verdicts.request_times import Target

LIMITS = Target(slo=Slo(ttft=1.5, tpot=0.07), relaxation=0.1, each=True)


@cache
def times() -> Oracle:
    cluster = Cluster(load_gpu("ascend-910b3"), tensor_parallel_size=4)
    return Oracle(BestServePredictor(load_model("codellama-34b"), cluster))


def requests(seed: int, rate: float, num: int = 10_000) -> Requests:
    gaps = Streams(seed).generator("arrivals").exponential(1 / rate, num)
    return Requests.of(np.cumsum(gaps).tolist(), 2048, 64)


def strategy(name: str, decode_batch: int = 16) -> Strategy:
    return Strategy.parse(name, tensor_parallel_size=4, decode_batch=decode_batch)


def percentiles_ms(setting: Strategy, num_seeds: int) -> np.ndarray:
    """Return P90 and P99 of TTFT and TPOT, a row a seed."""
    rows = []
    for seed in range(num_seeds):
        run = simulate_strategy(setting, requests(seed, 3.5), times(), seed=seed)
        rows.append([x for t in (run.ttft, run.tpot) for x in np.percentile(t, (90, 99))])
    return 1e3 * np.array(rows)


@pytest.mark.statistical
def test_table_4():
    """TPOT is 14 % below the paper's: no pseudo batch of its own step times gives 44.849 ms."""
    rows = percentiles_ms(strategy("1p1d"), 20)
    p90_ttft, p99_ttft, p90_tpot, p99_tpot = rows.mean(axis=0)
    assert 2_900 < p90_ttft < 5_500  # the paper: 3,650.3, which lies among the runs
    assert rows[:, 0].min() < 3_650.319 < rows[:, 0].max()
    assert 4_400 < p99_ttft < 10_000  # the paper: 6,004.8
    assert p90_tpot == p99_tpot == pytest.approx(44.849, rel=0.16)


@pytest.mark.statistical
def test_table_5():
    """Decodes wait for boxes all through the run; how long depends on what the paper leaves out."""
    p90_ttft, p99_ttft, p90_tpot, p99_tpot = percentiles_ms(strategy("2m", 4), 10).mean(axis=0)
    assert p90_ttft == pytest.approx(556.309, rel=0.10)
    assert p99_ttft == pytest.approx(1_091.503, rel=0.12)
    assert p99_tpot > p90_tpot > 10 * 70


def goodputs(setting: Strategy, num: int, num_seeds: int) -> list[float]:
    found = []
    for seed in range(num_seeds):
        unit, both = requests(seed, 1.0, num), (times(), times())
        simulate = at_rate(setting, unit, both, seed=seed, method=Method())
        search = around(most_a_second(setting, unit, both), 0.01)
        found.append(search_rate(simulate, LIMITS, search, seed=seed).bracket.low or 0.0)
    return found


@pytest.mark.statistical
@pytest.mark.parametrize(
    ("name", "boxes", "num", "low", "high"),
    [
        ("1p1d", 16, 10_000, 2.68, 2.82),
        ("2p1d", 16, 10_000, 5.47, 5.64),
        ("3p2d", 16, 10_000, 9.7, 10.2),
        ("2m", 16, 3_000, 2.93, 2.98),
        pytest.param("1p2d", 16, 10_000, 2.68, 2.82, marks=pytest.mark.deep),
        pytest.param("2p2d", 16, 10_000, 6.12, 6.46, marks=pytest.mark.deep),
        pytest.param("2m", 4, 3_000, 1.94, 1.97, marks=pytest.mark.deep),
    ],
)
def test_goodputs_are_those_of_an_independent_implementation(name, boxes, num, low, high):
    """Ranges over 5 seeds (2 of the 2m) of a program that was written beside the paper; ± 6 %."""
    found = goodputs(strategy(name, boxes), num, 4)
    assert 0.94 * low < np.mean(found) < 1.06 * high


def test_more_decode_instances_do_not_help_what_waits_for_prefill():
    assert goodputs(strategy("1p2d"), 3_000, 1) == goodputs(strategy("1p1d"), 3_000, 1)
