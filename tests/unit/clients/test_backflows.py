"""How often answers flow back (TaiChi): a limit of ours, and what it is for."""

from functools import cache
from typing import Any

import numpy as np
import pytest

from mist_sim import Result, Scenario, simulate

SLO2: dict[str, Any] = {  # of the chatbot
    "slo": {"ttft": "4 s", "tpot": "70 ms"},
    "router.ttft": "4 s",
    "hand_over.policy.tpot": "70 ms",
    "clients.1.scheduler": {"type": "chunked", "max_num_batched_tokens": 128, "max_num_seqs": 128},
}


@cache
def chat(rate: float, most: int | None = 2, seed: int = 0, warmup: str = "0 s") -> Result:
    """Run the paper's hybrid for the chatbot under SLO2. rate: requests a second."""
    changes = {
        "workload.arrivals.rate": f"{rate} /s",
        "workload.lengths.num_requests": 1200,
        "hand_over.policy.max_backflows": most,
        "seed": seed,
        "warmup": warmup,
    }
    return simulate(Scenario.load("taichi-hybrid", overrides=SLO2 | changes))


def moves(result: Result) -> tuple[np.ndarray, np.ndarray]:
    """Return how often each request went from a D-heavy client to a P-heavy one, and back.

    Of those that came to a D-heavy client, all but the first of a request go back there, and the
    first, too, where its prompt was computed at a D-heavy one.
    """
    table, ids = result.transfers, result.requests["request_id"]
    goes_down = table["source"].str.startswith("d")
    down = table[goes_down].groupby("request_id").size().reindex(ids, fill_value=0).to_numpy()
    first = result.stages[result.stages["stage"] == "prefill"].set_index("request_id")["client"]
    came = table[~goes_down].groupby("request_id").size().reindex(ids, fill_value=0).to_numpy()
    return down, came - first.reindex(ids).str.startswith("p").to_numpy()


@pytest.mark.parametrize("most", [0, 1, 2, 3])
def test_no_answer_flows_back_more_often_than_it_may(most):
    down, back = moves(chat(17, most))
    assert back.max() == most
    assert (down - back <= 1).all()
    assert (down >= back).all()


def test_the_summary_counts_the_moves_of_answers():
    result, late = chat(17, None), chat(17, None, warmup="30 s")
    down, back = moves(result)
    assert result.summary["mean_moves_per_request"] == (down + back).mean() > 1
    assert result.summary["max_moves_per_request"] == (down + back).max() > 2 * 2 + 1
    counted = (late.requests["arrival_time"] >= 30).to_numpy()
    assert late.summary["mean_moves_per_request"] == (down + back)[counted].mean()


def test_where_answers_keep_their_limit_the_limit_of_backflows_changes_nothing():
    """At 13 requests a second, 88 % of the goodput, nobody flows back more than once."""
    with_limit, without = chat(13), chat(13, None)
    for name in ("requests", "stages", "steps", "transfers"):
        assert getattr(with_limit, name).equals(getattr(without, name)), name
    assert with_limit.summary["good_request_fraction"] > 0.97
    assert 0 < with_limit.summary["max_moves_per_request"] <= 3


@pytest.mark.deep
def test_beyond_goodput_answers_do_not_travel_without_end():
    """At 17 a second answers move twenty times on average without a limit, and attain less."""
    runs = {most: [chat(17, most, seed) for seed in (0, 1)] for most in (None, 2)}
    figures = {
        key: {most: [result.summary[key] for result in of] for most, of in runs.items()}
        for key in ("mean_moves_per_request", "good_request_fraction", "output_throughput")
    }
    travels = figures["mean_moves_per_request"]
    assert min(travels[None]) > 10
    assert max(travels[2]) < 3
    attained = figures["good_request_fraction"]
    assert all(limited > free + 0.05 for free, limited in zip(*attained.values(), strict=True))
    throughput = figures["output_throughput"]
    assert np.mean(throughput[2]) > 0.98 * np.mean(throughput[None])
