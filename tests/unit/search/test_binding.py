"""What binds at the goodput: laws of relaxing, of ranking, and deployments whose limit is known."""

import json
from dataclasses import replace

import numpy as np
import pytest

from mist_sim import Scenario, ScenarioError
from mist_sim.core.recorder import Recorder
from mist_sim.metrics import Slo
from mist_sim.scenario import build
from mist_sim.scenario.loading import as_data
from mist_sim.search.binding import (
    BATCHES,
    RESOURCES,
    _fall,
    _ranked,
    _worth,
    relaxed,
    relaxed_run,
    search_binding,
    what_binds,
)
from mist_sim.search.binding_result import Binding, worth
from mist_sim.search.bracketing import Bracket, SeedGoodput
from mist_sim.search.goodput import GoodputOptions, find_goodput
from mist_sim.search.goodput_result import Goodput
from mist_sim.studies.built import Built
from mist_sim.studies.driver import studying
from mist_sim.studies.verdicts.request_times import Target, target_of
from mist_sim.studies.verdicts.trials import Trial
from tests.reference.scenarios import synthetic

WORKLOAD = synthetic(60, 1000, 20, "20 /s")
TOGETHER = {
    "model": "llama-3.1-8b",
    "workload": WORKLOAD,
    "clients": [{"name": "llm", "gpu": "h100-sxm"}],
    "slo": {"ttft": "150 ms", "tpot": "20 ms"},
}
APART = {
    **TOGETHER,
    "clients": [
        {"name": "p", "role": "prefill", "gpu": "h100-sxm", "tensor_parallel_size": 2},
        {"name": "d", "role": "decode", "gpu": "h100-sxm"},
    ],
    "network": {"bandwidth": "10 Gb/s", "latency": "1 ms"},
    "slo": {"ttft": "500 ms", "tpot": "50 ms"},
}
SLOW = {  # of its steps every part counts: kernels, launches, the engine's own time, links
    **TOGETHER,
    "clients": [
        {
            "name": "llm",
            "gpu": "l40s",
            "tensor_parallel_size": 2,
            "async_scheduling": False,
            "overhead": {"request": "2 ms", "prompt_token": "1 us"},
            "scheduler": {"type": "chunked", "max_num_seqs": 3, "max_num_batched_tokens": 256},
        }
    ],
}
FABRIC = {**APART, "network": {"topology": "hgx-h100", "nodes": 2}}


def times_of(scenario):
    recorder = Recorder()
    build(scenario).run(recorder=recorder)
    columns = recorder.requests.columns()
    return np.array([columns["first_token_at"], columns["finished_at"]])


@pytest.mark.parametrize("data", [TOGETHER, APART, SLOW, FABRIC])
def test_relaxing_by_nothing_changes_nothing(data):
    """What was measured of a GPU stays its own: every time is the same to the bit."""
    scenario = Scenario.from_dict(data)
    before = times_of(scenario)
    for resource in RESOURCES:
        same = relaxed(scenario, resource, 0.0)
        if same is not None:
            assert np.array_equal(times_of(same), before), resource


def test_what_is_used_up_gains_and_what_is_idle_does_not():
    scenario = Scenario.from_dict(SLOW)
    before = times_of(scenario).mean()
    gained = {}
    for resource in RESOURCES:
        found = relaxed(scenario, resource, 0.1)
        gained[resource] = None if found is None else before - times_of(found).mean()
    assert gained["transfer"] is None, "there is no network"
    assert gained["kv_memory"] == 0, "three short sequences leave most of the cache free"
    for resource in ("compute", "memory_bandwidth", "links", "host", "seats"):
        assert gained[resource] > 0, resource
    assert gained["token_budget"] != 0
    assert gained["chunks"] < 0, "smaller steps need more of them"


def test_one_rank_has_no_links_and_a_worker_has_nothing_that_is_relaxed():
    assert relaxed(Scenario.from_dict(TOGETHER), "links", 0.1) is None
    worker = {
        "workload": {**WORKLOAD, "pipeline": [{"type": "preprocess", "num_tokens": 1}]},
        "clients": [
            {"name": "cpu", "type": "sequential", "serves": ["preprocess"], "base_time": "1 ms"}
        ],
    }
    assert [relaxed(Scenario.from_dict(worker), name, 0.1) for name in RESOURCES] == [None] * 10


def test_slots_for_adapters_are_relaxed_where_there_are_adapters():
    """Requests of six adapters take turns on one slot, with seats and memory free."""
    lora = {"max_loras": 1, "max_cpu_loras": 1, "storage_bandwidth": "10 GB/s"}
    data = {
        **TOGETHER,
        "workload": {**WORKLOAD, "adapters": {f"a{number}": 1 for number in range(6)}},
        "clients": [{"name": "llm", "gpu": "h100-sxm", "lora": lora}],
    }
    scenario = Scenario.from_dict(data)
    found = relaxed(scenario, "adapters", 0.1)
    assert (found.clients[0].lora.max_loras, found.clients[0].lora.max_cpu_loras) == (2, 2)
    gained = {
        name: times_of(scenario).mean() - times_of(more).mean()
        for name in RESOURCES
        if (more := relaxed(scenario, name, 0.1)) is not None
    }
    assert max(gained, key=gained.get) == "adapters"
    assert relaxed(Scenario.from_dict(TOGETHER), "adapters", 0.1) is None


def test_measured_times_do_not_follow_a_faster_gpu():
    linear = {"type": "linear", "step": "10 ms", "prefill_token": "10 us", "decode": "50 us"}
    llm = {"name": "llm", "gpu": "h100-sxm", "predictor": linear}
    scenario = Scenario.from_dict({**TOGETHER, "clients": [llm]})
    assert relaxed(scenario, "compute", 0.1) is relaxed(scenario, "memory_bandwidth", 0.1) is None
    assert relaxed(scenario, "kv_memory", 0.1) is not None


# ------------------------------------------------------------------------------ the ranking


def shown(batches, missed=None):
    missed = missed or {"ttft": 0.1}
    return {
        "names": [""],
        "quantile": [float(np.mean(batches))],
        "batches": [list(batches)],
        "missed": missed,
        "alone": dict.fromkeys(missed, 0.0),
    }


@pytest.mark.parametrize("own", [{}, {"ttft": 0.02, "tpot": 0.05}])
def test_a_percentile_that_decides_fails_first(own):
    """With other limits beside it, and without."""
    base = shown(np.zeros(BATCHES), own or {"": 0.0})
    base |= {"names": ["", "p99_ttft"], "quantile": [-0.1, 0.4], "batches": base["batches"] * 2}
    assert _ranked(base, [base] * 3, {"host": base}, 1.0).sentence.startswith("p99 TTFT fails")
    base["quantile"] = [0.5, 0.4]
    assert _ranked(base, [base] * 3, {"host": base}, 1.0).limit == ("tpot" if own else "")


def noise(seed, scale=0.05):
    return np.random.Generator(np.random.PCG64(seed)).normal(0, scale, BATCHES)


def test_noise_is_seldom_named():
    """With a true difference of nothing, 5 % by design; of 400 at most 8 %, and not none at all."""
    base = shown(np.zeros(BATCHES))
    named = [
        _ranked(base, [base] * 3, {"a": shown(noise(k)), "b": shown(noise(k + 1000))}, 1.0).resource
        for k in range(400)
    ]
    assert 0 < sum(name is not None for name in named) < 32


def test_difference_that_grows_with_queue_is_no_noise():
    growing = np.linspace(0, 1, BATCHES)
    fall, error = _fall(shown(growing), shown(0.5 * growing), 0, 8)
    assert fall == pytest.approx(0.25)
    assert error < 1e-9


def test_the_best_is_named_and_who_may_be_as_good():
    base = shown(np.ones(BATCHES), {"ttft": 0.2, "tpot": 0.3})
    slower = [shown(np.full(BATCHES, 1 - fall)) for fall in (0.1, 0.2, 0.3)]
    runs = {
        "compute": shown(0.80 + noise(1)),
        "host": shown(0.81 + noise(2)),
        "transfer": shown(0.95 + noise(3, 0.01)),
        "seats": shown(np.ones(BATCHES)),
        "chunks": shown(np.full(BATCHES, 1.1)),
    }
    found = _ranked(base, slower, runs, 5.0)
    assert {found.resource, *found.rivals} == {"compute", "host"}
    assert found.more.keys() == {"compute", "host", "transfer"}
    assert found.gains["chunks"] == pytest.approx(-0.1)
    assert found.limit == "tpot"
    assert "TPOT fails first" in found.sentence
    assert "may matter as much" in found.sentence


def test_what_another_limit_stops_is_no_gain():
    """Seats that shorten the queue and lengthen steps, as of a run at 1.05 times a goodput."""

    def rows(ttft, tpot):
        found = shown(np.full(BATCHES, ttft))
        both = {"quantile": [ttft, tpot], "batches": found["batches"] + [[tpot] * BATCHES]}
        return found | both | {"names": ["p99_ttft", "p95_tpot"], "missed": {}, "alone": {}}

    base, slower = rows(0.43, 0.01), [rows(-0.24, -0.02), rows(-0.7, -0.08), rows(-0.8, -0.24)]
    runs = {"compute": rows(-0.16, -0.05), "seats": rows(0.06, 0.05)}
    found = _ranked(base, slower, runs, 4.28)
    assert (found.limit, found.resource) == ("p99_ttft", "compute")
    assert found.stopped == {"seats": "p95_tpot"}
    assert "max_num_seqs helps it too, but then p95 TPOT fails" in found.sentence
    alone = _ranked(base, slower, {"seats": runs["seats"]}, 4.28)
    assert alone.resource is None
    assert "helps all limits" in alone.sentence


def test_what_seems_better_but_may_be_noise_is_told():
    """A large gain that comes and goes beside a small one that is sure."""
    base = shown(np.ones(BATCHES))
    runs = {"host": shown(np.full(BATCHES, 0.97)), "compute": shown(0.7 + noise(5, 0.6))}
    found = _ranked(base, [base] * 3, runs, 5.0)
    assert (found.resource, found.rivals) == ("host", ("compute",))


def test_gain_is_worth_rate_that_gains_as_much():
    """Lines in logarithms: falls of 0.1, 0.2, 0.4 at rates 1.05, 1.1 and 1.3 times lower."""
    lower = [0.1, 0.2, 0.4]
    for gain, factor in ((0.1, 1.05), (0.2, 1.1), (0.4, 1.3), (0.05, 1.05**0.5)):
        assert _worth(gain, lower) == pytest.approx(factor - 1)
    assert _worth(0.3, lower) == pytest.approx((1.1 * 1.3) ** 0.5 - 1)
    assert _worth(9.0, lower) == _worth(1.0, [0.0] * 3) == 0.5
    assert [worth(more) for more in (0.001, 0.064, 0.5)] == [
        "less than 1 %",
        "about 6 %",
        "at least 50 %",
    ]


# ------------------------------------------------------------------------------ deployments


def goodput_of(data, rate):
    """Return a goodput as a search would have found it."""
    scenario = Scenario.from_dict(data)
    trials = [
        Trial(rate, 0, True, 0.95, True, is_steady=True),
        Trial(1.02 * rate, 0, False, 0.85, True, is_steady=True),
    ]
    search = SeedGoodput.of(0, Bracket(rate, 1.02 * rate), trials)
    target = Target(slo=Slo(**scenario.slo.make().limits))
    return scenario, Goodput((search,), target, 0.02, 60, 2, scenario.resolved())


@pytest.mark.parametrize(
    ("data", "rate", "num_requests", "limit", "resource"),
    [
        pytest.param(APART, 6.6, 300, "tpot", "transfer", id="a slow network"),
        pytest.param(
            {
                **TOGETHER,
                "workload": {
                    **WORKLOAD,
                    "lengths": {
                        **WORKLOAD["lengths"],
                        "prompt": {"type": "fixed", "tokens": 6000},
                        "output": {"type": "fixed", "tokens": 2},
                    },
                },
                "slo": {"ttft": "1 s"},
            },
            6.14,
            2000,
            "ttft",
            "compute",
            id="long prompts",
        ),
    ],
)
def test_what_binds_is_what_has_no_room_left(data, rate, num_requests, limit, resource):
    scenario, goodput = goodput_of(data, rate)
    with studying("binding", {}, jobs=1) as driver:
        found = search_binding(Built(scenario), goodput, driver, num_requests=num_requests)
    assert (found.limit, found.resource) == (limit, resource)
    assert found.gains[resource] == max(found.gains.values())
    assert abs(found.gains["seats"]) == 0
    assert found.rate == pytest.approx(1.05 * rate)
    assert 0.03 < found.more[resource] < 0.3


def test_percentiles_alone_have_rows_of_their_own():
    scenario = Scenario.from_dict({**TOGETHER, "slo": {"at": {"p99_ttft": "150 ms"}}})
    target = target_of(scenario.slo.make(), None)
    found = relaxed_run(as_data(scenario), {}, 0, 20.0, target, None, 0.0, None)
    assert found["names"] == ["", "p99_ttft"]
    assert _ranked(found, [found] * 3, {"host": found}, 20.0).limit == "p99_ttft"


def test_where_nothing_helps_nothing_is_named():
    binding = Binding(1.0, "ttft", None, {"seats": 0.0}, {"seats": 0.0})
    assert "nothing that was relaxed by a tenth helps" in binding.sentence
    assert "the most is" not in binding.sentence
    hidden = replace(binding, gains={"seats": 0.02, "host": 0.01}, errors={"seats": 0.05})
    assert "the most is max_num_seqs, 2.0 ± 4.9 % less" in hidden.sentence
    assert "relaxed by 20 % helps" in replace(binding, by=0.2).sentence
    assert json.loads(json.dumps(binding.summary))["resource"] is None


def test_one_limit_is_said_to_be_missed_first():
    """The run just above the goodput tells it better than a rate that may be far above it."""
    _, goodput = goodput_of(TOGETHER, 5.0)
    trials = [replace(each, worst_limit="ttft") for each in goodput.searches[0].trials]
    coarse = replace(goodput, searches=(SeedGoodput.of(0, Bracket(5.0, 5.1), trials),))
    assert coarse.first_limit == "ttft"
    assert replace(coarse, binding=Binding(1.0, "tpot", None, {})).first_limit == "tpot"


def test_bad_questions_are_refused():
    scenario, goodput = goodput_of(TOGETHER, 5.0)
    with pytest.raises(ScenarioError, match="by must be in"):
        what_binds(scenario, goodput, by=0.0)
    with pytest.raises(ScenarioError, match="num_requests must be >= 1000"):
        what_binds(scenario, goodput, num_requests=10)
    search = SeedGoodput.of(0, Bracket(None, 5.0), [])
    with pytest.raises(ScenarioError, match="not known without a goodput, got all missed"):
        what_binds(scenario, Goodput((search,), goodput.target, 0.02, 60, 2, ""))
    arguments = as_data(scenario), {}, 0, 5.0, goodput.target, "transfer", 0.1, 1000
    with pytest.raises(ScenarioError, match="no transfer that can be relaxed"):
        relaxed_run(*arguments)


def test_the_command_says_it(mist, tmp_path):
    (tmp_path / "apart.yaml").write_text(Scenario.from_dict(APART).resolved())
    args = ("goodput", "apart.yaml", "--why", "--as-is", "--jobs", "1", "--rates", "4:16")
    code, out, _ = mist(*args, "--tolerance", "0.2", "--out", "found")
    assert code == 0
    assert "What binds" in out
    assert "the transfer binds: a network a tenth faster" in " ".join(out.split())
    assert max(map(len, out.splitlines())) <= 80
    data = json.loads((tmp_path / "found/goodput.json").read_text())["binding"]
    assert data["resources"][0]["resource"] == data["resource"] == "transfer"
    assert data["sentence"].split(";")[0] == "TPOT fails first"
    assert data["num_requests"] == 60


def test_who_does_not_ask_has_no_answer():
    scenario, _ = goodput_of(TOGETHER, 5.0)
    assert "binding" not in find_goodput(scenario, GoodputOptions(as_is=True), jobs=1).summary


def test_what_was_run_is_not_run_again(tmp_path, monkeypatch):
    scenario = Scenario.from_dict(TOGETHER)
    options = GoodputOptions(as_is=True, rates=(10.0, 60.0), tolerance=0.2)
    how = {"why": True, "jobs": 1, "journal": tmp_path / "journal"}
    find_goodput(scenario, options, **{**how, "why": False})
    first = find_goodput(scenario, options, **how, resume=True)

    def again(*_):
        raise AssertionError("a run is repeated")

    monkeypatch.setattr("mist_sim.search.binding.build", again)
    second = find_goodput(scenario, options, **how, resume=True)
    assert first.binding is not None
    assert second.binding == first.binding
    monkeypatch.undo()
    assert what_binds(scenario, first, jobs=1) == first.binding
