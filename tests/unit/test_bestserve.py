"""BestServe's strategies, oracle, goodput and ranking; and how bad input is refused."""

from __future__ import annotations

import json
import shlex
from functools import partial
from math import exp

import numpy as np
import pytest
from scipy.optimize import brentq

from mist_sim import Scenario, ScenarioError, Slo, StepBatch, simulate
from mist_sim.bestserve import (
    FEASIBLE,
    Method,
    Oracle,
    Requests,
    Space,
    Strategy,
    rank_strategies,
    requests_of,
    search_rate,
    simulate_strategy,
)
from mist_sim.bestserve.engines import Engines, Template
from mist_sim.bestserve.optimizer import most_a_second, served_alone
from mist_sim.bestserve.simulators import Order, pseudo_batches
from mist_sim.hardware.predictors import PipelinePredictor
from mist_sim.output import json_text
from mist_sim.rng import Streams
from mist_sim.search.bracketing import around
from mist_sim.studies.verdicts.request_times import RequestTimes, Target
from tests.reference.scenarios import synthetic
from tests.refusals import refused

FEW = {"workload.lengths.num_requests": 200}
SMALL = {
    "model": "llama-3.1-8b",
    "workload": synthetic(300, 1024, 32, "3 /s"),
    "clients": [{"name": "instance", "gpu": "h100-sxm"}],
    "slo": {"ttft": "500 ms", "tpot": "25 ms"},
}


def small(**changes) -> Scenario:
    return Scenario.from_dict(SMALL, changes)


# --- strategies ---------------------------------------------------------------------------------


def test_names_say_what_the_instances_are():
    together = Strategy.parse("2m", tensor_parallel_size=4)
    assert (together.together, together.num_gpus, together.label) == (2, 8, "2m-tp4")
    apart = Strategy.parse("1p2d", pipeline_parallel_size=2)
    assert (apart.prefill, apart.decode, apart.num_gpus) == (1, 2, 6)
    assert (apart.label, apart.is_apart, together.is_apart) == ("1p2d-tp1-pp2", True, False)
    assert Strategy.parse("3p4d").one_of_each == Strategy.parse("1p1d")


def test_a_space_has_every_number_of_instances_layout_and_batch():
    found = Space(instances=3, tensor_parallel_sizes=(1, 2), decode_batches=(8, 16))
    strategies = found.strategies((4, 1))
    assert len(strategies) == len(set(strategies)) == 6 * 2 * 2
    names = {each.name for each in strategies}
    assert names == {"1m", "2m", "1p1d", "3m", "1p2d", "2p1d"}
    few = Space(instances=3, max_gpus=2, tensor_parallel_sizes=(1, 2)).strategies((4, 1))
    assert {each.label for each in few} == {"1m-tp1", "2m-tp1", "1p1d-tp1", "1m-tp2"}
    assert [each.label for each in Space(names=("2m",)).strategies((4, 2))] == ["2m-tp4-pp2"]


test_strategies_and_spaces_that_cannot_be = refused(
    lambda call: call(),
    *(
        (lambda name=name: Strategy.parse(name), "strategy must be xm for x instances that do both")
        for name in ["2x", "", "m", "p1d", "1p", "-1m", "1.5m", "2m ", "1d1p", "²m"]
    ),
    *(
        (lambda name=name: Strategy.parse(name), "strategy must have instances")
        for name in ["0m", "0p1d", "1p0d", "20000m"]
    ),
    *(
        (
            lambda field=field: Strategy.parse("2m", **{field: 0}),
            f"{field} must be in [1, 10",
        )
        for field in ["prefill_batch", "decode_batch", "tensor_parallel_size"]
    ),
    (lambda: Space(instances=0), "instances must be in"),
    (lambda: Space(names=("2m", "2x")), "got '2x'"),
    (lambda: Space(names=("2m", "2m")), "names must differ"),
    (lambda: Space(gpus=("l40s", "l40s")), "gpus must differ"),
    (lambda: Space(prefill_batches=(0,)), "prefill_batches must be >= 1, got 0"),
    (lambda: Space(decode_batches=()), "decode_batches must be one or more numbers"),
    (lambda: Space(tensor_parallel_sizes=(2, 2)), "tensor_parallel_sizes must differ"),
    (lambda: Space(max_gpus=0), "max_gpus must be >= 1, got 0"),
    (lambda: Space(max_gpus=3).strategies((4, 1)), "max_gpus must allow a strategy, got 3"),
    (lambda: Space(instances=200).strategies((1, 1)), "strategies must be <= 10000"),
)


# --- simulators ---------------------------------------------------------------------------------


def test_pseudo_batches_are_those_of_equation_9():
    assert pseudo_batches(6, 2.5) == [1, 1, 1, 1, 2, 2]
    assert pseudo_batches(3, 1.0) == [1, 2, 3]


def test_orders():
    rng = Streams(0).generator("a test")
    turns = Order("round_robin", 3, rng)
    assert turns.next() == [0, 1, 2]
    turns.took(1)
    assert turns.next() == [2, 0, 1]
    shuffled = Order("shuffle", 3, rng)
    seen = {tuple(shuffled.next()) for _ in range(100)}
    assert len(seen) == 6


test_methods_that_cannot_be = refused(
    lambda fields: Method(**fields),
    ({"tau": 0.0}, "tau must be finite and > 0, got 0"),
    ({"routing": "random"}, "routing has no .random.. Known: shuffle, round_robin"),
)


test_requests_that_cannot_be = refused(
    lambda given: Requests.of(*given),
    (([], 1, 1), "requests must be >= 1"),
    (([1.0, 0.0], 1, 1), "arrival must be finite times"),
    (([0.0], 0, 1), "prompt must have >= 1 token in every request, got 0"),
    (([0.0], 5, 0), "output must have >= 1 token in every request, got 0"),
    (([0.0], [5, 6], 1), "requests must be >= 1, with an arrival, a prompt and an output"),
)


class Rank:
    """A rank whose steps take a second a prompt token and a tenth for each answer."""

    def __init__(self, factor: float) -> None:
        self.factor = factor
        self.num_asked = 0

    def step_time(self, batch: StepBatch) -> float:
        self.num_asked += 1
        return self.factor * (batch.num_prefill_tokens + 0.1 * batch.num_decodes)

    def run(self, batch, growth, num_steps):
        raise NotImplementedError


def test_a_pipeline_takes_the_next_batch_when_its_slowest_rank_is_free():
    oracle = Oracle(PipelinePredictor((Rank(1.0), Rank(3.0)), lambda tokens: 0.5))
    assert oracle.prefill((4, 6)) == (10 + 30 + 0.5, 30)
    assert oracle.decode(5, 100) == pytest.approx(0.3 + 0.9 + 0.5)  # microbatches of 3


def test_a_predictor_is_asked_once():
    rank = Rank(1.0)
    oracle = Oracle(rank)
    for _ in range(3):
        assert oracle.prefill((4,)).latency == 4
        assert oracle.decode(2, 10) == pytest.approx(0.2)
    assert rank.num_asked == 2


def test_one_prefill_instance_is_a_queue_that_the_full_simulation_has_too():
    """TTFT of 1p1d is the same in both, request by request; TPOT is where answers are alone."""
    scenario = Scenario.load("bestserve", overrides=FEW)
    strategy = Strategy.parse("1p1d", tensor_parallel_size=4)
    template, requests = Template(scenario), requests_of(scenario, 0)
    times = Engines.of(template, strategy, 2048).times
    for rate in (0.001, 2.5):
        fast = simulate_strategy(strategy, requests.scaled(rate), times)
        full = template.full(strategy, 2048).changed({"workload.arrivals.rate": f"{rate} /s"})
        rows = simulate(full).requests
        assert fast.ttft == pytest.approx(rows["ttft"].to_numpy(), abs=1e-6)
        if rate == 0.001:
            assert fast.tpot == pytest.approx(rows["tpot"].to_numpy(), rel=0.005)


@pytest.mark.parametrize(("name", "rate"), [("1m", 0.13), ("1p1d", 0.15)])
def test_pseudo_batching_fails_where_answers_are_long(name, rate):
    """OP4: BestServe says that limits are kept which a full simulation of each step misses."""
    lengths = {f"workload.lengths.{n}.tokens": x for n, x in (("prompt", 256), ("output", 2048))}
    more = {"workload.lengths.num_requests": 1500}
    scenario = Scenario.load("bestserve", overrides=more | lengths)
    strategy = Strategy.parse(name, tensor_parallel_size=4)
    template, requests = Template(scenario), requests_of(scenario, 0)
    times = Engines.of(template, strategy, 256).times
    target = FEASIBLE.target(scenario)
    fast = simulate_strategy(strategy, requests.scaled(rate), times)
    full = template.full(strategy, 256).changed({"workload.arrivals.rate": f"{rate} /s"})
    assert target.num_missed(fast.times()) <= target.most_missed(1500)
    rows = simulate(full).requests
    of_each = RequestTimes(*(rows[name].to_numpy() for name in ("ttft", "tpot", "ttft")))
    assert target.num_missed(of_each) > 1.5 * target.most_missed(1500)


# --- goodput ------------------------------------------------------------------------------------


def test_the_goodput_of_any_simulator():
    """M/D/1: nine of ten wait no longer than a service where (1 - r) exp(r) = 0.9 (Erlang)."""
    gaps = Streams(1).generator("gaps").exponential(1.0, 20_000)
    target = Target(slo=Slo(ttft=2.0))

    def simulate_queue(rate: float) -> RequestTimes:
        wait, waits = 0.0, []
        for gap in (gaps / rate).tolist():
            wait = max(0.0, wait + 1.0 - gap)
            waits.append(wait)
        ttft = np.array(waits) + 1.0
        return RequestTimes(ttft, np.zeros_like(ttft), ttft)

    found = search_rate(simulate_queue, target, around(0.3, 0.01), seed=0)
    low, high = found.bracket.low, found.bracket.high
    assert low is not None
    assert high is not None
    assert high - low <= 0.01 * high
    assert simulate_queue(low).ttft[np.argsort(simulate_queue(low).ttft)[17_999]] <= 2.0
    assert low == pytest.approx(brentq(lambda r: (1 - r) * exp(r) - 0.9, 0.1, 0.9), rel=0.06)


def test_alone_is_what_request_takes_at_no_load():
    requests = Requests.of([0.0, 100.0], [10, 20], [5, 1])
    times = Oracle(Rank(0.1))
    alone = served_alone(requests, (times, times))
    found = simulate_strategy(Strategy.parse("1m"), requests, times).times()
    assert alone.ttft == pytest.approx(found.ttft)
    assert alone.tpot == pytest.approx(found.tpot)
    assert alone.e2el == pytest.approx(found.e2el)
    assert found.tpot[1] == 0


def test_a_search_begins_near_what_can_be_served():
    requests = Requests.of([0.0], 10, 5)
    times = Oracle(Rank(0.1))
    apart = Strategy.parse("2p1d", prefill_batch=1, decode_batch=1)
    assert most_a_second(apart, requests, (times, times)) == pytest.approx(2.0)


# --- ranking ------------------------------------------------------------------------------------


def test_strategies_are_ranked_by_goodput_per_gpu():
    ranking = rank_strategies(small(), Space(instances=2), jobs=1)
    assert [e.strategy.name for e in ranking.entries if e.rate > 0]
    per_gpu = ranking.table["goodput_per_gpu"].tolist()
    assert per_gpu == sorted(per_gpu, reverse=True)
    best = ranking.best
    assert best is not None
    assert ranking.is_close(best)
    row = ranking.table.iloc[0]
    assert row["output_tokens_per_s"] == pytest.approx(32 * row["goodput"])
    assert row["total_tokens_per_s_per_gpu"] == pytest.approx(1056 * row["goodput_per_gpu"])
    assert ranking.summary["best"]["strategy"] == best.strategy.name


def test_every_verdict_is_that_of_the_simulators():
    """The rate that is found is attained, and the next one missed, by hand."""
    scenario = small()
    ranking = rank_strategies(scenario, Space(names=("1p1d",)), jobs=1)
    goodput, strategy = ranking.entries[0].goodput, ranking.entries[0].strategy
    times = Engines.of(Template(scenario), strategy, 1024).times
    requests = requests_of(scenario, scenario.seed)
    bracket = goodput.searches[0].bracket
    for rate, attains in ((bracket.low, True), (bracket.high, False)):
        run = simulate_strategy(strategy, requests.scaled(rate), times, seed=scenario.seed)
        p90 = [np.sort(x)[269] for x in (run.ttft, run.tpot)]
        assert (p90[0] <= 0.55 and p90[1] <= 0.0275) == attains


def test_the_best_scenario_is_strategy_at_that_rate():
    ranking = rank_strategies(small(), Space(names=("2m", "1p1d")), jobs=1)
    goodput = ranking.best.goodput
    again = Scenario.from_yaml(goodput.scenario)
    assert again.workload.arrivals.make().rate == pytest.approx(goodput.rate)
    assert simulate(again).summary["completed"] == 300


def test_what_does_not_fit_is_left_out_with_a_reason():
    scenario = small(model="llama-3.1-70b")
    space = Space(names=("1m",), tensor_parallel_sizes=(1, 3, 4, 16), decode_batches=(16, 10**6))
    ranking = rank_strategies(scenario, space, jobs=1)
    reasons = {entry.label: entry.left_out for entry in ranking.entries}
    assert "llama-3.1-70b does not fit on 1 x h100-sxm" in reasons["1m-tp1 4/16"]
    assert "tensor_parallel_size: must divide" in reasons["1m-tp3 4/16"]
    assert "tensor_parallel_size must be <= 8" in reasons["1m-tp16 4/16"]
    assert reasons["1m-tp4 4/1000000"]
    assert reasons["1m-tp4 4/16"] is None
    assert ranking.best.label == "1m-tp4 4/16"
    assert ranking.summary["num_left_out"] == 7


def test_boxes_that_cache_cannot_hold_are_left_out():
    changes = {"clients.0.kv_cache": {"num_gpu_blocks_override": 600}}
    ranking = rank_strategies(small(**changes), Space(names=("1m",), decode_batches=(4, 8)), jobs=1)
    reasons = {entry.strategy.decode_batch: entry.left_out for entry in ranking.entries}
    assert reasons[4] is None
    assert reasons[8] == (
        "KV cache: instance needs 12,544 tokens, and 9,584 fit; lower its batch or use more GPUs "
        "an instance"
    )


def test_a_limit_that_nobody_keeps_alone_is_told():
    ranking = rank_strategies(small(**{"slo.ttft": "1 ms"}), Space(names=("1m",)), jobs=1)
    assert ranking.best is None
    assert ranking.entries[0].rate == 0
    assert "a request that is alone has a mean TTFT of" in ranking.entries[0].too_slow
    assert "No strategy attains" in ranking._repr_html_()


def test_experts_pipelines_and_traces():
    changes = {
        "model": "mixtral-8x7b",
        "workload.lengths": {"type": "profile", "name": "azure-conv-2023", "num_requests": 200},
    }
    space = Space(names=("1m", "1p1d"), tensor_parallel_sizes=(2,), pipeline_parallel_sizes=(1, 2))
    ranking = rank_strategies(small(**changes), space, jobs=1)
    assert {entry.strategy.layout for entry in ranking.entries} == {"tp2", "tp2-pp2"}
    assert all(entry.rate > 0 for entry in ranking.entries)
    assert ranking.mean_output > 100


def test_replications_give_an_interval():
    ranking = rank_strategies(small(replications=3), Space(names=("1m",)), jobs=1)
    entry = ranking.entries[0]
    assert [search.seed for search in entry.goodput.searches] == list(ranking.seeds)
    assert len(ranking.seeds) == 3
    assert entry.interval[0] < entry.rate < entry.interval[1]


def test_the_full_simulation_checks_the_best():
    ranking = rank_strategies(small(), Space(names=("1m", "1p1d")), check=1, jobs=1)
    first, second = ranking.entries
    assert first.full is not None
    assert second.full is None
    row = ranking.table.iloc[0]
    assert row["full_error"] == pytest.approx(first.rate / first.full.rate - 1)
    assert not any(each.kind.name == "full failed" for each in ranking.warnings)


def test_result_does_not_depend_on_jobs_or_journal(tmp_path):
    ranked = partial(rank_strategies, small(), Space(instances=2))
    alone = json_text(ranked(jobs=1, journal=tmp_path / "journal").summary)
    assert json_text(ranked(jobs=2).summary) == alone
    again = ranked(jobs=1, journal=tmp_path / "journal", resume=True)
    assert json_text(again.summary) == alone


test_scenarios_that_cannot_be_ranked = refused(
    lambda changes: rank_strategies(
        Scenario.from_dict(SMALL, changes), Space(names=("1m",)), jobs=1
    ),
    (
        {"workload.pipeline": ["prefill"]},
        "workload.pipeline must be .prefill, decode. for BestServe's .*requests with prefill;",
    ),
    ({"workload.lengths.output.tokens": 1}, "workload must have answers of two tokens or more"),
    ({"workload.arrivals": {"type": "all_at_once"}}, "workload.arrivals must have a rate"),
    ({"clients.0.data_parallel_size": 2}, "clients.0.data_parallel_size must be left out"),
    (
        {"clients": [{"name": "a", "gpu": "l4"}, {"name": "b", "gpu": "l4"}]},
        "clients must be one entry of type llm, .* got 2",
    ),
    ({"slo": {}}, "slo must set a limit"),
    ({"lifecycle": {"failures": {"mtbf": "10 s"}}}, "lifecycle"),
)


# --- command line -------------------------------------------------------------------------------

WORDS = shlex.split(
    "--model llama-3.1-8b --gpu h100-sxm --input-len 1024 --output-len 32 --ttft-ms 500 "
    "--tpot-ms 25 --requests 200 --jobs 1"
)


@pytest.fixture
def bestserve(mist):
    return partial(mist, "bestserve")


OPTIONS = """
    --model qwen2.5-7b, --gpu l40s, --input-len 900, --output-len 40, --requests 300,
    --ttft-ms 400, --tpot-ms 30, --instances 2, --strategies 1m, --tp 2, --pp 2,
    --prefill-batch 2, --decode-batch 32, --max-gpus 2, --attainment 0.95, --relaxation 0,
    --rates 1:9, --tolerance 0.1, --tau 2, --routing round_robin, --check 1, --replications 3,
    --set seed=3
"""


@pytest.mark.parametrize("words", OPTIONS.split(","), ids=str.strip)
def test_every_option_changes_what_is_asked(words, bestserve, monkeypatch):
    found = []

    def rank(scenario, *options, method, check, **_):
        found.append((scenario.resolved(), options, method, check))
        raise ScenarioError("asked")

    monkeypatch.setattr("mist_sim.bestserve.optimizer.rank_strategies", rank)
    for more in ([], words.split()):
        assert bestserve(*WORDS, *more)[0] == 2
    assert len(found) == 2
    assert found[0] != found[1]


def test_the_table(bestserve):
    code, out, err = bestserve(*WORDS, "--instances", "2", "--tp", "1,3", "-q")
    assert (code, err) == (0, "")
    for words in ("Strategies by goodput per GPU", "2m-tp1", "1p1d-tp1", "Left out", "tp3 4/16"):
        assert words in out
    assert max(map(len, out.splitlines())) <= 80


def test_json_and_files(bestserve, tmp_path):
    code, out, _ = bestserve(*WORDS, "--strategies", "1m,1p1d", "--json", "--out", "found", "-q")
    data = json.loads(out)
    assert code == 0
    assert data["num_strategies"] == 2
    assert {row["strategy"] for row in data["strategies"]} == {"1m", "1p1d"}
    files = {path.name for path in (tmp_path / "found").iterdir()}
    assert {"bestserve.json", "bestserve.csv", "trials.csv", "best.yaml"} <= files
    assert "mist goodput finds the rate" in (tmp_path / "found" / "best.yaml").read_text("utf-8")
    assert json.loads((tmp_path / "found" / "bestserve.json").read_text()) == data


def test_a_scenario_says_the_rest(bestserve):
    code, out, _ = bestserve(
        "bestserve", "--requests", "300", "--strategies", "2m", "--check", "1", "--jobs", "1", "-q"
    )
    assert code == 0
    assert "2m-tp4" in out
    assert "full, /s" in out


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (
            ["--model", "llama-3.1-8b"],
            "without a SCENARIO, --gpu, --input-len, --output-len, --ttft-ms or",
        ),
        ([*WORDS, "--strategies", "2m", "--instances", "3"], "--instances must be left out"),
        ([*WORDS, "--decode-batch", "0"], "--decode-batch must be whole numbers from 1 to"),
        ([*WORDS, "--tp", ""], "--tp must be whole numbers from 1 to"),
        ([*WORDS, "--rates", "9:1"], "rates must be LOW:HIGH"),
        ([*WORDS, "--output-len", "1"], "--output-len must be >= 2 tokens, got 1"),
        ([*WORDS, "--input-len", "0"], "--input-len must be >= 1, got 0"),
        ([*WORDS, "--model", "llama-3.1-405b"], "no strategy fits: 1m-tp1 4/16 is left out"),
    ],
)
def test_bad_input_is_one_message(bestserve, words, message):
    code, out, err = bestserve(*words)
    assert (code, out) == (2, "")
    assert message in err
    assert "Traceback" not in err


# --- per dollar and per joule -------------------------------------------------------------------


def test_strategies_are_ranked_for_a_dollar():
    """Two kinds of GPUs at given prices: the ranking is that of rate over dollars, by hand."""
    gpus = ("h100-sxm", "l40s")
    names = ("1m", "1p1d")
    cheap = small(cost={}, **{"slo.tpot": "60 ms"})
    ranking = rank_strategies(cheap, Space(names=names, gpus=gpus), by="usd", jobs=1)
    hourly = {"h100-sxm": 2.95, "l40s": 1.5484}  # mist list prices
    rows = ranking.table.to_dict("records")
    assert {(row["strategy"], row["gpu"]) for row in rows} == {(n, g) for n in names for g in gpus}
    for row in rows:
        assert row["usd_per_hour"] == pytest.approx(hourly[row["gpu"]] * row["num_gpus"])
        assert row["goodput_per_usd"] == pytest.approx(row["goodput"] * 3600 / row["usd_per_hour"])
    values = [row["goodput_per_usd"] for row in rows]
    assert values == sorted(values, reverse=True)
    assert ranking.summary["by"] == "usd"
    assert "requests per $" in ranking._repr_html_()


def test_strategies_are_ranked_for_a_joule():
    """A request takes what a full run at the goodput takes between its ramp and its last arrival.

    The 300 requests come in 300 / rate seconds; of a longer run the whole energy is near that.
    """
    ranking = rank_strategies(small(), Space(names=("1m", "2m")), by="joule", jobs=1)
    values = ranking.table["goodput_per_joule"].tolist()
    assert values == sorted(values, reverse=True)
    assert "full simulation" in ranking._repr_html_()
    entry = next(e for e in ranking.entries if e.strategy.name == "1m")
    longer = {
        "workload.lengths.num_requests": 6000,
        "workload.arrivals.rate": f"{entry.rate} /s",
    }
    run = simulate(Template(small()).full(entry.strategy, 1024).changed(longer))
    assert entry.joules == pytest.approx(run.summary["energy_j"] / 6000, rel=0.05)


def test_a_dollar_takes_prices():
    scenario = small(**{"clients.0.gpu": "ascend-910b3"})
    with pytest.raises(ScenarioError, match="price"):
        rank_strategies(scenario, Space(names=("1m",)), by="usd", jobs=1)
    unknown = rank_strategies(scenario, Space(names=("1m",)), jobs=1).table
    assert unknown["usd_per_hour"].isna().all()


test_rankings_that_cannot_be = refused(
    lambda changes, space, options: rank_strategies(small(**changes), space, **options, jobs=1),
    ({}, Space(names=("1m",)), {"by": "euro"}, "by must be one of gpu, usd, joule, got 'euro'"),
    ({}, Space(names=("1m",), gpus=("h100-sxm", "h999")), {}, "is named 'h999'"),
    ({}, Space(names=("1m",)), {"check": -1}, "check must be >= 0, got -1"),
    (
        {"model": "llama-3.1-70b"},
        Space(names=("1m", "2m")),
        {},
        "no strategy fits: 1m-tp1 4/16 is left out, and 1 oth",
    ),
    (  # whose tables are for dense models in 16 bits alone
        {"model": "mixtral-8x7b", "clients.0.predictor": {"type": "bestserve"}},
        Space(names=("1m",), tensor_parallel_sizes=(4,)),
        {},
        "bestserve has tables for dense models",
    ),
)
