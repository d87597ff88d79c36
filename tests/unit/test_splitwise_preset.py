"""The preset of MIST's Fig. 7: its cluster, its two models, and measured step times."""

from __future__ import annotations

import pandas as pd
import pytest

from mist_sim import Scenario, simulate
from mist_sim.scenario.build import build

FEW = {"workload.lengths.num_requests": 200}


def scenario(**changes):
    named = {key.replace("__", "."): value for key, value in changes.items()}
    return Scenario.load("splitwise-80xh100", overrides=FEW | named)


def test_80_gpus_are_eight_clients_for_prompts_and_two_for_answers():
    clients = build(scenario()).clients
    assert [client.role for client in clients] == ["prefill"] * 8 + ["decode"] * 2
    assert [client.config.tensor_parallel_size for client in clients] == [8] * 10


@pytest.mark.parametrize("model", ["llama-2-70b", "bloom-176b"])
def test_a_row_a_request_is_saved(model, tmp_path):
    result = simulate(scenario(model=model))
    rows = pd.read_parquet(result.save(tmp_path / "out") / "requests.parquet")
    assert len(rows) == 200
    assert (rows["status"] == "finished").all()
    assert result.summary["num_hand_overs"] == (rows["num_output_tokens"] > 1).sum()


@pytest.mark.parametrize("model", ["llama-2-70b", "bloom-176b"])
def test_step_times_may_be_those_of_splitwise_sim(model, shared):
    path = str(shared("measurements/splitwise_perf_model.csv"))
    name = {"llama-2-70b": "llama2-70b"}.get(model, model)
    table = {
        "type": "table",
        "format": "splitwise",
        "path": path,
        "subset": f"{name}/h100-80gb",
    }
    changes = {"clients.0.predictor": table, "clients.1.predictor": table}
    result = simulate(scenario(model=model, **changes))
    assert result.summary["completed"] == 200
    assert set(result.estimates.values()) == {"measured"}
