"""Sessions of coding agents and a week of RAG, replayed: reuse as the files themselves hold it."""

import csv
import gzip
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path

import pytest

from mist_sim import AgenticReader, ChunkedScheduler, ClosedLoop, RagPulseReader, Workload
from mist_sim.simulation import Simulation
from mist_sim.traces import TraceReader
from tests.reference.engines import llm_engine
from tests.reference.predictors import ConstantPredictor
from tests.reference.reuse import agentic_reuse, ragpulse_reuse, reuse_of_three

SESSIONS = "traces/agentic-claude-code/traces_rle.jsonl.gz"
RAGPULSE = "traces/ragpulse/0_trace.jsonl"


def cached_tokens(reader: TraceReader, *, sessions: bool) -> list[int]:
    """Return the tokens that each request finds, served one at a time in unbounded memory."""
    client = llm_engine(
        predictor=ConstantPredictor(1.0),
        num_gpu_blocks=10**9,
        scheduler=ChunkedScheduler(max_num_batched_tokens=10**6),
    )
    workload = Workload(reader, ClosedLoop(concurrency=1, sessions=sessions))
    requests = Simulation(clients=[client], workload=workload).run().requests
    assert set(requests["status"]) == {"finished"}
    return list(requests.sort_values("request_id")["num_cached_tokens"])


@pytest.fixture(scope="module")
def few_sessions(shared: Callable[[str], Path], tmp_path_factory) -> Path:
    """Eight sessions from the beginning, those with sub-agents among them."""
    path = tmp_path_factory.mktemp("sessions") / "few.jsonl.gz"
    with gzip.open(shared(SESSIONS), "rt") as file, gzip.open(path, "wt") as few:
        lines = [line for _, line in zip(range(60), file, strict=False)]
        with_agents = [line for line in lines if '"subagent"' in line]
        few.writelines(sorted(lines, key=len)[:6] + sorted(with_agents, key=len)[:2])
    return path


def test_some_sessions_find_what_their_file_holds(few_sessions):
    found = cached_tokens(AgenticReader(path=str(few_sessions)), sessions=True)
    assert found == agentic_reuse(few_sessions)
    assert sum(found) > 10**6


@pytest.mark.deep
def test_all_sessions_find_what_their_file_holds(shared):
    """44,971 requests of 683 sessions with 5.28 billion prompt tokens, each one to the token."""
    path = shared(SESSIONS)
    found = cached_tokens(AgenticReader(path=str(path)), sessions=True)
    assert found == agentic_reuse(path)
    assert sum(found) / 5_281_080_055 == pytest.approx(0.9620, abs=1e-4)


@pytest.mark.parametrize("num_requests", [800, pytest.param(7106, marks=pytest.mark.deep)])
def test_week_of_rag_finds_what_its_file_holds(shared, num_requests):
    reader = RagPulseReader(path=str(shared(RAGPULSE)), num_requests=num_requests)
    found = cached_tokens(reader, sessions=False)
    assert found == ragpulse_reuse(shared(RAGPULSE).parent)[:num_requests]
    assert sum(found) > 0.25 * 2900 * num_requests


@pytest.mark.deep
def test_reference_agrees_with_table_that_comes_with_sessions(shared):
    """`cached_blocks` of the CSV: shared with one of the three requests before."""
    ours, theirs = defaultdict(list), defaultdict(list)
    for session, *blocks in reuse_of_three(shared(SESSIONS)):
        ours[session].append(tuple(blocks))
    with gzip.open(shared(SESSIONS).with_name("requests_all.csv.gz"), "rt") as file:
        for line in csv.DictReader(file):
            theirs[line["trace"]].append((int(line["blocks"]), int(line["cached_blocks"])))
    assert len(ours) == 683
    assert all(sorted(ours[session]) == sorted(theirs[session]) for session in ours)


def test_readings_by_time_and_by_session_hold_the_same_requests(few_sessions):
    def lengths(start_every: float | None) -> list[tuple[object, ...]]:
        rows = AgenticReader(path=str(few_sessions), start_every=start_every).rows()
        return sorted(row._replace(arrival_time=None, session_id=0) for row in rows)

    assert lengths(None) == lengths(0.0) == lengths(600.0)
