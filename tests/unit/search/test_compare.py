"""Several scenarios in one table, and who wins over the plane of limits."""

from __future__ import annotations

import csv
import io
import json
import re
from dataclasses import replace
from functools import partial
from math import inf, isnan, nan

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console, Group

from mist_sim import Scenario, ScenarioError, Slo, simulate
from mist_sim.core.result_warnings import UNSTABLE, ResultWarning
from mist_sim.metrics.expected_errors import expected_ranges
from mist_sim.metrics.replications import estimate
from mist_sim.report.comparison import comparison_table
from mist_sim.report.elements import with_warnings
from mist_sim.report.pictures.findings import plane_picture
from mist_sim.report.pictures.style import can_draw
from mist_sim.report.run import error_range, expected_of_each
from mist_sim.search.compared_case import FIGURES, Case
from mist_sim.search.comparison import Comparison, compare, workloads_differ
from mist_sim.search.goodput import GoodputOptions, find_goodput
from mist_sim.search.slo_plane import PlaneOptions, SloPlane, attainment, read_goodput
from mist_sim.studies.built import Built
from mist_sim.studies.subjects import seeds_from
from mist_sim.studies.verdicts.request_times import RequestTimes, Target
from tests.effort import examples
from tests.reference.scenarios import of_profile
from tests.warned import about

TOGETHER = {
    "model": "llama-3.1-8b",
    "workload": of_profile(80, "20 /s"),
    "clients": [{"name": "llm", "gpu": "h100-sxm", "count": 2}],
    "slo": {"ttft": "150 ms", "tpot": "20 ms"},
    "cost": {},
}
APART = TOGETHER | {
    "clients": [
        {"name": "prefill", "role": "prefill", "gpu": "h100-sxm"},
        {"name": "decode", "role": "decode", "gpu": "h100-sxm"},
    ],
    "network": {"bandwidth": "400 Gb/s", "latency": "1 ms"},
}
RATES = (5.0, 80.0)


def both(overrides=None):
    cases = {"apart": APART, "together": TOGETHER}
    return {name: Scenario.from_dict(data, overrides) for name, data in cases.items()}


@pytest.fixture
def mist(mist, tmp_path):
    """Run `mist compare` in a folder with scenarios."""
    for name, scenario in both().items():
        (tmp_path / f"{name}.yaml").write_text(scenario.resolved())
    (tmp_path / "more").mkdir()
    (tmp_path / "more/apart.yaml").write_text(both()["apart"].resolved())
    return partial(mist, "compare")


def table(path):
    return list(csv.DictReader(path.read_text().splitlines()))


# ------------------------------------------------------------------------------ the table


def test_figures_are_those_of_runs_and_of_search():
    options = GoodputOptions(rates=RATES, as_is=True)
    found = compare(both(), goodput=options, jobs=1)
    for name, scenario in both().items():
        row, summary = found.table.loc[name], simulate(scenario).summary
        for key in set(FIGURES) & set(summary):
            assert row[key] == summary[key], key
        assert row["goodput"] == find_goodput(scenario, options, jobs=1).rate
        assert row["num_gpus"] == 2
        assert row["goodput_per_gpu"] == row["goodput"] / 2
        assert row["output_throughput_per_gpu"] == summary["output_throughput"] / 2
    assert found.table.loc["apart", "num_hand_overs"] == 80
    assert isnan(found.table.loc["together", "num_hand_overs"])


def test_the_percentiles_of_slo_are_shown_beside_others():
    data = TOGETHER | {"slo": {"ttft": "150 ms", "e2el": "3 s", "percentiles": [95, 99.9]}}
    cases = {name: Scenario.from_dict(data | {"seed": seed}) for name, seed in (("a", 1), ("b", 2))}
    found = compare(cases, same_workload=False)
    limits = simulate(cases["a"]).summary["slo"]
    assert set(limits) == {f"p{p}_{m}_ms" for p in ("95", "99.9") for m in ("ttft", "e2el")}
    for name, limit in limits.items():
        assert found.table.loc["a", name] == limit["value"]
    rows = [line.split("  ")[1] for line in printed(found) if line.startswith("  p")]
    of_ttft = [f"p{each} TTFT, ms" for each in (50, 90, 95, 99, 99.9)]
    of_tpot = [f"p{each} TPOT, ms" for each in (50, 90, 99)]
    assert rows == [*of_ttft, *of_tpot, "p95 E2E, ms", "p99.9 E2E, ms"]
    assert len(set(found.table["p95_ttft_ms"])) == 2
    assert "p95_ttft_ms" in found.best


def test_a_design_that_fails_for_want_of_memory_says_so():
    tight = {"kv_cache": {"num_gpu_blocks_override": 60}, "max_model_len": 900}
    small = Scenario.from_dict(TOGETHER | {"clients": [TOGETHER["clients"][0] | tight]})
    found = compare({"ample": both()["together"], "small": small}).summary
    (line,) = [text for text in about(found, "small") if text.startswith("No room in")]
    assert line.endswith("% of the time, mostly for KV memory at llm-0.")
    assert not [text for text in about(found, "ample") if text.startswith("No room in")]


def test_replications_are_compared_by_their_means():
    found = compare(both({"replications": 2}), jobs=1)
    seeds = seeds_from(0, 2)
    runs = [simulate(both({"seed": seed})["apart"]).summary["p90_ttft_ms"] for seed in seeds]
    assert found.table.loc["apart", "p90_ttft_ms"] == estimate(runs).mean


@pytest.mark.parametrize(("given", "asked", "keeps"), [(None, 0.99, False), (0.5, 0.5, True)])
def test_plane_and_verdict_ask_for_share_of_slo(given, asked, keeps):
    """Nine in ten keep the limits, and the slo asks for 99 %."""
    changes = {"slo.attainment": 0.99, "slo.ttft": "120 ms"}
    plane = PlaneOptions(num_points=2, num_rates=2, rates=RATES, attainment=given)
    found = compare(both(changes), plane=plane, jobs=1)
    assert found.plane.summary["attainment_asked"] == asked
    together = found.cases[1]
    assert 0.9 < together.figures["good_request_fraction"] < 0.99
    assert together.ranked.keeps is keeps


def test_any_number_of_processes_writes_the_same(tmp_path):
    plane = PlaneOptions(num_points=3, num_rates=3)
    for jobs in (1, 2):
        done: list[int] = []
        options = GoodputOptions(rates=RATES, tolerance=0.2, as_is=True)
        found = compare(both(), goodput=options, plane=plane, jobs=jobs, progress=done.append)
        found.save(tmp_path / f"{jobs}")
        searched = sum(case.goodput.num_runs for case in found.cases)
        searched += sum(case.at_goodput is not None for case in found.cases)
        assert done == [*range(1, 2 + searched + 6 + 1)]
    sums = [(tmp_path / name / "SHA256SUMS").read_text() for name in "12"]
    assert sums[0] == sums[1]


def case(name, gpus=2, **figures):
    summary = {"completed": 1, "unstable": False, "failed": 0, "steady_output_throughput": 10.0}
    summary |= figures
    kinds = [UNSTABLE] if summary["unstable"] else []
    summary["warnings"] = [ResultWarning(kind, "queues grow").data for kind in kinds]
    return Case(name, name, gpus, (summary,), None)


def test_the_best_of_each_figure_is_marked(capsys):
    cases = (
        case("a", p50_ttft_ms=10.0, good_request_fraction=0.9, p99_tpot_ms=nan),
        case("b", p50_ttft_ms=20.0, good_request_fraction=0.95, p99_tpot_ms=7.0),
        case("c", p50_ttft_ms=10.0, good_request_fraction=0.5, unstable=True, gpus=None),
    )
    found = Comparison(cases)
    best = found.best
    assert best["p50_ttft_ms"] == ["a"], "c misses its limits"
    assert best["good_request_fraction"] == ["b"]
    assert best["p99_tpot_ms"] == [], "one value is not the best of several"
    assert best["steady_output_throughput"] == [], "equal values are not marked"
    assert "output_throughput" not in best, "what a straggler lowers has no star"
    assert "num_gpus" not in best
    found.show()
    out = capsys.readouterr().out
    assert "95.0 % *" in out
    assert "c: queues grow" in out
    assert "<pre" in found._repr_html_()
    assert repr(found) == "<Comparison: a, b, c>"


def test_without_gpus_there_is_nothing_by_gpu():
    assert isnan(case("a", gpus=0).figures["output_throughput_per_gpu"])
    assert isnan(case("a", gpus=None).figures["num_gpus"])


def test_a_bundle_with_coefficients_of_its_own_is_not_without_gpus():
    six = dict.fromkeys(("alpha_a", "beta_a", "alpha_f", "beta_f", "alpha_c", "beta_c"), 1)
    bundle = {"type": "afd", "attention_workers": 2, "slots": 4, "cycle_s": "1 us"}
    clients = [APART["clients"][0], {"name": "bundle", **bundle, **six}]
    data = {name: value for name, value in APART.items() if name != "cost"}
    assert Built(Scenario.from_dict(data | {"clients": clients})).num_gpus is None


def test_a_tie_at_the_highest_rate_is_said_to_be_none(capsys):
    """Both attain all rates under the loose limits, so that nobody knows who attains more."""
    options = PlaneOptions(ttft=(1e-6, 100.0), tpot=(1e-6, 10.0), num_points=2, rates=(5.0, 10.0))
    found = compare(both(), plane=options, jobs=1)
    assert found.plane.summary["num_open"] == 1
    assert found.plane.winners[1, 1] == "tie"
    found.show()
    assert "the highest rate, 10 /s" in " ".join(capsys.readouterr().out.split())


# ------------------------------------------------------------------------------ same workload


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"seed": 1}, "arrival_time of request 0 is "),
        ({"workload.arrivals.rate": "21 /s"}, "arrival_time of request 0 is "),
        ({"workload.lengths.num_requests": 81}, "the number of requests is 80 and more in apart"),
        ({"workload.lengths.name": "azure-code-2023"}, "num_prompt_tokens of request 0 is "),
        ({"workload.timeout": "60 s"}, "limits of request 0 is None and "),
        ({"workload.arrivals": {"type": "closed_loop", "concurrency": 4}}, "closed_loop is None"),
        ({"slo.ttft": "1 s"}, "slo.ttft is 0.15 and 1.0 in apart and together"),
        ({"warmup": "1 s"}, "warmup is 0.0 and 1.0 in apart and together."),
        ({"replications": 3}, "replications is 1 and 3"),
    ],
)
def test_other_workloads_are_refused_with_what_differs(changes, words):
    scenarios = both() | {"together": Scenario.from_dict(TOGETHER, changes)}
    with pytest.raises(ScenarioError, match="must have the same workload, slo and warmup") as told:
        compare(scenarios)
    assert words in str(told.value)
    assert "in apart and together" in str(told.value)


def test_other_workloads_are_compared_on_demand():
    scenarios = both() | {"together": Scenario.from_dict(TOGETHER, {"seed": 1})}
    found = compare(scenarios, same_workload=False, jobs=1)
    assert len(found.cases) == 2
    assert not any(found.best.values())
    assert found.verdict.startswith("None is best, since their workloads or limits differ: ")


def test_clients_and_routers_may_differ():
    cases = both() | {"r": Scenario.from_dict(TOGETHER, {"router": "random"})}
    assert not workloads_differ({name: Built(scenario) for name, scenario in cases.items()})


# ------------------------------------------------------------------------------ the plane

times = st.floats(0.0, 3.0) | st.just(inf)
limits = st.lists(st.floats(0.1, 2.9), min_size=1, max_size=5, unique=True).map(sorted)


@examples(150)
@given(rows=st.lists(st.tuples(times, times), min_size=1, max_size=30), ttft=limits, tpot=limits)
def test_attainment_over_plane_is_that_of_each_pair(rows, ttft, tpot):
    first, second = (np.array(column) for column in zip(*rows, strict=True))
    requests = RequestTimes(first, second, first)
    found = attainment(requests, np.array(ttft), np.array(tpot))
    for i, one in enumerate(ttft):
        for j, other in enumerate(tpot):
            missed = Target(slo=Slo(ttft=one, tpot=other)).num_missed(requests)
            assert found[i, j] == pytest.approx(1 - missed / len(rows))


@examples(150)
@given(
    shares=st.lists(st.floats(0.0, 1.0), min_size=2, max_size=6), asked=st.sampled_from([0.5, 0.9])
)
def test_goodput_is_read_where_attainment_first_ends(shares, asked):
    rates = np.arange(1.0, len(shares) + 1)
    found = read_goodput(rates, np.array(shares)[:, None, None], asked)
    low, high, value = (float(part[0, 0]) for part in vars(found).values())
    num = next((k for k, share in enumerate(shares) if share < asked), len(shares))
    assert low == num
    assert high == (num + 1 if num < len(shares) else inf)
    if num in (0, len(shares)):
        assert value == low
    else:
        assert low <= value < high or shares[num] == asked
        on_line = np.interp(value, [low, high], [shares[num - 1], shares[num]])
        assert on_line == pytest.approx(asked, abs=1e-9)


def test_runs_of_the_plane_answer_what_each_pair_of_limits_would_find():
    """One run a rate and scenario gives the verdicts of runs with each pair as slo."""
    options = PlaneOptions(
        ttft=(0.06, 0.3), tpot=(0.008, 0.02), num_points=2, rates=RATES, num_rates=4
    )
    found = compare(both(), plane=options, jobs=1).plane
    ttft, tpot = options.limits
    for name, reading in found.goodput.items():
        for i, one in enumerate(ttft):
            for j, other in enumerate(tpot):
                limits = {"slo.ttft": f"{one!s} s", "slo.tpot": f"{other!s} s"}
                shares = []
                for rate in found.rates.tolist():
                    changes = limits | {"workload.arrivals.rate": f"{rate} /s"}
                    summary = simulate(both(changes)[name]).summary
                    shares.append(summary["good_request_fraction"])
                attained = [share >= 0.9 for share in shares]
                num = attained.index(False) if False in attained else len(attained)
                assert reading.low[i, j] == ([0.0, *found.rates])[num]
    assert {"apart", "together"} & set(found.winners.ravel())


def plane_of(gpus, **shares):
    """A plane of one pair of limits, 10 requests a run: of each, so many good ones a rate."""
    runs = {
        name: [
            RequestTimes(*(np.where(np.arange(10) < good, 0.5, 2.0) for _ in range(3)))
            for good in goods
        ]
        for name, goods in shares.items()
    }
    limit = np.array([1.0])
    return SloPlane(runs, np.array([1.0, 2.0, 4.0]), limit, limit, 0.9, gpus)


def test_who_wins():
    same = {"a": 2, "b": 2}
    clear = plane_of(same, a=(10, 10, 9), b=(10, 0, 0))
    assert (clear.winners.item(), clear.is_clear.item()) == ("a", True)
    close = plane_of(same, a=(10, 8, 0), b=(10, 0, 0))
    assert (close.winners.item(), close.is_clear.item()) == ("a", False)
    assert plane_of(same, a=(10, 8, 0), b=(10, 8, 3)).winners.item() == "tie"
    nobody = plane_of(same, a=(0, 0, 0), b=(5, 0, 0))
    assert (nobody.winners.item(), nobody.is_clear.item()) == ("nobody", False)
    assert plane_of({"a": 8, "b": 2}, a=(10, 10, 0), b=(10, 0, 0)).winners.item() == "b"
    unknown = plane_of({"a": None, "b": 2}, a=(10, 10, 0), b=(10, 0, 0))
    assert (unknown.winners.item(), unknown.by_gpu) == ("a", False)


def test_other_limits_need_no_other_runs():
    plane = plane_of({"a": 2, "b": 2}, a=(10, 10, 9), b=(10, 0, 0))
    wide = plane.with_limits(np.array([0.1, 3.0]), np.array([0.1, 3.0]))
    assert wide.winners.tolist() == [["nobody", "nobody"], ["nobody", "tie"]]


def test_files_of_the_plane(tmp_path):
    options = PlaneOptions(num_points=3, num_rates=2, rates=RATES)
    compare(both(), plane=options, jobs=1).save(tmp_path / "out")
    data = json.loads((tmp_path / "out/slo_plane.json").read_text())
    rows = table(tmp_path / "out/slo_plane.csv")
    assert len(rows) == 2 * 3 * 3
    assert [row["winner"] for row in rows[::2]] == [who for row in data["winners"] for who in row]
    saved = pd.read_parquet(tmp_path / "out/request_times.parquet")
    assert len(saved) == 2 * 2 * 80
    assert (tmp_path / "out/slo_plane.png").exists() == can_draw()


def test_the_picture_of_a_plane_repeats():
    pytest.importorskip("matplotlib", reason="needs the extra plot")
    shares = {"a": (10, 10, 9), "b": (10, 0, 0)}
    wide = plane_of({"a": 2, "b": 2}, **shares).with_limits(*[np.array([0.1, 1.0, 3.0])] * 2)
    one, two = (plane_picture(wide.summary).as_bytes("png") for _ in range(2))
    assert one.startswith(b"\x89PNG")
    assert one == two


def test_map_in_terminal_has_letter_for_each_pair():
    wide = plane_of({"a": 2, "b": 2}, a=(10, 10, 9), b=(10, 0, 0))
    wide = wide.with_limits(*[np.array([0.1, 1.0, 3.0])] * 2)
    found = replace(Comparison((case("a"), case("b"))), plane=wide)
    from rich.console import Console

    console = Console(width=80)
    with console.capture() as capture:
        console.print(comparison_table(found.summary))
    lines = [line.split() for line in capture.get().splitlines()]
    assert ["3000", ".", "A", "="] in lines
    assert ["1000", ".", "A", "A"] in lines
    assert ["100", ".", ".", "."] in lines


# ------------------------------------------------------------------------------ the command


def test_the_command_prints_and_writes_everything(mist, tmp_path, monkeypatch):
    monkeypatch.setattr("mist_sim.report.pictures.style.find_spec", lambda name: None)
    small = ("--rates", "5:80", "--tolerance", "0.2", "--points", "3", "--num-rates", "3")
    small += ("--ttft", "50 ms:1 s", "--tpot", "5 ms:50 ms", "--jobs", "1")
    code, out, err = mist(
        "apart.yaml", "together.yaml", "--goodput", "--as-is", "--slo-plane", "--out", "c", *small
    )
    assert code == 0
    assert max(map(len, out.splitlines())) <= 80
    for words in ("goodput, /s", "p99 TPOT, ms", "transfers", "$ a million", "A apart, B together"):
        assert words in out
    assert "slo_plane.png was not drawn" in err
    assert "pip install 'mist-sim[report]'" in err
    data = json.loads((tmp_path / "c/comparison.json").read_text())
    rows = table(tmp_path / "c/comparison.csv")
    assert [row["scenario"] for row in rows] == ["apart", "together"] == list(data["scenarios"])
    assert float(rows[0]["goodput"]) == data["scenarios"]["apart"]["goodput"]


def test_json_and_names(mist):
    code, out, err = mist("apart.yaml", "more/apart.yaml", "--json", "-q", "--jobs", "1")
    assert (code, err) == (0, "")
    assert list(json.loads(out)["scenarios"]) == ["apart.yaml", "more/apart.yaml"]


def test_one_hybrid_and_the_designs_beside_it(mist):
    few = ("--set", "workload.lengths.num_requests=20", "--jobs", "1")
    code, out, err = mist("taichi-hybrid", "--designs", "--json", "-q", *few)
    assert (code, err) == (0, "")
    assert list(json.loads(out)["scenarios"]) == [
        "4 x 1024",
        "4 x 512",
        *(f"{k} prefill + {4 - k} decode" for k in (1, 2, 3)),
        "2 x 1024 + 2 x 512",
    ]


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (("apart.yaml", "together.yaml", "--designs"), "SCENARIO must be one with --designs, got"),
        (
            ("taichi-hybrid", "--designs", "--set", "clients.1.role=p_heavy"),
            "clients must have one with role p_heavy",
        ),
        (("apart.yaml",), "scenarios must be two or more to compare, got 1"),
        (("apart.yaml", "apart.yaml"), "SCENARIO must be given once each, got apart.yaml 2 times"),
        (("apart.yaml", "none.yaml"), "no scenario file and no preset"),
        (("apart.yaml", "demo"), "scenarios must have the same workload"),
        (("apart.yaml", "together.yaml", "--rates", "1:2"), "--rates has no effect without"),
        (("apart.yaml", "together.yaml", "--attainment", "0.5"), "--attainment has no effect"),
        (("apart.yaml", "together.yaml", "--points", "5"), "--points has no effect without --slo"),
        (
            ("apart.yaml", "together.yaml", "--slo-plane", "--tolerance", "0.1"),
            "--tolerance has no effect without --goodput",
        ),
        (
            ("apart.yaml", "together.yaml", "--slo-plane", "--ttft", "1 s:100 ms"),
            "--ttft must be LOW:HIGH with 0 < LOW < HIGH, got '1 s:100 ms'",
        ),
        (("apart.yaml", "together.yaml", "--slo-plane", "--tpot", "5:50"), "--tpot must be LOW"),
        (("apart.yaml", "together.yaml", "--slo-plane", "--points", "1"), "num_points must be in"),
        (
            ("apart.yaml", "together.yaml", "--slo-plane", "--num-rates", "999"),
            "num_rates must be in [2, 200], got 999",
        ),
        (
            ("apart.yaml", "together.yaml", "--slo-plane", "--attainment", "2"),
            "attainment must be in (0, 1], got 2",
        ),
        (("apart.yaml", "together.yaml", "--goodput", "--set", "slo={}"), "slo must set a limit"),
        (("apart.yaml", "together.yaml", "--force"), "--force has no effect without --out"),
    ],
)
def test_bad_input_is_one_message(mist, tmp_path, args, message):
    code, out, err = mist(*args, *(() if "--force" in args else ("--out", "found")))
    assert (code, out) == (2, "")
    assert message in err
    assert err.count("\n") == 1
    assert not (tmp_path / "found").exists()


# ------------------------------------------------------------------------------ as in mist run


def read_from(monkeypatch, text: str) -> None:
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(text.encode()), encoding="utf-8"))


def test_expected_errors_are_those_of_the_runs(mist):
    code, out, _ = mist("apart.yaml", "together.yaml", "--json", "-q")
    assert code == 0
    found = json.loads(out)["expected_errors"]
    _, out, _ = mist("apart.yaml", "together.yaml", "-q")
    told = out[out.index("Expected error, nine in ten") :]
    assert "nearest of" in told
    for name, scenario in both().items():
        expected = simulate(scenario).summary["expected_errors"]
        assert found[name] == expected
        ends = expected_ranges({"expected_errors": expected})
        for latency in ("ttft", "tpot"):
            bar = re.escape(error_range(ends[latency].low, ends[latency].high))
            assert re.search(rf"{latency.upper()} .*{name}.* {bar}", told)


def test_scenarios_with_errors_of_their_own_have_a_line_each():
    bars = {"low": -0.1, "high": 0.1, "num_points": 5, "like": "this"}
    bars |= {"load": "low load", "arrivals": "open loops", "other": [], "here": ""}
    bars |= {"load": "low load", "arrivals": "open loops", "other": [], "here": ""}
    cases = {
        "a": {"llm": {"ttft": bars, "tpot": bars}},
        "b": {"llm": {"ttft": bars | {"high": 0.3}, "tpot": bars}},
        "c": {},
    }
    console = Console(width=80, record=True, file=io.StringIO())
    console.print(Group(*expected_of_each(cases)))
    lines = [line.split() for line in console.export_text().splitlines() if "nearest of" in line]
    assert [line[:2] for line in lines] == [["TTFT", "a"], ["TTFT", "b"], ["TPOT", "a,"]]


def test_one_scenario_may_come_from_standard_input(mist, monkeypatch):
    read_from(monkeypatch, both()["apart"].resolved())
    code, out, _ = mist("-", "together.yaml", "--json", "-q")
    assert code == 0
    found = json.loads(out)["scenarios"]
    assert list(found) == ["stdin", "together"]
    _, out, _ = mist("apart.yaml", "together.yaml", "--json", "-q")
    assert json.loads(out)["scenarios"]["apart"] == found["stdin"]


def test_standard_input_is_read_once(mist):
    code, out, err = mist("-", "-")
    assert (code, out) == (2, "")
    assert "SCENARIO must be given once each, got - 2 times" in err


def test_a_load_of_vllm_holds_for_all_and_a_server_is_refused(mist):
    bench = "vllm bench serve --random-input-len 100 --random-output-len 5 --num-prompts 7"
    given = ("apart.yaml", "together.yaml", "--from-vllm")
    code, out, _ = mist(*given, f"{bench} --request-rate 5", "--json", "-q")
    assert code == 0
    figures = json.loads(out)["scenarios"]
    assert figures["apart"]["num_hand_overs"] == 7
    code, out, err = mist(*given, "vllm serve meta-llama/Llama-3.1-8B-Instruct")
    assert (code, out) == (2, "")
    assert "--from-vllm must be a vllm bench serve, since a server would replace" in err


def test_energy_and_cost_in_all_are_compared_where_gpus_are_known():
    found = compare(both(), jobs=1)
    for name, scenario in both().items():
        summary = simulate(scenario).summary
        for figure in ("energy_j", "cost_usd"):
            assert found.table.loc[name, figure] == summary[figure] > 0
    assert found.best["cost_usd"]


# ------------------------------------------------------------------------------ many scenarios


def printed(found, width=80):
    console = Console(width=width, record=True, file=io.StringIO())
    console.print(with_warnings(found.summary, comparison_table(found.summary)))
    return [line.rstrip() for line in console.export_text().splitlines()]


def many(number, **figures):
    return tuple(
        case(f"scenario {k}", p50_ttft_ms=10.0 * (k + 1), **figures) for k in range(number)
    )


@pytest.mark.parametrize("number", [2, 4, 5, 12])
def test_more_than_four_scenarios_stand_below_one_another(number):
    lines = printed(Comparison(many(number)))
    starts = [line.split()[:2] for line in lines]
    rows = [["scenario", str(k)] for k in range(number)]
    if number <= 4:
        assert ["p50", "TTFT,"] in starts
        assert not [row for row in rows[1:] if row in starts]
    else:
        assert [start for start in starts if start in rows] == rows
        assert lines[0] == f"Comparison of {number} scenarios, 2 GPUs each"
        assert next(line for line in lines if "scenario 0" in line).split()[2:4] == ["10.0", "*"]


@pytest.mark.parametrize("width", [30, 50, 80, 200])
def test_columns_that_do_not_fit_stand_below(width):
    names = ("p50_ttft_ms", "p99_ttft_ms", "p50_tpot_ms", "p99_tpot_ms", "mean_hand_over_ms")
    found = Comparison(tuple(case(f"s{k}", **dict.fromkeys(names, 1.5 + k)) for k in range(6)))
    lines = printed(found, width)
    assert max(map(len, lines)) <= width
    parts = [line for line in lines if line.split()[:1] == ["s5"]]
    figures = [word for line in parts for word in line.split()[1:] if word != "*"]
    assert figures == ["6.50"] * 4 + ["10.0", "6.50"]
    assert (len(parts) == 1) == (width >= 80)


def test_gpus_are_a_column_where_they_differ():
    cases = (*many(4), case("scenario 4", gpus=4), case("scenario 5", gpus=None))
    lines = printed(Comparison(cases))
    assert lines[0] == "Comparison of 6 scenarios"
    assert "GPUs" in lines[1]
    one = printed(Comparison(tuple(replace(each, num_gpus=1) for each in many(5))))
    assert one[0] == "Comparison of 5 scenarios, 1 GPU each"


@pytest.mark.parametrize("number", [2, 6])
@pytest.mark.parametrize(
    ("value", "cell"), [(9_999.0, "9,999"), (10_000.0, "10.0 s"), (123_456.0, "123 s")]
)
def test_long_latencies_are_in_seconds(number, value, cell):
    lines = printed(Comparison(many(number, p99_ttft_ms=value, mean_hand_over_ms=1.0)))
    assert sum(cell in line for line in lines) >= 1
    assert not any(f"{value:,.0f}" in line for line in lines if cell.endswith("s"))


def test_what_is_told_of_several_is_told_once():
    cases = (*many(5, unstable=True), case("scenario 5"))
    texts = {"a": "too large", "b": "too large", "c": "too old"}
    found = Comparison(cases, left_out=texts, assumed={"network": "a link"})
    told = " ".join(" ".join(printed(found)).split())
    assert "Left out a, b: too large c: too old Warnings" in told
    assert told.endswith("Warnings scenario 0 and 4 others: queues grow network: a link")
    assert found.summary["left_out"] == texts
    assert not {"left_out", "assumed"} & Comparison(cases).summary.keys()


def test_errors_of_many_scenarios_are_told_by_number():
    bars = {"low": -0.1, "high": 0.1, "num_points": 5, "like": "this"}
    bars |= {"load": "low load", "arrivals": "open loops", "other": [], "here": ""}
    cases = {str(k): {"llm": {"ttft": bars, "tpot": bars if k else None}} for k in range(6)}
    console = Console(width=80, record=True, file=io.StringIO())
    console.print(Group(*expected_of_each(cases)))
    lines = [line.split("±")[0].strip() for line in console.export_text().splitlines()]
    assert "TTFT all" in lines
    assert "TPOT 1 and 4 others" in lines
