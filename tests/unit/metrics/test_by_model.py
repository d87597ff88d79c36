"""Several models: whose requests, whose clients, and figures of each; tables that are named."""

import io
import json

import pandas as pd
import pytest
from rich.console import Console

from mist_sim import ScenarioError, simulate
from mist_sim.core.result_warnings import POOLED
from mist_sim.report.run import results_table
from mist_sim.search import GoodputOptions, find_goodput
from tests.commands import exit_code
from tests.reference.scenarios import BASE, PRESSED, scenario

TWO = {
    "model": None,
    "clients": [
        {"name": "small", "model": "llama-3.2-1b", "gpu": "l40s"},
        {"name": "large", "model": "llama-3.1-8b", "gpu": "l40s"},
        {"name": "search", "type": "sequential", "serves": ["rag"], "base_time": "20 ms"},
    ],
    "workload__models": {"llama-3.2-1b": 0.5, "llama-3.1-8b": 0.5},
    "workload__pipeline": ["rag", "prefill", "decode"],
    "slo": {"ttft": "1 s", "tpot": "50 ms"},
}


@pytest.fixture(scope="module")
def result():
    return simulate(scenario(**TWO, cost={}))


def test_tables_say_which_model(result):
    requests, clients = result.requests, result.clients
    assert clients["model"].tolist() == ["llama-3.2-1b", "llama-3.1-8b", ""]
    served = result.stages.query("stage == 'decode'").set_index("request_id")["client"]
    asked = requests.set_index("request_id")["model"]
    by_client = dict(zip(clients["client"], clients["model"], strict=True))
    assert asked.loc[served.index].tolist() == [by_client[name] for name in served]
    assert set(simulate(scenario()).requests["model"]) == {""}


def test_figures_of_each_model(result):
    models, summary = result.summary["models"], result.summary
    assert set(models) == {"llama-3.2-1b", "llama-3.1-8b"}
    for name in (
        "completed",
        "failed",
        "total_output_tokens",
        "output_throughput",
        "request_throughput",
        "request_goodput",
    ):
        assert sum(each[name] for each in models.values()) == pytest.approx(summary[name])
    for name, figures in models.items():
        mine = result.requests[result.requests["model"] == name]
        assert figures["completed"] == len(mine) > 0
        assert figures["p50_ttft_ms"] == pytest.approx(mine["ttft"].median() * 1e3)
        assert figures["mean_tpot_ms"] == pytest.approx(mine["tpot"].mean() * 1e3)
        assert figures["mean_e2el_ms"] == pytest.approx(mine["e2el"].mean() * 1e3)
    assert models["llama-3.2-1b"]["mean_tpot_ms"] < models["llama-3.1-8b"]["mean_tpot_ms"]
    assert "models" not in simulate(scenario()).summary


def test_the_table_of_models(result):
    console = Console(width=90, record=True, file=io.StringIO())
    console.print(results_table(result))
    lines = console.export_text().splitlines()
    begin = lines.index("Models")
    assert lines[begin + 3].split()[0] in result.summary["models"]
    assert lines[begin + 3].rstrip().endswith("%")


HIDING = {
    key: value for key, value in TWO.items() if key != "slo"
} | {  # every request of the small model is good, and none of the large one's
    "clients": [TWO["clients"][0], TWO["clients"][1] | {"step_time_scale": 100}, TWO["clients"][2]],
    "workload__models": {"llama-3.2-1b": 0.8, "llama-3.1-8b": 0.2},
}
LIMITED = {"e2el": "5 s", "attainment": 0.5}
BY_MODEL = {
    "classes": {name[-2:]: {"model": name, "e2el": "5 s"} for name in HIDING["workload__models"]},
    "attainment": 0.5,
}


def pooled(found):
    return [str(each) for each in found.warnings if each.kind is POOLED]


@pytest.mark.parametrize("each", [False, True])
def test_a_model_that_hides_behind_others_is_named(each):
    (told,) = pooled(simulate(scenario(**HIDING, slo=LIMITED | {"each": each})))
    assert "50 % of all requests have to keep them" in told
    assert "0.0 % of llama-3.1-8b, 100.0 % of llama-3.2-1b." in told
    assert "slo.classes" in told


@pytest.mark.parametrize("slo", [BY_MODEL, {"e2el": "1 h"}, LIMITED | {"attainment": 0.99}])
def test_no_model_hides_where_each_is_judged_or_all_fare_alike(slo):
    assert not pooled(simulate(scenario(**HIDING, slo=slo)))


@pytest.mark.parametrize("as_is", [False, True])
def test_a_goodput_names_the_model_that_hides(as_is):
    options = GoodputOptions(rates=(1, 2), most_requests=None if as_is else 1000, as_is=as_is)
    found = find_goodput(scenario(**HIDING, slo=LIMITED), options, jobs=1)
    (told,) = pooled(found)
    assert "0.0 % of llama-3.1-8b, 100.0 % of llama-3.2-1b." in told


def test_good_tokens_of_clients_are_those_of_summary(result):
    clients, summary = result.clients, result.summary
    assert clients["good_tokens"].sum() == pytest.approx(
        summary["good_tokens_per_j"] * summary["energy_j"]
    )
    assert clients["num_output_tokens"].sum() == summary["total_output_tokens"]
    small = clients.iloc[0]
    assert 0 < small["good_tokens"] <= small["num_output_tokens"]
    assert small["good_tokens_per_j"] == pytest.approx(small["good_tokens"] / small["energy"])
    assert small["good_tokens_per_usd"] == pytest.approx(small["good_tokens"] / small["cost"])
    assert clients.iloc[2]["good_tokens"] == 0
    assert "good_tokens" not in simulate(scenario()).clients


def test_tokens_of_attempts_in_vain_are_not_good():
    strict = {"workload__timeout": "5 s", "workload__retries": {"max_attempts": 3}}
    result = simulate(scenario(**PRESSED, **strict, slo={"e2el": "1 h"}))
    done = result.requests.query("status == 'finished'")
    assert (done["num_attempts"] > 1).any()
    assert result.clients["good_tokens"].tolist() == [done["num_output_tokens"].sum()]
    assert result.clients["num_output_tokens"].sum() > done["num_output_tokens"].sum()


# --- which tables are written -------------------------------------------------------------------


def test_named_tables_are_written(result, tmp_path):
    folder = result.save(tmp_path / "some", tables=["breakdown", "over_time"])
    assert {path.stem for path in folder.glob("*.parquet")} == {"breakdown", "over_time"}
    pd.testing.assert_frame_equal(pd.read_parquet(folder / "breakdown.parquet"), result.breakdown)
    assert len(pd.read_parquet(folder / "over_time.parquet")) == 300
    usual = {path.stem for path in result.save(tmp_path / "usual").glob("*.parquet")}
    assert usual == {"requests", "stages", "steps", "clients"}
    with pytest.raises(ScenarioError, match="tables has no 'request'; did you mean 'requests'"):
        result.save(tmp_path / "none", tables=["request"])
    assert not (tmp_path / "none").exists()


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "scenario.yaml"
    path.write_text(json.dumps(BASE))
    return path


@pytest.mark.parametrize(("named", "written"), [("none", set()), ("steps, steps", {"steps"})])
def test_tables_of_the_command(file, tmp_path, named, written):
    assert not exit_code("run", file, "--out", tmp_path / "out", "--tables", named, "--quiet")
    assert {path.stem for path in (tmp_path / "out").glob("*.parquet")} == written
    assert (tmp_path / "out" / "summary.json").is_file()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--tables", "steps"], "--tables has no effect without --out"),
        (["--tables", "step", "--out", "OUT"], "--tables has no 'step'; did you mean 'steps'?"),
        (["--tables", "", "--out", "OUT"], "--tables has no ''"),
        (["--tables", "steps", "--out", "OUT", "--replications", "2"], "no effect on replications"),
    ],
)
def test_tables_that_cannot_be(file, tmp_path, capsys, words, message):
    words = [tmp_path / "out" if word == "OUT" else word for word in words]
    assert exit_code("run", file, *words) == 2
    assert message in capsys.readouterr().err
    assert not (tmp_path / "out").exists()
