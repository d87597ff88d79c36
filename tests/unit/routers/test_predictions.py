"""Predicted lengths of answers: drawn with errors, read from a log, and an order of the queue."""

from dataclasses import dataclass

import numpy as np
import pytest

import mist_sim as mist
from mist_sim.clients.scheduling.order import Ranked
from mist_sim.traces.predictions import Predictions
from tests.reference.scenarios import scenario, synthetic
from tests.refusals import refused

ROWS = [mist.TraceRow(50, output, 0.001 * k) for k, output in enumerate((9, 40, 3, 77, 21, 5) * 20)]
ORDER = {"clients__0__scheduler__order": "shortest_predicted_first"}


def predicted(predictions: Predictions | None, seed: int = 0) -> list[int | None]:
    workload = mist.Workload(mist.Rows(ROWS), mist.TraceArrivals(), predictions=predictions)
    seen: dict[int, int | None] = {}

    @dataclass
    class Looks:
        def choose(self, request, stage, candidates):
            seen[request.request_id] = request.num_predicted_tokens
            return candidates[0].client_id

    client = mist.llm_client("llm", model="llama-3.1-8b", gpu="h100-sxm")
    mist.Simulation(clients=[client], workload=workload, router=Looks(), seed=seed).run()
    return [seen[k] for k in range(len(ROWS))]


def test_a_router_sees_them():
    assert predicted(None) == [None] * len(ROWS)
    assert predicted(Predictions()) == [row.num_output_tokens for row in ROWS]


def test_errors_have_their_bias_and_spread():
    law, request = Predictions(bias=2.0, sigma=0.5), mist.Request(0, 0.0, (), 1, 10_000)
    draws = law.applied(iter([request] * 4000), np.random.default_rng(3))  # noqa: TID251
    logs = np.log([each.num_predicted_tokens / 10_000 for each in draws])
    assert logs.mean() == pytest.approx(np.log(2), abs=4 * 0.5 / np.sqrt(4000))
    assert logs.std() == pytest.approx(0.5, rel=0.05)


@dataclass(frozen=True, kw_only=True)
class ByTrueLength(mist.ChunkedScheduler):
    def new_queue(self):
        return Ranked(lambda sequence: sequence.visit.request.num_output_tokens)


def test_order_by_perfect_predictions_is_that_of_lengths():
    def ends(scheduler, predictions):
        client = mist.llm_client("llm", model="llama-3.1-8b", gpu="h100-sxm", scheduler=scheduler)
        rows, times = mist.Rows(ROWS), mist.TraceArrivals()
        workload = mist.Workload(rows, times, predictions=predictions)
        found = mist.Simulation(clients=[client], workload=workload).run().requests
        return found["finished_at"].tolist()

    options = {"max_num_seqs": 2, "max_num_batched_tokens": 512}
    ordered = mist.ChunkedScheduler(order="shortest_predicted_first", **options)
    by_arrival = ends(mist.ChunkedScheduler(**options), None)
    assert ends(ordered, Predictions()) == ends(ByTrueLength(**options), None) != by_arrival


def test_a_log_may_have_them(tmp_path):
    log = tmp_path / "log.csv"
    log.write_text("timestamp,prompt_tokens,output_tokens,guess\n0,50,9,4\n1,50,9,12\n")
    reader = {"type": "csv", "path": str(log), "predicted_column": "guess"}
    rows = list(mist.CsvReader(**{key: reader[key] for key in ("path", "predicted_column")}).rows())
    assert [row.num_predicted_tokens for row in rows] == [4, 12]
    assert mist.simulate(scenario(workload={"trace": reader}, **ORDER)).summary["completed"] == 2


test_bad_input = refused(
    lambda changes: scenario(**changes),
    (ORDER, "is required for"),
    ({"workload__predictions": {"sigma": -1}}, "sigma: must be finite and >= 0"),
    ({"workload__predictions": {"bias": 0}}, "bias: must be finite and > 0"),
    error=mist.ScenarioError,
)


def test_a_scenario_draws_them():
    workload = synthetic(200, 100, 50, "50 /s") | {"predictions": {"sigma": 0.3}}
    found = mist.simulate(scenario(workload=workload, **ORDER))
    assert found.summary["completed"] == 200
