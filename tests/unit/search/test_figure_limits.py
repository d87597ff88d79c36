"""Limits on percentiles of a run: ITL, and any latency that the summary has."""

import pytest

from mist_sim import Scenario, ScenarioError, Slo, replicate, simulate
from mist_sim.search import GoodputOptions, find_goodput
from mist_sim.studies.verdicts.request_times import target_of

REQUESTS = {"workload.lengths.num_requests": 300}


def demo(slo: dict[str, object], **more: object) -> Scenario:
    return Scenario.load("demo", overrides=REQUESTS | {"slo": slo} | more)


def test_verdicts_are_on_the_summarys_own_figures():
    at = {"p50_ttft": "50 ms", "p95_queue": "1 s", "p90_itl": "10 ms", "p99_e2el": "9 s"}
    summary = simulate(demo({"itl": "30 ms", "at": at})).summary
    assert list(summary["slo"]) == ["p99_itl_ms", *(f"{name}_ms" for name in at)]
    for name, verdict in summary["slo"].items():
        assert verdict["value"] == pytest.approx(summary[name], rel=1e-12)
        assert verdict["kept"] is (verdict["value"] <= verdict["limit"])
    assert summary["slo"]["p99_itl_ms"]["kept"] is False
    assert summary["slo"]["p99_e2el_ms"]["kept"] is True


def test_itl_is_judged_at_the_percentiles_of_slo():
    summary = simulate(demo({"itl": "30 ms", "percentiles": [50, 99.9]})).summary
    low, high = (summary["slo"][f"p{p}_itl_ms"] for p in ("50", "99.9"))
    assert low["value"] == pytest.approx(summary["p50_itl_ms"])
    assert low["kept"]
    assert not high["kept"]
    assert high["value"] > summary["p99_itl_ms"]


def test_percentiles_make_no_request_good_or_bad():
    plain = simulate(demo({"ttft": "1 s"})).summary
    beside = simulate(demo({"ttft": "1 s", "itl": "1 ms", "at": {"p50_ttft": "1 ms"}})).summary
    for key in ("request_goodput", "num_missed", "good_request_fraction"):
        assert beside[key] == plain[key]
    assert "request_goodput" not in simulate(demo({"itl": "30 ms"})).summary


def test_no_verdict_on_good_requests_rests_on_percentiles():
    """Not on one of the same name either: 1 ms and 10 s are both for the p90 of TTFT."""
    plain = simulate(demo({"ttft": "10 s"})).summary
    for at in ({"p95_itl": "1 ms"}, {"p90_ttft": "1 ms"}):
        scenario = demo({"ttft": "10 s", "at": at})
        beside = simulate(scenario).summary
        assert beside["slo_shares"] == plain["slo_shares"]
        assert beside["slo_shares"]["all"]["verdict"] == "pass"
        (name,) = at
        assert beside["slo"][f"{name}_ms"]["verdict"] == "miss"
        assert beside["slo"][f"{name}_ms"]["of_requests"] is False
    several = replicate(demo({"ttft": "10 s", "at": {"p95_itl": "1 ms"}}, replications=2))
    assert several.slo_shares["all"]["verdict"] == "pass"


def test_failed_requests_rank_as_latest():
    slo = {"at": {"p50_ttft": "1 s", "p99_ttft": "1 s"}}
    result = simulate(demo(slo, **{"workload.ttft_timeout": "40 ms"}))
    assert result.summary["failed"] > 3
    assert result.summary["slo"]["p99_ttft_ms"]["kept"] is False


@pytest.mark.parametrize("more", [{}, {"ttft": "1 s"}])
def test_a_goodput_keeps_the_gaps(more):
    """The largest rate is that where the run's own figure reaches its limit."""
    scenario = demo({**more, "itl": "30 ms"})
    found = find_goodput(scenario, GoodputOptions(tolerance=0.05))
    assert found.first_limit == "p99_itl"

    def p99(rate: float) -> float:
        arrivals = {"type": "poisson", "rate": f"{rate} /s"}
        number = {"workload.lengths.num_requests": 3000}
        run = demo({"itl": "30 ms"}, **number, **{"workload.arrivals": arrivals})
        return float(simulate(run).summary["p99_itl_ms"])

    assert p99(0.85 * found.rate) < 30 < p99(1.3 * found.rate)


def test_gaps_decide_what_requests_leave_open():
    """Rates whose waits change too slowly to tell miss all the same if their gaps do."""
    lengths = {"type": "synthetic", "num_requests": 1000}
    lengths |= {"prompt": {"type": "fixed", "tokens": 1000}}
    lengths |= {"output": {"type": "fixed", "tokens": 200}}
    said = {
        "model": "llama-3.1-8b",
        "seed": 0,
        "workload": {"lengths": lengths, "arrivals": {"type": "poisson", "rate": "5 /s"}},
        "clients": [{"name": "llm", "gpu": "h100-sxm"}],
        "slo": {"ttft": "1 s", "itl": "30 ms"},
    }
    found = find_goodput(Scenario.from_dict(said), GoodputOptions(most_requests=2000))
    assert (found.first_limit, 11 < found.rate < 15) == ("p99_itl", True)  # 27 /s without


@pytest.mark.deep
def test_a_goodput_keeps_percentiles_of_requests():
    target = target_of(Slo(ttft=1.0, at={"p50_ttft": 0.06, "p95_queue": 2.0}), None)
    assert {name: share.asked for name, share in target.shares.items() if share.on_top} == {
        "p50_ttft": 0.5,
        "p95_queue": 0.95,
    }
    loose = find_goodput(demo({"ttft": "1 s"})).rate
    tight = find_goodput(demo({"ttft": "1 s", "at": {"p50_ttft": "60 ms"}})).rate
    assert tight < 0.9 * loose


@pytest.mark.parametrize(
    ("slo", "told"),
    [
        ({"itl": 0}, "slo.itl must be finite and > 0 s, got 0"),
        ({"at": {"p99_itl": -1}}, "slo.at.p99_itl must be finite and > 0 s, got -1"),
        ({"at": {"p0_ttft": 1}}, "slo.at must have names such as p99_itl or p50_ttft"),
        ({"at": {"p99_tbt": 1}}, "of ttft, tpot, e2el, itl, queue, got 'p99_tbt'"),
    ],
)
def test_what_is_no_limit_is_told(slo, told):
    with pytest.raises(ValueError, match=told.replace(".", r"\.")):
        Slo(**slo)


def test_classes_have_no_gaps_of_their_own():
    with pytest.raises(ScenarioError, match=r"slo\.classes\.chat\.itl: unknown key"):
        demo({"classes": {"chat": {"itl": "5 ms"}}})


def test_plan_takes_a_limit_on_gaps(mist):
    words = ["plan", "--model", "llama-3.1-8b", "--gpus", "h100-sxm", "--rate", "2"]
    load = ["--input-len", "500", "--output-len", "50", "--max-gpus", "1", "--tp", "1"]
    code, out, err = mist(*words, *load, "--itl-ms", "40", "--designs", "together")
    assert code == 0, err
    (limits,) = (line for line in out.splitlines() if line.strip().startswith("limits"))
    assert "p99 ITL" in limits  # not the p90 that the share of good requests asks for


@pytest.mark.parametrize(
    ("p95", "failed", "is_attained"), [(900.0, 0, True), (1100.0, 0, False), (900.0, 1, False)]
)
def test_each_limit_is_judged_by_its_percentile_unless_requests_failed(p95, failed, is_attained):
    """92 % keep both limits; each is kept by 95 % where p95 is below it and no request failed."""
    target = target_of(Slo(ttft=1.0, tpot=1.0, each=True, percentiles=(99,), attainment=0.95), None)
    summary = {
        "slo": {},
        "p95_ttft_ms": p95,
        "p95_tpot_ms": 800.0,
        "good_request_fraction": 0.92,
        "completed": 100 - failed,
        "failed": failed,
    }
    assert target.attained_in([summary]) is is_attained
