"""Measured runs in folders of one's own: compared, and refused with a message."""

import json
from types import SimpleNamespace

import pytest
from typer.testing import CliRunner

import mist_sim as mist
from mist_sim import ChunkedScheduler
from mist_sim.cli.app import app
from mist_sim.errors import ScenarioError
from mist_sim.validation.runs import intakes, read_run
from tests.reference.engines import llm_engine
from tests.reference.predictors import ConstantPredictor

SCENARIO = """
model: llama-3.1-8b
workload:
  lengths:
    type: synthetic
    num_requests: 40
    prompt: {type: uniform, low: 100, high: 900}
    output: {type: uniform, low: 2, high: 90}
  arrivals: {type: poisson, rate: 4 /s}
clients: [{name: llm, gpu: h100-sxm}]
"""
RUN = "name: ours\nengine: mist-sim\nprovenance: this test\nscenario: scenario.yaml\n"


@pytest.fixture
def folder(tmp_path):
    """Return a run that 'measured' 10 % longer latencies than the simulation has."""
    (tmp_path / "scenario.yaml").write_text(SCENARIO)
    result = mist.simulate(mist.Scenario.load(tmp_path / "scenario.yaml"))
    requests = result.requests[["request_id", "ttft", "tpot", "e2el"]].copy()
    requests[["ttft", "tpot", "e2el"]] *= 1.1
    requests.to_csv(tmp_path / "requests.csv", index=False)
    (tmp_path / "result.json").write_text(
        json.dumps({"mean_ttft_ms": 2 * result.summary["mean_ttft_ms"], "date": "today"})
    )
    (tmp_path / "run.yaml").write_text(RUN + "requests: requests.csv\n")
    return tmp_path


def test_a_preset_is_a_scenario_of_a_run(tmp_path):
    plain = mist.simulate(mist.Scenario.load("mist-online")).summary
    (tmp_path / "result.json").write_text(json.dumps({"mean_ttft_ms": plain["mean_ttft_ms"]}))
    run = RUN.replace("scenario.yaml", "mist-online") + "summary: result.json\n"
    (tmp_path / "run.yaml").write_text(run)
    assert [row.error for row in read_run(tmp_path).rows()] == [0.0]
    (tmp_path / "mist-online").write_text(SCENARIO)  # a file of the folder goes first
    assert [row.error != 0 for row in read_run(tmp_path).rows()] == [True]


def test_requests_are_compared_one_by_one(folder):
    rows = {row.metric: row for row in read_run(folder).rows()}
    assert len(rows) == 10
    for metric in ("TTFT, mean", "TPOT, p99", "E2E, p50"):
        assert rows[metric].error == pytest.approx(1 / 1.1 - 1)
    assert rows["TTFT, mean"].spread == pytest.approx(1 - 1 / 1.1)
    assert 0 < rows["throughput"].error < 0.01


def test_times_of_an_engine_core_begin_between_two_steps(folder):
    mean = {}
    for start in ("arrival", "intake"):
        (folder / "run.yaml").write_text(f"{RUN}requests: requests.csv\nstarts_at: {start}\n")
        mean[start] = next(iter(read_run(folder).rows())).simulated
    assert 0 < mean["arrival"] - mean["intake"] < 30  # ms: part of a step


def test_a_summary_is_compared_key_by_key(folder):
    (folder / "run.yaml").write_text(RUN + "summary: result.json\n")
    (row,) = read_run(folder).rows()
    assert row.metric == "mean_ttft_ms"
    assert row.error == pytest.approx(-0.5)


SHORT = """
model: llama-3.1-8b
workload: {trace: {type: mooncake, path: sent.jsonl}}
clients: [{name: llm, gpu: h100-sxm, max_model_len: 1000}]
"""


def sent(prompt, output):
    """Return a line of a trace: a request at second 0."""
    blocks = [prompt] * -(-prompt // 512)
    row = {"timestamp": 0, "input_length": prompt, "output_length": output, "hash_ids": blocks}
    return json.dumps(row) + "\n"


@pytest.fixture
def rejecting(tmp_path):
    """Return a run of six requests, five of which are too long for the engine that simulates."""
    (tmp_path / "scenario.yaml").write_text(SHORT)
    (tmp_path / "sent.jsonl").write_text("".join(sent(n, 10) for n in (500, *[4000] * 5)))
    (tmp_path / "requests.csv").write_text(
        "request_id,ttft,tpot,e2el\n" + "".join(f"{n},0.1,0.01,0.2\n" for n in range(6))
    )
    (tmp_path / "run.yaml").write_text(RUN + "requests: requests.csv\n")
    return tmp_path


def test_requests_that_do_not_finish_here_are_told(rejecting):
    first, *rest = read_run(rejecting).rows()
    assert first.metric.startswith("finished (5 measured requests did not finish here; request 1 ")
    assert (first.measured, first.simulated) == (6, 1)
    rows = {row.metric: row for row in rest}
    assert rows["throughput"].measured == pytest.approx(6 / 0.2)
    assert rows["throughput"].simulated == pytest.approx(1e3 / rows["E2E, mean"].simulated)


def test_without_a_request_that_finishes_nothing_is_compared(rejecting):
    (rejecting / "requests.csv").write_text("request_id,ttft,tpot,e2el\n3,0.1,0.01,0.2\n")
    with pytest.raises(ScenarioError, match="none of the 1 measured requests finished"):
        list(read_run(rejecting).rows())


def test_a_summary_tells_how_many_finished(rejecting):
    (rejecting / "result.json").write_text(json.dumps({"completed": 6, "mean_ttft_ms": 100.0}))
    (rejecting / "run.yaml").write_text(RUN + "summary: result.json\n")
    count, ttft = read_run(rejecting).rows()
    assert (count.measured, count.simulated) == (6, 1)
    assert (count.metric, ttft.metric) == ("finished (5 failed here)", "mean_ttft_ms")


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ("", "holds no requests"),
        ("0,0,0.01,0.2", "ttft of request 0 must be finite and > 0 seconds, got 0"),
        ("0,0.1,0,0.2", "tpot of request 0 must .* got 0; leave it empty"),
        ("0,0.1,0.01,", "e2el of request 0 must be finite and > 0 seconds, got nan"),
        ("0,0.1,0.01,inf", "e2el of request 0 must be finite and > 0 seconds, got inf"),
    ],
)
def test_impossible_latencies_are_refused(folder, row, message):
    (folder / "requests.csv").write_text(f"request_id,ttft,tpot,e2el\n{row}\n")
    with pytest.raises(ScenarioError, match=message):
        read_run(folder)


@pytest.mark.parametrize(
    ("summary", "message"),
    [
        ({"ttft": 12.0, "date": "today"}, "has no latency or throughput above 0 that the sim"),
        ({"mean_ttft_ms": 0}, "has no latency or throughput above 0"),
        ({"mean_ttft_ms": -1}, "mean_ttft_ms must be finite and >= 0, got -1"),
        ({"mean_ttft_ms": float("nan")}, "mean_ttft_ms must be finite and >= 0, got nan"),
    ],
)
def test_summaries_without_figures_to_compare_are_refused(folder, summary, message):
    (folder / "result.json").write_text(json.dumps(summary))
    (folder / "run.yaml").write_text(RUN + "summary: result.json\n")
    with pytest.raises(ScenarioError, match=message):
        list(read_run(folder).rows())


def test_answers_of_one_token_have_no_tpot(rejecting):
    (rejecting / "sent.jsonl").write_text(sent(500, 1))
    (rejecting / "requests.csv").write_text("request_id,ttft,tpot,e2el\n0,0.1,,0.1\n")
    names = [row.metric for row in read_run(rejecting).rows()]
    assert "TTFT, mean" in names
    assert "TPOT, mean" not in names


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (RUN, "must have either requests or summary"),
        (RUN + "requests: r.csv\nsumary: x\n", "unknown key 'sumary'; did you mean 'summary'"),
        ("name: x\nrequests: y\n", "missing engine, provenance, scenario"),
        (RUN + "requests: none.csv\n", "none.csv: no such file"),
        (RUN + "requests: bad.csv\n", "no column 'ttft'; did you mean 'ttfts'"),
        (RUN + "requests: many.csv\n", "request_id 99 was measured and is not in the workload"),
        (RUN + "summary: result.json\nstarts_at: intake\n", "intake needs requests"),
        (RUN + "requests: requests.csv\nstarts_at: end\n", "starts_at must be arrival or intake"),
        (RUN.replace("scenario.yaml", "[1]") + "requests: requests.csv\n", "must be a file or a"),
    ],
)
def test_what_is_no_run_is_refused(folder, text, message):
    (folder / "run.yaml").write_text(text)
    (folder / "bad.csv").write_text("request_id,ttfts,tpot,e2el\n0,1,1,1\n")
    (folder / "many.csv").write_text("request_id,ttft,tpot,e2el\n99,1,1,1\n")
    with pytest.raises(ScenarioError, match=message):
        list(read_run(folder).rows())


def test_the_command_prints_a_table_or_says_what_is_missing(folder, tmp_path_factory):
    shown = CliRunner().invoke(app, ["validate", str(folder)])
    assert shown.exit_code == 0
    assert "TTFT, mean, ms" in shown.output
    empty = tmp_path_factory.mktemp("empty")
    for arguments, missing in (["validate", str(empty)], str(empty)), (["validate"], "a run.yaml"):
        failed = CliRunner().invoke(app, arguments)
        assert failed.exit_code == 2
        assert missing in failed.output.replace("\n", "")


# --- when engines take requests in --------------------------------------------------------------


@pytest.mark.parametrize(
    ("lockstep", "found"), [(False, [0.0, 0.25, 1.0, 1.25, 9.0]), (True, [0.0, 1.0, 1.0, 1.0, 9.0])]
)
def test_replicas_take_requests_in_between_their_own_steps_or_those_of_all(lockstep, found):
    """Steps of 1 s; requests at 0 and 0.5 go to the first engine, at 0.25 and 0.75 to the other."""
    engine = llm_engine(
        "llm",
        predictor=ConstantPredictor(1.0),
        scheduler=ChunkedScheduler(),
        num_gpu_blocks=1000,
        data_parallel_size=2,
        enable_expert_parallel=lockstep,
    )
    arrivals = [0.0, 0.25, 0.5, 0.75, 9.0]
    workload = mist.Workload.from_lists([10] * 5, [3] * 5, arrivals)
    result = mist.Simulation(clients=[engine], workload=workload).run()
    part = SimpleNamespace(names=["llm"], engine=engine.config)
    requests = result.requests.set_index("request_id")
    taken_in = intakes(SimpleNamespace(clients=[part]), result, requests["arrival_time"])
    assert taken_in.tolist() == found


EXPERTS = (
    "{name: llm, model: qwen3-30b-a3b, gpu: h100-sxm, data_parallel_size: 2, "
    "enable_expert_parallel: true}"
)


@pytest.mark.parametrize(
    "client",
    [
        "{name: llm, gpu: h100-sxm, data_parallel_size: 2}",
        "{name: llm, gpu: h100-sxm, count: 2}",
        EXPERTS,
    ],
)
def test_times_of_the_core_of_several_engines(folder, client):
    text = SCENARIO.replace("{name: llm, gpu: h100-sxm}", client).replace("4 /s", "40 /s")
    (folder / "scenario.yaml").write_text(text)
    mean = {}
    for start in ("arrival", "intake"):
        (folder / "run.yaml").write_text(f"{RUN}requests: requests.csv\nstarts_at: {start}\n")
        mean[start] = next(iter(read_run(folder).rows())).simulated
    assert 0 < mean["arrival"] - mean["intake"] < 50  # ms: part of a step


def test_times_of_the_core_of_a_pipeline_are_refused(folder):
    pipeline = "{name: llm, gpu: h100-sxm, pipeline_parallel_size: 2}"
    (folder / "scenario.yaml").write_text(SCENARIO.replace("{name: llm, gpu: h100-sxm}", pipeline))
    (folder / "run.yaml").write_text(f"{RUN}requests: requests.csv\nstarts_at: intake\n")
    with pytest.raises(ScenarioError, match="intake needs engines with pipeline_parallel_size 1"):
        list(read_run(folder).rows())
