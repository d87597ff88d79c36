"""Replications: seeds, means and intervals, and the same result however many processes run."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass, field
from math import isnan, nan

import numpy as np
import pandas as pd
import pytest
from scipy import stats

from mist_sim import ROUTERS, Scenario, ScenarioError, replicate, simulate
from mist_sim.metrics.replications import estimate
from mist_sim.studies.subjects import seeds_from
from tests.reference.scenarios import of_profile

BASE = {
    "model": "llama-3.1-8b",
    "seed": 4,
    "replications": 5,
    "workload": of_profile(40, "20 /s"),
    "clients": [{"name": "llm", "gpu": "h100-sxm", "count": 2}],
}
TRACE = """\
TIMESTAMP,ContextTokens,GeneratedTokens
2023-11-16 18:15:46.6805900,374,44
2023-11-16 18:15:50.9951690,396,109
"""


def test_an_estimate_is_students_interval():
    values = [1.20, 1.50, 1.68, 1.89, 0.95, 1.49, 1.58, 1.55, 0.50, 1.09]
    found = estimate(values)
    low, high = stats.t.interval(0.95, 9, np.mean(values), stats.sem(values))
    assert found.mean == pytest.approx(np.mean(values))
    assert (found.low, found.high) == pytest.approx((low, high))


def test_runs_without_a_sample_are_left_out():
    assert estimate([nan, 2.0, 4.0]) == estimate([2.0, 4.0])
    alone = estimate([nan, 2.0])
    assert alone.mean == 2.0
    assert isnan(alone.half_width)
    assert isnan(estimate([nan, nan]).mean)


def test_seeds_begin_with_the_scenarios_and_never_meet():
    assert seeds_from(4, 1) == (4,)
    assert seeds_from(4, 100)[:3] == seeds_from(4, 3)
    assert seeds_from(4, 3)[0] == 4
    drawn = [seed for start in range(50) for seed in seeds_from(start, 100)]
    assert len(set(drawn)) == len(drawn)
    assert all(0 <= seed < 2**63 for seed in drawn)


def test_every_replication_is_the_run_with_its_seed():
    found = replicate(Scenario.from_dict(BASE), jobs=1)
    assert len(found.seeds) == len(found.summaries) == len(found.runs) == 5
    for seed, summary in zip(found.seeds, found.summaries, strict=True):
        one = Scenario.from_dict(BASE, {"seed": seed, "replications": 1})
        assert simulate(one).summary == summary
    assert found.estimate("mean_ttft_ms") == estimate([s["mean_ttft_ms"] for s in found.summaries])
    assert found.estimate("mean_ttft_ms").half_width > 0
    assert not found.are_equal


def test_the_number_of_processes_changes_nothing(tmp_path):
    reports = []
    for jobs in (1, 2):
        done = []
        found = replicate(Scenario.from_dict(BASE), jobs=jobs, progress=done.append)
        assert done == [1, 2, 3, 4, 5]
        reports.append(found.save(tmp_path / f"{jobs}"))
    for name in ("summary.json", "replications.parquet", "scenario.resolved.yaml"):
        one, two = (report / name for report in reports)
        assert one.read_bytes() == two.read_bytes(), name


def test_plugins_that_only_this_process_knows_run_in_others(monkeypatch):
    @dataclass
    class LastCandidate:
        """Send everything to the last client."""

        names: list[str] = field(default_factory=list, init=False)

        def choose(self, request, stage, candidates):
            return candidates[-1].client_id

    monkeypatch.setitem(ROUTERS._classes, "last_candidate", LastCandidate)
    scenario = Scenario.from_dict(BASE, {"router": "last_candidate", "replications": 2})
    found = replicate(scenario, jobs=2)
    one = Scenario.from_dict(BASE, {"router": "last_candidate", "replications": 1})
    assert found.summaries[0] == simulate(one).summary


def test_process_that_is_ended_from_outside_is_told(monkeypatch):
    here = os.getpid()

    @dataclass
    class Fatal:
        """End the process, if it is not the one of the test."""

        def choose(self, request, stage, candidates):
            if os.getpid() != here:
                os._exit(9)
            return candidates[0].client_id

    monkeypatch.setitem(ROUTERS._classes, "fatal", Fatal)
    with pytest.raises(ScenarioError, match="was ended from outside, .* lower --jobs"):
        replicate(Scenario.from_dict(BASE, {"router": "fatal", "replications": 2}), jobs=2)


def test_what_cannot_be_replicated_is_refused():
    with pytest.raises(ScenarioError, match="replications must be 1 where one run is asked for"):
        simulate(Scenario.from_dict(BASE))
    with pytest.raises(ScenarioError, match="replications must be >= 2, got 1"):
        replicate(Scenario.from_dict(BASE, {"replications": 1}))
    with pytest.raises(ScenarioError, match="jobs must be >= 1, got 0"):
        replicate(Scenario.from_dict(BASE), jobs=0)
    with pytest.raises(ScenarioError, match="replications: must be >= 1, got 0"):
        Scenario.from_dict(BASE, {"replications": 0})


def test_the_command_line_prints_intervals_and_writes_them(mist, tmp_path):
    settings = ["--set=workload.lengths.num_requests=50", "--seed=3", "--jobs=1"]
    code, out, err = mist("run", "demo", "--replications", "4", *settings, "--out", "a")
    assert code == 0
    assert "4 replications: mean ± half width of the 95 % confidence interval" in out
    assert "goodput" in out
    assert max(map(len, out.splitlines())) <= 80
    assert (
        "Written to a: SHA256SUMS, replications.parquet, scenario.resolved.yaml, summary.json"
        in err
    )
    summary = json.loads((tmp_path / "a/summary.json").read_text())
    runs = pd.read_parquet(tmp_path / "a/replications.parquet")
    assert summary["replications"] == len(runs) == 4
    assert list(runs["seed"]) == list(seeds_from(3, 4))
    assert summary["mean_ttft_ms"] == pytest.approx(runs["mean_ttft_ms"].mean())
    low, high = summary["confidence_intervals"]["mean_ttft_ms"]
    assert low < summary["mean_ttft_ms"] < high
    assert mist("run", "a/scenario.resolved.yaml", "--out", "b", "--jobs=1")[0] == 0
    for name in ("summary.json", "replications.parquet", "scenario.resolved.yaml"):
        assert (tmp_path / "a" / name).read_bytes() == (tmp_path / "b" / name).read_bytes()


def test_equal_replications_are_called_so(mist, tmp_path):
    (tmp_path / "t.csv").write_text(TRACE)
    fixed = "workload={trace: {type: azure, path: t.csv}}"
    code, out, _ = mist("run", "demo", "--set", fixed, "--replications", "2", "--jobs", "1")
    assert code == 0
    assert "All replications are equal: nothing that is drawn at random shows" in out


def test_rejections_are_told(mist):
    small = "--set=clients.0.kv_cache.num_gpu_blocks_override=10"
    few = "--set=workload.lengths.num_requests=20"
    code, out, _ = mist("run", "demo", small, few, "--replications", "2", "--jobs", "1")
    assert code == 0
    assert "In 2 of 2 runs; in the first of them: Failed: 20 requests, such as llm-0" in out


@pytest.mark.parametrize("jobs", ["1", "2"])
def test_an_error_in_a_replication_leaves_nothing(mist, tmp_path, jobs):
    (tmp_path / "t.csv").write_text(f"{TRACE}yesterday,1,1\n")
    bad = "workload={trace: {type: azure, path: t.csv}}"
    options = ["--replications", "3", "--jobs", jobs, "--out", "a/b"]
    code, out, err = mist("run", "demo", "--set", bad, *options)
    assert code == 2
    assert out == ""
    assert err.startswith("error: t.csv:4: TIMESTAMP must be a UTC time")
    assert not (tmp_path / "a").exists()


def test_jobs_without_replications_have_no_effect(mist):
    code, _, err = mist("run", "demo", "--jobs", "2")
    assert code == 2
    assert "--jobs has no effect on one run; give --replications or --vary" in err
