"""`mist validate FILE`: tables of benchmarks and results of load generators, with bars."""

import csv
import json
from dataclasses import replace
from math import inf

import pytest
from typer.testing import CliRunner

from mist_sim.cli.app import app
from mist_sim.core.result_warnings import of_data
from mist_sim.errors import ScenarioError
from mist_sim.report.run import error_range
from mist_sim.validation.benchmarks import read_benchmarks, scores, turned

SERVE = "vllm serve Qwen/Qwen3-8B"
BENCH = (
    "vllm bench serve --model Qwen/Qwen3-8B --dataset-name random --random-input-len 100 "
    "--random-output-len 20 --num-prompts 8 --max-concurrency 2 --ignore-eos"
)
ROW = {
    "serve": SERVE,
    "bench": BENCH,
    "gpu": "h100-sxm",
    "engine": "vllm-0.11",
    "mean_ttft_ms": 40.0,
    "mean_tpot_ms": 8.0,
}
MANIFEST = """
apiVersion: apps/v1
kind: Deployment
metadata: {{name: llm}}
spec:
  replicas: 4
  selector: {{matchLabels: {{app: llm}}}}
  template:
    metadata: {{labels: {{app: llm}}}}
    spec:
      containers:
      - name: vllm
        image: vllm/vllm-openai:v0.11.0
        args: [--model, {model}]
"""
RESULT = {
    "completed": 6,
    "request_rate": "inf",
    "max_concurrency": 2,
    "total_input_tokens": 600,
    "total_output_tokens": 120,
    "mean_ttft_ms": 40.0,
    "mean_tpot_ms": 8.0,
}


def counts(mean):
    return {"successful": {"mean": mean, "count": 6}}


GUIDELLM = {
    "config": {"strategy": {"type_": "concurrent", "streams": 2}},
    "metrics": {
        "time_to_first_token_ms": counts(40.0),
        "inter_token_latency_ms": counts(8.0),
        "prompt_token_count": counts(100.0),
        "output_token_count": counts(20.0),
    },
}


def table(path, *rows):
    with path.open("w", newline="") as out:
        writer = csv.DictWriter(out, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)
    return path


@pytest.mark.parametrize("form", ["table", "vllm", "guidellm"])
def test_every_form_gives_the_same_figures(tmp_path, form):
    path = tmp_path / "ours.json"
    if form == "table":
        runs = read_benchmarks(table(tmp_path / "ours.csv", ROW))
    else:
        found = RESULT if form == "vllm" else {"benchmarks": [GUIDELLM]}
        path.write_text(json.dumps(found))
        runs = read_benchmarks(path, SERVE, "h100-sxm", "vllm-0.11")
    rows = [row for run in runs for row in scores(run)]
    assert [(row["metric"], row["measured"]) for row in rows] == [
        ("mean_ttft_ms", 40.0),
        ("mean_tpot_ms", 8.0),
    ]
    for row in rows:
        assert row["error"] == pytest.approx(row["simulated"] / row["measured"] - 1)
        assert row["low"] < row["high"]
        assert (row["source"], row["kernel"]) == ("ours", "dense bf16, Hopper")
        assert row["load"] == "closed loops, low load"


def test_rows_of_a_known_source_are_left_out_of_its_bars(tmp_path):
    own = ROW | {"source": "ml-energy-vllm-0.11"}
    runs = read_benchmarks(table(tmp_path / "rows.csv", {"source": "new", **ROW}, own))
    near, far = ([row["distance"] for row in scores(run)][1] for run in runs)
    assert near == 0
    assert far > 0


def test_replicas_that_share_load_are_said_and_set(tmp_path):
    """A benchmark of one replica, and a manifest that starts four."""
    path = tmp_path / "server.yaml"
    path.write_text(MANIFEST.format(model=SERVE.rsplit(maxsplit=1)[-1]))
    (run,) = read_benchmarks(table(tmp_path / "rows.csv", ROW | {"serve": str(path)}))
    four, one = (
        next(scores(each)) for each in (run, replace(run, overrides={"clients.0.count": 1}))
    )
    briefs = [[each.brief for each in of_data(row)] for row in (four, one)]
    told = "4 replicas serve the load, as the server's text says."
    assert [told in each for each in briefs] == [True, False]
    line = ["validate", str(tmp_path / "rows.csv")]
    for words, named in ((line, True), ([*line, "--set", "clients.0.count=1"], False)):
        assert (told in CliRunner().invoke(app, words).stdout) is named
    refused = CliRunner().invoke(app, ["validate", str(tmp_path), "--set", "clients.0.count=1"])
    assert (refused.exit_code, "--set goes with files" in refused.stderr) == (2, True)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"mean_ttft": 4.0}, "unknown column 'mean_ttft'; did you mean 'mean_ttft_ms'"),
        ({"mean_tpot_ms": -8.0}, "line 2: mean_tpot_ms must be a finite number > 0, got -8"),
        ({"gpu": ""}, "line 2: gpu must not be empty"),
        ({"bench": ""}, "line 2: bench must not be empty"),
        ({"mean_ttft_ms": None, "mean_tpot_ms": None}, "line 2: no figure is measured"),
    ],
)
def test_bad_tables_are_refused_with_their_line(tmp_path, changes, words):
    with pytest.raises(ScenarioError, match=words):
        read_benchmarks(table(tmp_path / "rows.csv", ROW | changes))


def test_a_scenario_is_sent_to_run(tmp_path):
    with pytest.raises(ScenarioError, match="got YAML; mist run"):
        read_benchmarks(tmp_path / "scenario.yaml")


def test_a_server_that_is_not_known_is_refused_with_its_line(tmp_path):
    (run,) = read_benchmarks(table(tmp_path / "rows.csv", ROW | {"gpu": "h1000"}))
    with pytest.raises(ScenarioError, match=r"rows.csv, line 2: .*h1000"):
        list(scores(run))


@pytest.mark.parametrize(
    ("found", "words"),
    [
        (RESULT | {"completed": 0}, "completed must be a number > 0, got 0"),
        ({"benchmarks": [{"metrics": {}}]}, "benchmarks.0: not a benchmark of GuideLLM"),
        (RESULT | {"mean_ttft_ms": 0, "mean_tpot_ms": -1}, "must be a finite number > 0"),
    ],
)
def test_bad_results_are_refused(tmp_path, found, words):
    path = tmp_path / "result.json"
    path.write_text(json.dumps(found))
    with pytest.raises(ScenarioError, match=words):
        read_benchmarks(path, SERVE, "h100-sxm")


def test_a_result_needs_its_server(tmp_path):
    path = tmp_path / "result.json"
    path.write_text(json.dumps(RESULT))
    found = CliRunner().invoke(app, ["validate", str(path)])
    assert found.exit_code == 2
    assert "--serve" in found.stderr


def test_the_command_prints_figures_and_groups(tmp_path):
    path = table(tmp_path / "rows.csv", ROW, ROW)
    found = CliRunner().invoke(app, ["validate", str(path)])
    assert found.exit_code == 0, found.stderr
    assert "line 2  TTFT" in found.stdout
    heads = {line.split()[0] for line in found.stdout.splitlines() if line.strip()}
    assert {"source", "release", "gpu", "kernel", "load"} <= heads
    told = CliRunner().invoke(app, ["validate", str(path), "--json"])
    assert len(json.loads(told.stdout)["figures"]) == 4


def test_an_error_and_its_bar_have_one_base(tmp_path):
    """At both ends of the bar of measured over simulated, and a little outside."""
    (run,) = read_benchmarks(table(tmp_path / "rows.csv", ROW))
    row = list(scores(run))[1]
    ends = [row["low"], row["high"]]
    low, high = turned(*ends)
    for ratio, inside in ((0.999, True), (1.01, False)):
        for end in ends:
            measured = row["simulated"] * (1 + ratio * end)
            figures = {"mean_tpot_ms": measured}
            (found,) = scores(replace(run, figures=figures))
            assert found["inside"] is inside
            assert (low <= found["error"] <= high) is inside
    assert turned(-1.2, 0.25) == (pytest.approx(-0.2), inf)
    shown = CliRunner().invoke(app, ["validate", str(tmp_path / "rows.csv")]).stdout
    assert f"{error_range(low, high)}  " in shown


@pytest.mark.parametrize("form", ["vllm", "guidellm"])
def test_requests_that_failed_when_measured_are_told(tmp_path, form):
    path = tmp_path / "ours.json"
    found = RESULT | {"failed": 3}
    if form == "guidellm":
        metrics = GUIDELLM["metrics"] | {"request_totals": {"successful": 6, "errored": 3}}
        found = {"benchmarks": [GUIDELLM | {"metrics": metrics}]}
    path.write_text(json.dumps(found))
    words = ["validate", str(path), "--serve", SERVE, "--gpu", "h100-sxm"]
    told = "3 of 9 requests failed when measured."
    assert CliRunner().invoke(app, words).stdout.count(told) == 2  # above and among the warnings
    path.write_text(json.dumps(RESULT | {"failed": 0}))
    assert "failed when measured" not in CliRunner().invoke(app, words).stdout


def test_bars_hold_the_draw_of_both_runs(tmp_path):
    """400 Poisson gaps: 1 / sqrt(400) each, so ±11.6 % nine times in ten."""
    path = tmp_path / "ours.json"
    served = {"completed": 400, "total_input_tokens": 40_000, "total_output_tokens": 8_000}
    figures = {"request_throughput": 4.4, "p99_ttft_ms": 30.0}
    found = RESULT | served | figures | {"request_rate": 4.0, "max_concurrency": None}
    path.write_text(json.dumps(found))
    (run,) = read_benchmarks(path, SERVE, "h100-sxm", "vllm-0.11")
    rows = {row["metric"]: row for row in scores(run)}
    rate = rows["request_throughput"]
    assert rate["high"] - rate["low"] == pytest.approx(2 * 1.645 * (2 / 400) ** 0.5, rel=0.15)
    assert rate["inside"]
    assert rows["p99_ttft_ms"]["high"] >= rows["mean_ttft_ms"]["high"]
