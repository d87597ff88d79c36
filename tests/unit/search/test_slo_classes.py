"""Limits by class of request: who is of which class, what is good, what a goodput asks for."""

from __future__ import annotations

import json
from collections import Counter
from copy import deepcopy
from math import nan

import numpy as np
import pytest
from typer.testing import CliRunner

from mist_sim import Scenario, simulate
from mist_sim.cli.app import app
from mist_sim.metrics import Slo
from mist_sim.metrics.goodput import ClassLimits
from mist_sim.metrics.latency import limit_of, limit_title, metric_of
from mist_sim.metrics.stability import Stays
from mist_sim.rng import Streams
from mist_sim.scenario.slo_presets import slo_preset_names
from mist_sim.search import GoodputOptions, compare, find_goodput
from mist_sim.search.planning import PlanOptions, plan
from mist_sim.search.spaces import SearchOptions, Space, search_space
from mist_sim.search.spaces.objectives import constraints_of, objectives_of
from mist_sim.studies.verdicts.request_times import RequestTimes, Share, Target
from mist_sim.studies.verdicts.steady_state import OfClass, Seen, look
from mist_sim.traces import FixedLength, Mix, RequestClass, UniformLength
from tests.refusals import refused

CHAT = {
    "share": 3,
    "prompt": {"type": "uniform", "low": 50, "high": 900},
    "output": {"type": "uniform", "low": 20, "high": 120},
}
BATCH = {"prompt": {"type": "fixed", "tokens": 4000}, "output": {"type": "fixed", "tokens": 90}}
ASKED = {
    "model": "llama-3.1-8b",
    "workload": {
        "lengths": {
            "type": "mix",
            "num_requests": 120,
            "classes": {"chat": CHAT, "batch": BATCH},
        },
        "arrivals": {"type": "poisson", "rate": "16 /s"},
    },
    "clients": [{"name": "llm", "gpu": "h100-sxm"}],
}
LIMITS = {"chat": {"ttft": "150 ms", "tpot": "20 ms"}, "batch": {"e2el": "1200 ms"}}


def scenario(slo, **changes):
    return Scenario.from_dict(deepcopy(ASKED) | {"slo": slo}, changes)


# ---------------------------------------------------------------------- requests of classes


def rows_of(classes, num=4000, seed=0):
    source = Mix(num_requests=num, classes=classes)
    return list(source.sample_rows(Streams(seed).generator("lengths")))


def two_classes(tokens=9):
    return {
        "a": RequestClass(
            prompt=UniformLength(low=5, high=50), output=FixedLength(tokens=3), share=3
        ),
        "b": RequestClass(
            prompt=FixedLength(tokens=tokens), output=FixedLength(tokens=4), priority=5
        ),
    }


def test_a_mix_has_its_shares_and_each_class_its_own_lengths():
    rows = rows_of(two_classes())
    counts = Counter(row.label for row in rows)
    deviation = np.sqrt(4000 * 0.75 * 0.25)
    assert abs(counts["a"] - 3000) < 4 * deviation
    assert {
        (r.num_prompt_tokens, r.num_output_tokens, r.priority) for r in rows if r.label == "b"
    } == {(9, 4, 5)}
    assert {row.priority for row in rows if row.label == "a"} == {0}


def test_other_lengths_of_one_class_leave_the_others_as_they_are():
    one, other = rows_of(two_classes()), rows_of(two_classes(tokens=700))
    assert [row for row in one if row.label == "a"] == [row for row in other if row.label == "a"]
    assert [row.label for row in one] == [row.label for row in other]
    assert rows_of(two_classes(), num=50) == one[:50]


def test_who_is_of_which_class():
    result = simulate(
        scenario(
            {"classes": {"urgent": {"priority": 0, "ttft": "1 s"}, "batch": {"e2el": "9 s"}}},
            **{"workload.lengths.classes.batch.priority": 7},
        )
    )
    table = result.requests
    is_batch = table["num_prompt_tokens"] == 4000
    assert (table.loc[is_batch, "class"] == "batch").all()
    assert (table.loc[~is_batch, "class"] == "urgent").all()


# ---------------------------------------------------------------------- figures of a run


def test_a_class_is_judged_by_its_own_percentiles_or_else_by_those_of_all():
    classes = {"chat": LIMITS["chat"] | {"percentiles": [75]}, "batch": LIMITS["batch"]}
    verdicts = simulate(scenario({"percentiles": [50, 90], "classes": classes})).summary["slo"]
    names = ["chat.p75_ttft_ms", "chat.p75_tpot_ms", "batch.p50_e2el_ms", "batch.p90_e2el_ms"]
    assert list(verdicts) == names
    assert verdicts["batch.p50_e2el_ms"]["value"] < verdicts["batch.p90_e2el_ms"]["value"]
    unsaid = simulate(scenario({"classes": LIMITS})).summary["slo"]
    assert "batch.p90_e2el_ms" in unsaid, "that of the share asked for"
    of_its_own = {"chat": LIMITS["chat"] | {"attainment": 0.8}, "batch": LIMITS["batch"]}
    asked = simulate(scenario({"classes": of_its_own, "attainment": 0.95})).summary["slo"]
    assert list(asked) == ["chat.p80_ttft_ms", "chat.p80_tpot_ms", "batch.p95_e2el_ms"]


def test_good_is_who_keeps_limits_of_its_class():
    result = simulate(scenario({"ttft": "1 us", "classes": LIMITS}))
    table, summary = result.requests, result.summary
    chat, batch = table[table["class"] == "chat"], table[table["class"] == "batch"]
    good_chat = (chat["ttft"] <= 0.15) & (chat["tpot"] <= 0.02)
    good_batch = batch["e2el"] <= 1.2
    assert 0 < good_chat.mean() < 1, "the limits tell nothing"
    assert 0 < good_batch.mean() < 1, "the limits tell nothing"
    assert summary["classes"]["chat"]["good_request_fraction"] == good_chat.mean()
    assert summary["classes"]["batch"]["good_request_fraction"] == good_batch.mean()
    for metric in ("ttft", "tpot", "e2el"):
        for percentile in (50, 90, 95, 99):
            assert (
                f"p{percentile}_{metric}_ms" in summary.keys() & summary["classes"]["chat"].keys()
            )
    whole = (good_chat.sum() + good_batch.sum()) / len(table)
    assert summary["good_request_fraction"] == pytest.approx(whole, rel=1e-12)
    assert set(summary["classes"]) == {"chat", "batch"}, "nobody is of no class"
    expected = np.percentile(chat["ttft"], 90) * 1e3
    assert summary["slo"]["chat.p90_ttft_ms"]["value"] == pytest.approx(expected, rel=1e-12)
    good_tokens = chat["num_output_tokens"][good_chat].sum() + 90 * good_batch.sum()
    assert result.clients["good_tokens"].sum() == good_tokens


def test_requests_of_no_class_keep_the_other_limits():
    slo = {"ttft": "90 ms", "classes": {"batch": {"e2el": "1500 ms"}}}
    result = simulate(scenario(slo))
    chat = result.requests[result.requests["class"] == ""]
    found = result.summary["classes"]["others"]
    assert found["good_request_fraction"] == (chat["ttft"] <= 0.09).mean()
    assert found["completed"] == len(chat)
    assert set(result.summary["slo"]) == {"p90_ttft_ms", "batch.p90_e2el_ms"}


@pytest.mark.parametrize("each", [False, True])
def test_a_limit_of_no_class_is_kept_where_all_requests_are_of_one(each):
    """Nothing failed: neither `mist run` nor a comparison may call that limit missed."""
    loose = {"chat": {"ttft": "60 s"}, "batch": {"ttft": "60 s"}}
    slo = {"ttft": "1 ms", "classes": loose, "each": each, "attainment": 0.9, "percentiles": [90]}
    result = simulate(scenario(slo))
    told = result.summary["slo"]
    assert told["p90_ttft_ms"]["kept"]
    assert np.isnan(told["p90_ttft_ms"]["value"])
    assert GoodputOptions().target(scenario(slo)).attained_in([result.summary])


def test_a_run_is_same_with_and_without_classes():
    plain, by_class = simulate(scenario({"ttft": "1 s"})), simulate(scenario({"classes": LIMITS}))
    one, other = plain.requests, by_class.requests.drop(columns="class")
    assert one.equals(other)
    assert "class" not in plain.requests
    assert "classes" not in plain.summary
    assert not plain.recorder.groups


@pytest.mark.parametrize("classes", [{}, {"all": ClassLimits(ttft=0.2, tpot=0.02)}])
def test_loosest_limits_are_kept_by_every_good_request(classes):
    slo = Slo(ttft=0.1, tpot=0.03, e2el=2.0, classes=classes)
    rng = Streams(0).generator("times")
    ttft, tpot, e2el = rng.uniform(0, (0.3, 0.05, 3.0), (500, 3)).T
    gaps, group = np.full(500, 9), rng.integers(0, 1 + len(classes), 500)
    good = slo.kept(ttft, tpot, e2el, gaps, group)
    assert good.any()
    times = {"ttft": ttft, "tpot": tpot, "e2el": e2el}
    missed = slo.loosest.missed_alone(times, gaps)
    assert missed
    assert not any(mask[good].any() for mask in missed.values())


# ---------------------------------------------------------------------- goodput


def test_a_class_of_all_requests_is_no_class():
    limits = {"ttft": "150 ms", "tpot": "20 ms"}
    everybody = {"classes": {"all": limits | {"priority": 0}}}
    plain, by_class = (
        find_goodput(scenario(slo), GoodputOptions(most_requests=2000, tolerance=0.1), jobs=1)
        for slo in (limits, everybody)
    )
    assert plain.rate == by_class.rate
    pairs = zip(plain.searches[0].trials, by_class.searches[0].trials, strict=True)
    for one, other in pairs:
        assert (one.rate, one.attained, one.margins) == (other.rate, other.attained, other.margins)
        assert f"all.{one.worst_limit}" == other.worst_limit


@pytest.mark.parametrize("as_is", [True, False])
def test_a_small_class_is_not_lost_among_others(as_is):
    """Batches are a quarter of the requests: nine in ten of all may be good without them."""
    slo = {"ttft": "9 s", "attainment": 0.7, "classes": {"batch": {"ttft": "1 ms"}}}
    options = GoodputOptions(as_is=as_is, most_requests=1000, tolerance=0.5)
    found = find_goodput(scenario(slo), options, jobs=1)
    assert found.status == "all missed"
    assert found.first_limit == "batch.ttft"
    assert found.searches[0].trials[0].attainment < 0.5
    slo["classes"] = {}
    assert find_goodput(scenario(slo), options, jobs=1).status != "all missed"


def test_each_class_may_have_share_of_its_own():
    classes = {"chat": ClassLimits(ttft=1.0, attainment=0.99), "batch": ClassLimits(e2el=9.0)}
    target = Target(slo=Slo(classes=classes), attainment=0.8)
    assert {name: share.asked for name, share in target.shares.items()} == {
        "": 0.8,
        "chat": 0.99,
        "batch": 0.8,
    }
    times = RequestTimes(
        np.array([0.5, 0.5, 2.0, nan]),
        np.zeros(4),
        np.array([1.0, 1.0, 5.0, 10.0]),
        np.array([1, 1, 1, 2]),
    )
    missed = [
        (each.num_missed, each.num_requests, each.share.asked) for each in target.misses(times)
    ]
    assert missed == [(1, 3, 0.99), (1, 1, 0.8)]
    assert target.worst_limit(times) == "chat.ttft"


def test_who_has_no_limit_has_to_finish():
    share = Share({}, 0.9)
    times = RequestTimes(np.array([1.0, np.inf]), np.zeros(2), np.array([2.0, np.inf]))
    assert share.ratios(times).tolist() == [0.0, np.inf]


def seen(good, mask, share):
    num = len(good)
    arrival = np.arange(num) * 10.0
    times = np.full(num, 1.0)
    empty = Stays(arrival, arrival)
    ratios = np.array([np.where(good, 0.1, 9.0)])
    stays = Stays(arrival, arrival + 1.0)
    return Seen(np.arange(num), ratios, stays, times, np.zeros(num), empty, [OfClass(mask, share)])


def test_a_look_is_at_the_requests_of_class():
    num = 4000
    mask = np.arange(num) % 4 == 0
    assert look(seen(mask, mask, 0.9), 0.9, 0.001).attained, "who is of another class is missed"
    assert look(seen(~mask, mask, 0.9), 0.9, 0.001).attained is False
    few = np.arange(num) % 100 == 0
    found = look(seen(few, few, 0.9), 0.9, 0.001)
    assert found.attained is None
    assert "of a class" in found.reason
    assert found.needs is not None
    assert found.needs > num


# ---------------------------------------------------------------------- compare, search, plan


def test_compare_marks_who_keeps_limits_of_all_classes():
    cases = {
        name: scenario({"classes": LIMITS}, **{"clients.0.count": count})
        for name, count in {"one": 1, "four": 4}.items()
    }
    found = compare(cases, jobs=1)
    assert [case.ranked.keeps for case in found.cases] == [False, True]


def test_a_search_finds_who_serves_all_classes():
    space = Space(
        scenario=scenario({"classes": LIMITS}),
        vary={"clients.0.count": [1, 2, 3]},
        constraints=constraints_of({"attainment": 0.9}),
        objectives=objectives_of("num_gpus"),
    )
    options = SearchOptions(as_is=True)
    row = search_space(space, options, jobs=1).front[0]
    counts = row["figures"]["num_gpus"]
    good = {
        count: min(
            each["good_request_fraction"]
            for each in simulate(scenario({"classes": LIMITS}, **{"clients.0.count": count}))
            .summary["classes"]
            .values()
        )
        for count in (1, 2, 3)
    }
    assert counts == min(count for count, share in good.items() if share >= 0.9)


def test_a_plan_names_the_class_of_each_limit():
    slo = {"classes": {"chat": LIMITS["chat"], "batch": {"e2el": "4 s", "attainment": 0.8}}}
    options = PlanOptions(
        gpus=("h100-sxm",),
        max_gpus=4,
        designs=("together",),
        tensor_parallel_sizes=(1,),
        as_is=True,
    )
    found = plan(scenario(slo), options, jobs=1)
    told = {line.name: line.text for line in found.lines}
    assert "p90 TTFT of chat" in told["limits"]
    assert "p80 E2E of batch" in told["limits"]
    assert "E2E of batch 4 s" in found.title


# ---------------------------------------------------------------------- presets


@pytest.mark.parametrize("name", slo_preset_names())
def test_presets_are_asked_for_as_loadgen_does(name):
    """99 in 100 keep TTFT, 99 in 100 TPOT, each for itself (mlperf.conf)."""
    found = scenario(name)
    slo = found.slo.make()
    assert slo.groups[""].percentiles == (99.0,)
    target = GoodputOptions().target(found)
    assert (target.attainment, target.each) == (0.99, True)
    assert set(target.shares) == {"ttft", "tpot"}
    assert Scenario.from_yaml(found.resolved()) == found
    is_interactive = name.endswith("-interactive")
    if is_interactive:
        calm = scenario(name.removesuffix("-interactive")).slo.make()
        assert slo.ttft < calm.ttft
        assert slo.tpot < calm.tpot


@pytest.mark.parametrize(
    ("said", "changes"),
    [
        ("mlperf-llama3.1-8b", {"slo.ttft": "300 ms", "slo.e2el": "9 s"}),
        ({}, {"slo": "mlperf-llama3.1-8b", "slo.ttft": "300 ms", "slo.e2el": "9 s"}),
    ],
)
def test_limit_that_is_set_beside_preset_keeps_others(said, changes):
    slo = Scenario.from_dict(deepcopy(ASKED) | {"slo": said}, changes).slo.make()
    assert (slo.ttft, slo.tpot, slo.e2el) == (0.3, 0.1, 9.0)
    assert (slo.groups[""].percentiles, slo.asked, slo.each) == ((99.0,), 0.99, True)


def test_share_that_is_said_takes_place_of_presets():
    found = GoodputOptions(attainment=0.95).target(scenario("mlperf-llama2-70b"))
    assert (found.attainment, found.slo.ttft, found.slo.tpot) == (0.95, 2.0, 0.2)


def test_compare_goes_by_the_percentile_where_each_limit_counts_alone():
    slo = {"ttft": "1 s", "tpot": "1 s", "attainment": 0.9, "each": True, "percentiles": [90]}
    target = GoodputOptions().target(scenario(slo))
    figures = {
        "p90_ttft_ms": {"value": 900.0, "limit": 1e3},
        "p90_tpot_ms": {"value": 1.0, "limit": 1e3},
    }
    assert target.attained_in([{"slo": figures, "good_request_fraction": 0.5}])
    figures["p90_tpot_ms"]["value"] = 1001.0
    assert not target.attained_in([{"slo": figures, "good_request_fraction": 0.99}])


# ---------------------------------------------------------------------- names, bad input


def test_names_of_figures():
    assert limit_of("p99.9_ttft_ms") == ("ttft", "p99.9")
    assert limit_of("chat-1.p99.9_e2el_ms") == ("chat-1.e2el", "p99.9")
    assert metric_of("chat.p90_tpot_ms") == "tpot"
    assert limit_title("chat.ttft") == "TTFT of chat"
    assert limit_title("all") == limit_title(None) == "the limits"
    with pytest.raises(ValueError, match="must be named as"):
        limit_of("mean_ttft_ms")


test_limits_that_make_no_sense = refused(
    lambda slo, changes=None: scenario(slo, **changes or {}),
    ("mlperf-lama2-70b", "did you mean 'mlperf-llama2-70b'"),
    ({"classes": {"chatt": {"ttft": "1 s"}}}, "slo.classes.chatt: no request is of this class"),
    ({"classes": {"chat": {}}}, "slo.classes.chat must set a limit"),
    ({"classes": {"chat": {"ttft": "0 s"}}}, "chat.ttft: must be finite and > 0 s"),
    (
        {"classes": {"chat": {"ttft": "1 s", "attainment": 1.5}}},
        r"attainment: must be in \(0, 1",
    ),
    ({"classes": {"a.b": {"ttft": "1 s"}}}, "must be named by up to 40 letters"),
    (
        {"classes": {"x": {"ttft": "1 s", "priority": 3}}},
        "no request has priority 3; they have 0",
    ),
    ({"classes": {"x": {"ttft": "1 s", "model": "y"}}}, "no request names 'y'"),
    ({"classes": ["chat"]}, "slo.classes"),
    ({"attainment": 0}, r"slo.attainment: must be in \(0, 1\], got 0"),
    (7, "slo"),
    *(
        ({"ttft": "1 s"}, {f"workload.{key}": value}, words)
        for key, value, words in (
            ("lengths.classes", {}, "classes: must have at least one entry"),
            ("lengths.classes.chat.share", 0, "share: must be finite and > 0"),
            ("priorities", {0: 1.0, 5: 1.0}, "must be left out with lengths of classes"),
        )
    ),
)


def test_bestserve_knows_no_classes(tmp_path):
    path = tmp_path / "chat.yaml"
    path.write_text(json.dumps(ASKED | {"slo": {"classes": LIMITS}}))
    result = CliRunner().invoke(app, ["bestserve", str(path), "--max-gpus", "1"])
    assert result.exit_code == 2
    assert "slo.classes must be left out" in result.stderr


def test_replications_and_strict_runs_name_the_class(tmp_path):
    path = tmp_path / "chat.yaml"
    slo = {"classes": {"batch": {"ttft": "1 ms"}}}
    path.write_text(json.dumps(ASKED | {"slo": slo, "replications": 2}))
    result = CliRunner().invoke(app, ["run", str(path), "--strict", "-q", "--jobs", "1"])
    assert result.exit_code == 3, result.output
    assert "p90 TTFT of batch is" in result.output
