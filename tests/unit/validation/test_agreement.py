"""Equivalence of latencies: its false-alarm rate and power on laws that are known."""

import numpy as np
import pandas as pd

from mist_sim.cli.verbs.validate import _agreements
from mist_sim.rng import Streams
from mist_sim.validation.runs import _latency_rows, agreement
from tests.commands import exit_code

_RUNS = 400


def _share(ratio: float, margin: float, spread: float = 0.2, requests: int = 400) -> float:
    """Return how often latencies with this mean ratio are called equivalent."""
    rng = Streams(3).generator("agreement")
    called = 0
    for _ in range(_RUNS):
        measured = rng.exponential(100.0, requests) + 1
        noise = rng.normal(np.log(ratio), spread, requests)
        called += bool(agreement(measured, measured * np.exp(noise), margin).is_equivalent)
    return called / _RUNS


def test_what_differs_by_margin_is_seldom_called_equivalent():
    """5 % at the margin; of 400 runs more than 8 % would be a rate above 5 % at 1 in 200."""
    assert _share(1.05, 0.05) <= 0.08
    assert _share(0.95, 0.05) <= 0.08
    assert _share(1.10, 0.05) == 0


def test_what_is_equal_is_found_to_be():
    """The standard error is 0.2 / 20 = 1 %, a fifth of the margin: power above 99 %."""
    assert _share(1.0, 0.05) >= 0.98


def test_distances_of_distributions():
    values = np.arange(1.0, 101.0)
    assert agreement(values, values, 0.05).distance == 0
    assert agreement(values, values, 0.05).is_equivalent
    assert agreement(values, values + 1000, 0.05).distance == 1
    assert agreement(values[:10], values[:10], 0.05).is_equivalent is None


def test_a_margin_is_percent(capsys):
    assert exit_code("validate", "--margin", "0") == 2
    assert "--margin must be percent above 0" in capsys.readouterr().err


def test_a_typical_ratio_of_one_hides_no_contradiction():
    """Half of the answers twice, half of them half as long: the mean is 1.25 times as long."""
    measured = np.full(400, 100.0)
    simulated = measured * np.tile([2.0, 0.5], 200)
    (line,) = _agreements(list(_latency_rows(_frame(measured), _frame(simulated))), 10.0)
    assert "typical ratio (geometric mean) 1.000, within 10 %" in line
    assert "not equivalent: mean +25 %, p99 +100 %" in line
    (line,) = _agreements(list(_latency_rows(_frame(measured), _frame(measured))), 10.0)
    assert "equivalent" not in line


def _frame(values):
    return pd.DataFrame({"ttft": values / 1e3, "tpot": np.nan, "e2el": np.nan})
