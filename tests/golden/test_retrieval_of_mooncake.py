"""Stateful retrieval on Mooncake's trace: hits are the reuse that can be read off the file."""

import json
from pathlib import Path

import pytest

import mist_sim as mist
from mist_sim.clients.retrieval.client import KvRetrievalClient
from tests.reference.engines import llm_engine
from tests.reference.predictors import ConstantPredictor

TRACE = "traces/mooncake_synthetic_trace.jsonl"
BLOCK = 512  # tokens of a hash of the file


def reuse_of(path: Path, num_requests: int | None = None) -> tuple[int, int]:
    """Return (prompt tokens in full blocks that an earlier prompt began with, prompt tokens)."""
    known: set[int] = set()
    reused = asked = 0
    for line in path.read_text().splitlines()[:num_requests]:
        row = json.loads(line)
        ids = row["hash_ids"][: row["input_length"] // BLOCK]
        num_known = next((k for k, each in enumerate(ids) if each not in known), len(ids))
        reused += BLOCK * num_known
        asked += row["input_length"]
        known.update(ids)
    return reused, asked


def one_at_a_time(path: Path, level: mist.StorageLevel, **more: object) -> mist.Result:
    """Serve each request when the one before it has left, without any other cache."""
    store = KvRetrievalClient(
        "store", bytes_per_token=131072.0, levels=(level,), hits="stored", block_size=BLOCK
    )
    llm = llm_engine(
        predictor=ConstantPredictor(1e-3),
        scheduler=mist.ChunkedScheduler(max_num_seqs=1, max_num_batched_tokens=1_000_000),
        num_gpu_blocks=20_000,
        enable_prefix_caching=False,
    )
    workload = mist.Workload(
        mist.MooncakeReader(path=str(path), **more),
        mist.ClosedLoop(concurrency=1),
        mist.template([mist.KvRetrieval, mist.Prefill]),
    )
    return mist.Simulation(clients=[store, llm], workload=workload).run()


@pytest.mark.exact
def test_without_limit_hit_rate_is_reuse_of_file(shared):
    path = shared(TRACE)
    reused, asked = reuse_of(path)
    level = mist.StorageLevel(name="store", read_bandwidth=100e9)
    summary = one_at_a_time(path, level).summary
    assert summary["completed"] == 3_993
    assert summary["retrieved_tokens"] == reused == 39_802_880
    assert summary["retrieval_hit_rate"] == reused / asked


def test_a_level_with_less_room_finds_less(shared):
    path = shared(TRACE)
    rates = [
        one_at_a_time(
            path,
            mist.StorageLevel(name="store", read_bandwidth=100e9, capacity_tokens=capacity),
            num_requests=600,
        ).summary["retrieval_hit_rate"]
        for capacity in (10**5, 10**6, 10**8)
    ]
    reused, asked = reuse_of(path, 600)
    assert rates == sorted(rates)
    assert rates[0] < rates[1] < rates[2] == reused / asked
