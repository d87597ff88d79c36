"""What an open loop makes of errors of step times: simulations beside the law."""

from functools import cache

import pytest

from mist_sim.metrics.expected_errors import Range, expected_ranges
from mist_sim.metrics.sensitivity import Sensitivity
from mist_sim.scenario import Scenario, simulate


@cache
def summary_at(rate, scale=1.0):
    lengths = {
        "type": "synthetic",
        "num_requests": 1500,
        "prompt": {"type": "lognormal", "mean": 500, "std": 250},
        "output": {"type": "lognormal", "mean": 150, "std": 75},
    }
    client = {"name": "llm", "type": "llm", "model": "llama-3.1-8b", "gpu": "h100-sxm"}
    load = {"arrivals": {"type": "poisson", "rate": f"{rate} /s"}, "lengths": lengths}
    client["step_time_scale"] = scale
    return simulate(Scenario.from_dict({"clients": [client], "workload": load})).data


def sensitivity_at(rate):
    scaled = summary_at(rate)["expected_errors"]["llm"]["tpot"]
    return Sensitivity(**scaled["sensitivity"])


@pytest.mark.parametrize("rate", [5, 30, 50, 90])
@pytest.mark.parametrize("scale", [0.8, 1.1])
def test_tpot_follows_the_law(rate, scale):
    of_law = sensitivity_at(rate).factor("tpot", scale)
    simulated = summary_at(rate, scale)["mean_tpot_ms"] / summary_at(rate)["mean_tpot_ms"]
    assert of_law == pytest.approx(simulated, rel=0.15)


@pytest.mark.parametrize(("rate", "scale"), [(5, 0.8), (30, 1.2), (90, 0.9), (90, 1.2)])
def test_ttft_follows_the_law(rate, scale):
    of_law = sensitivity_at(rate).factor("ttft", scale)
    simulated = summary_at(rate, scale)["mean_ttft_ms"] / summary_at(rate)["mean_ttft_ms"]
    assert of_law == pytest.approx(simulated, rel=0.25)


@pytest.mark.parametrize("metric", ["ttft", "tpot"])
@pytest.mark.parametrize("growing", [0.0, 0.3, 0.9])
@pytest.mark.parametrize("used", [0.2, 0.9, 1.3])
@pytest.mark.parametrize("draw", [0.0, 0.05])
def test_longer_steps_never_help(metric, growing, used, draw):
    fullest, queue = (1.0, 0.6) if used > 1 else (2.0, 0.2)
    behind = queue / (used - 1) if used > 1 else 10.0
    load = Sensitivity(growing, fullest, used, queue, behind, draw=draw)
    factors = [load.factor(metric, s / 20) for s in range(10, 40)]
    assert factors == sorted(factors)
    assert load.factor(metric, 1.0) == pytest.approx(1.0)


@pytest.mark.parametrize("growing", [0.0, 0.3, 0.9])
def test_errors_of_steps_are_found(growing):
    load = Sensitivity(growing, fullest=100.0)
    assert load.steps(load.factor("tpot", 1.05)) == pytest.approx(1.05)


def test_bars_widen_with_load():
    widths = []
    for rate in (20, 30, 40, 50):  # at 5 a second the bar is that of rows under low load
        ranges = expected_ranges(summary_at(rate))
        assert all(isinstance(ranges[name], Range) for name in ("ttft", "tpot", "e2el"))
        widths.append([ranges[name].high - ranges[name].low for name in ("ttft", "tpot", "e2el")])
    assert all(a < b < c < d for a, b, c, d in zip(*widths, strict=True))


def test_arrivals_bound_the_throughput_until_too_many():
    ranges = {rate: expected_ranges(summary_at(rate))["throughput"] for rate in (5, 30, 90)}
    assert -0.03 < ranges[5].low < 0 < ranges[5].high < 0.03
    assert ranges[30].low < ranges[5].low
    steps = summary_at(90)["expected_errors"]["llm"]["tpot"]["step_times"]
    assert ranges[90].low == pytest.approx(1 / (1 + steps[1]) - 1, abs=0.1)


@pytest.mark.parametrize(("rate", "scale"), [(30, 1.2), (90, 1.2), (90, 0.9)])
def test_throughput_follows_the_law(rate, scale):
    summary = summary_at(rate)
    ttft, decode = summary["mean_ttft_ms"], summary["mean_e2el_ms"] - summary["mean_ttft_ms"]
    longer = sensitivity_at(rate).longer(scale, ttft, decode) / summary["duration"] / 1e3
    simulated = summary_at(rate, scale)["output_throughput"] / summary["output_throughput"]
    assert 1 / (1 + longer) == pytest.approx(simulated, abs=0.06)


def test_a_burst_is_no_lasting_overload():
    """Its queue is gone in the pause; the range holds what slower and faster steps give."""
    bursts = {"type": "bursty", "rate_on": "30 /s", "on": "10 s", "off": "30 s"}
    lengths = {"type": "profile", "name": "azure-conv-2023", "num_requests": 1200}
    said = {
        "model": "llama-3.1-8b",
        "workload": {"lengths": lengths, "arrivals": bursts},
        "clients": [{"name": "llm", "gpu": "h100-sxm"}],
    }
    slow, plain, fast = (
        simulate(Scenario.from_dict(said, {"clients.0.step_time_scale": scale})).summary
        for scale in (1.14, 1.0, 0.88)
    )
    told = plain["expected_errors"]["llm"]["ttft"]["sensitivity"]
    assert told["queue"] > 0.5
    for metric in ("ttft", "tpot"):
        low, high = (Sensitivity(**told).factor(metric, scale) for scale in (0.88, 1.14))
        ratios = [run[f"mean_{metric}_ms"] / plain[f"mean_{metric}_ms"] for run in (fast, slow)]
        assert low < ratios[0] < 1 < ratios[1] < high < 5


@pytest.mark.parametrize("seed", [0, 1])
def test_steps_that_suffice_just_so_leave_the_queue_of_chance(seed):
    """With steps 14 % shorter the overloaded client has work for nearly all its time."""
    lengths = {"type": "profile", "name": "azure-conv-2023", "num_requests": 2000}
    said = {
        "model": "llama-3.1-70b",
        "seed": seed,
        "workload": {"lengths": lengths, "arrivals": {"type": "poisson", "rate": "1.7 /s"}},
        "clients": [{"name": "llm", "gpu": "h100-sxm", "tensor_parallel_size": 2}],
        "slo": {"ttft": "3 s"},
    }
    plain, fast = (
        simulate(Scenario.from_dict(said, {"clients.0.step_time_scale": scale})).summary
        for scale in (1.0, 0.86)
    )
    told = Sensitivity(**plain["expected_errors"]["llm"]["ttft"]["sensitivity"])
    assert 0.9 < 0.86 * told.used < 1 < told.used
    simulated = fast["mean_ttft_ms"] / plain["mean_ttft_ms"]
    assert simulated / 3 < told.factor("ttft", 0.86) < simulated
    assert told._replace(draw=0.0).factor("ttft", 0.86) < 0.01  # by the means alone
    assert plain["slo"]["p90_ttft_ms"]["verdict"] == "miss"
    assert not fast["slo"]["p90_ttft_ms"]["kept"]


@cache
def two_models(scale=1.0):
    """The summary of a small model with room beside a large one that is asked for too much."""
    names = {"llama-3.1-8b": 0.8, "llama-3.1-70b": 0.2}
    lengths = {"type": "profile", "name": "azure-conv-2023", "num_requests": 1500}
    large = {"name": "large", "model": "llama-3.1-70b", "tensor_parallel_size": 2}
    clients = [{"name": "small", "model": "llama-3.1-8b"}, large]
    arrivals = {"type": "poisson", "rate": "14 /s"}
    said = {
        "workload": {"lengths": lengths, "arrivals": arrivals, "models": names},
        "clients": [each | {"gpu": "h100-sxm", "step_time_scale": scale} for each in clients],
        "slo": {"ttft": "1 s"},
    }
    return simulate(Scenario.from_dict(said)).summary


def told_of_two(name):
    return Sensitivity(**two_models()["expected_errors"][name]["ttft"]["sensitivity"])


def test_a_client_has_queue_of_its_own_requests():
    """One model in five waits; of all requests' mean TTFT its queue would be a multiple."""
    small, large = map(told_of_two, ("small", "large"))
    assert small.queue < 0.5 < small.own * 100 < 5
    assert large.used > 1.4
    assert 0.8 * small.own + 0.2 * large.own == pytest.approx(1.0, rel=0.1)
    assert two_models()["slo"]["p90_ttft_ms"]["verdict"] == "miss"
    assert two_models()["slo_shares"]["all"]["verdict"] == "miss"


@pytest.mark.parametrize("scale", [0.86, 1.12])
def test_ttft_of_one_of_two_models_follows_law(scale):
    simulated = two_models(scale)["p95_ttft_ms"] / two_models()["p95_ttft_ms"]  # of the large one
    assert told_of_two("large").factor("ttft", scale) == pytest.approx(simulated, rel=0.25)


@pytest.mark.parametrize("scale", [0.86, 1.12])
def test_throughput_of_two_models_follows_the_law(scale):
    summary = two_models()
    ttft, decode = summary["mean_ttft_ms"], summary["mean_e2el_ms"] - summary["mean_ttft_ms"]
    longer = told_of_two("large").longer(scale, ttft, decode) / summary["duration"] / 1e3
    simulated = two_models(scale)["output_throughput"] / summary["output_throughput"]
    assert 1 / (1 + longer) == pytest.approx(simulated, abs=0.1)
