"""The preset of MIST's Fig. 7: its cluster, its two models, and measured step times."""

import pandas as pd
import pytest

from mist_sim import Scenario, simulate
from mist_sim.scenario.build import build
from tests.reference.published import splitwise_rows, write_rows

FEW = {"workload.lengths.num_requests": 200}


def scenario(**changes):
    named = {key.replace("__", "."): value for key, value in changes.items()}
    return Scenario.load("splitwise-80xh100", overrides=FEW | named)


def test_80_gpus_are_eight_clients_for_prompts_and_two_for_answers():
    clients = build(scenario()).clients
    assert [client.traits.role for client in clients] == ["prefill"] * 8 + ["decode"] * 2
    assert [client.config.tensor_parallel_size for client in clients] == [8] * 10


@pytest.mark.parametrize("model", ["llama-2-70b", "bloom-176b"])
def test_a_row_a_request_is_saved(model, tmp_path):
    result = simulate(scenario(model=model))
    rows = pd.read_parquet(result.save(tmp_path / "out") / "requests.parquet")
    assert len(rows) == 200
    assert (rows["status"] == "finished").all()
    assert result.summary["num_hand_overs"] == (rows["num_output_tokens"] > 1).sum()


@pytest.mark.parametrize("model", ["llama-2-70b", "bloom-176b"])
@pytest.mark.parametrize("is_real", [True, False], ids=["real", "made"])
def test_step_times_may_be_those_of_splitwise_sim(model, is_real, request, tmp_path):
    if is_real:
        path = str(request.getfixturevalue("shared")("measurements/splitwise_perf_model.csv"))
    else:
        rows = splitwise_rows("h100-80gb", lambda *_: 50.0, lambda *_: 20.0)
        path = str(write_rows(tmp_path / "perf.csv", rows))
    name = {"llama-2-70b": "llama2-70b"}.get(model, model)
    table = {"type": "table", "format": "splitwise", "path": path, "subset": f"{name}/h100-80gb"}
    changes = {"clients.0.predictor": table, "clients.1.predictor": table}
    result = simulate(scenario(model=model, **changes))
    assert result.summary["completed"] == 200
    assert set(result.estimates.values()) == {"measured"}
    if not is_real:
        assert 20 <= result.summary["mean_tpot_ms"] < 30  # 20 ms, and the engine's own time
