"""Readers of sessions and of RAG: what a few lines mean, and what is refused where."""

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from mist_sim import (
    AgenticReader,
    ChunkedScheduler,
    ClosedLoop,
    RagPulseReader,
    Rows,
    TraceRow,
    Workload,
)
from mist_sim.errors import ScenarioError, TraceError
from mist_sim.simulation import Simulation
from mist_sim.traces import TraceReader
from tests.reference.engines import llm_engine
from tests.reference.predictors import ConstantPredictor


def turn(t: float, num_in: int, *runs: list[int], **more: Any) -> dict[str, Any]:
    return {"t": t, "in": num_in, "out": 3, "hash_runs": list(runs), **more}


MAIN = [
    turn(0, 20, [1, 5], api_time=2),
    {"t": 4, "type": "subagent", "requests": [turn(0, 8, [50, 2]), turn(1, 9, [50, 2])]},
    turn(9, 30, [1, 4], [70, 3], think_time=6, out=0),
]
SESSION = {"block_size": 4, "requests": MAIN}


def written(folder: Path, *sessions: object, name: str = "a.jsonl") -> str:
    path = folder / name
    text = "".join(f"{json.dumps(session)}\n" for session in sessions)
    path.write_bytes(gzip.compress(text.encode()) if name.endswith(".gz") else text.encode())
    return str(path)


@pytest.mark.parametrize("name", ["a.jsonl", "a.jsonl.gz"])
def test_agents_are_sessions_that_share_blocks(tmp_path, name):
    first, third, *sub = AgenticReader(path=written(tmp_path, SESSION, name=name)).rows()
    assert [row.session_id for row in (first, third, *sub)] == [0, 0, 1, 1]
    assert [row.think_time for row in (first, third, *sub)] == [0.0, 6.0, 0.0, 1.0]
    assert (third.num_prompt_tokens, third.num_output_tokens) == (30, 1)
    assert third.content[0] == (first.content[0][0], 16)
    assert [span[1] for span in third.content] == [16, 12]
    assert {row.arrival_time for row in (first, third)} == {None}


def test_a_wait_is_what_the_api_did_not_take_and_the_first_turn_has_none(tmp_path):
    turns = [turn(5, 20, [1, 5], api_time=2), turn(9, 24, [1, 6], api_time=3), turn(11, 20, [1, 5])]
    session = {"block_size": 4, "requests": turns}
    rows = AgenticReader(path=written(tmp_path, session)).rows()
    assert [row.think_time for row in rows] == [0.0, 2.0, 0.0]


def test_sessions_may_begin_one_after_another(tmp_path):
    path = written(tmp_path, SESSION, SESSION)
    rows = list(AgenticReader(path=path, start_every=6.0).rows())
    assert [row.arrival_time for row in rows] == [0, 4, 5, 6, 9, 10, 11, 15]
    assert len({row.content[0][0] for row in rows}) == 4  # ids belong to a session


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"t": -1}, "t must be seconds from 0 to 1e.11, got -1"),
        ({"in": 0}, "in must be a whole number of tokens"),
        ({"out": -2}, "out must be a whole number of tokens"),
        ({"think_time": "x"}, "think_time must be seconds from 0"),
        ({"hash_runs": [[1, 9]]}, "must have 5 blocks of 4 for 20 tokens, got 9"),
        ({"hash_runs": [[1]]}, r"must be pairs \[first, number\]"),
        ({"hash_runs": [[-1, 5]]}, "a run must have ids from 0"),
        ({"hash_runs": [[1, 2], [71, 3]]}, "blocks from 71 on must always follow the same ones"),
        ({"hash_runs": [[9, 1], [1, 4]]}, "blocks from 1 on must always follow the same ones"),
        ({"hash_runs": None}, "hash_runs must be pairs"),
    ],
)
def test_a_bad_request_of_a_session_is_named_with_its_line(tmp_path, change, message):
    bad = {
        "block_size": 4,
        "requests": [turn(0, 30, [1, 4], [70, 3]), turn(1, 20, [1, 5]) | change],
    }
    if "hash_runs" not in change:
        bad["requests"].pop(0)
    with pytest.raises(TraceError, match=message) as caught:
        list(AgenticReader(path=written(tmp_path, SESSION, bad)).rows())
    assert "line 2" in str(caught.value) or ":2" in str(caught.value)


@pytest.mark.parametrize(
    ("session", "message"),
    [
        ([1], "a session must be a JSON object, got '.'"),
        ({"requests": [1], "block_size": 4}, "a request must be a JSON object, got 1"),
        ({"requests": []}, "block_size must be a whole number"),
        ({"requests": [{"t": 0}], "block_size": 4}, "a request needs t, in, out, hash_runs"),
        ({"requests": [turn(5, 1), turn(4, 1)], "block_size": 4}, "t must not go backwards"),
        (
            {"requests": [{"t": 1, "requests": [{"t": 0, "requests": []}]}], "block_size": 4},
            "a sub-agent must not have sub-agents",
        ),
        (
            {"requests": [{"t": 0, "requests": [{"t": 0, "requests": []}]}], "block_size": 4},
            "a sub-agent must not have sub-agents",
        ),
    ],
)
def test_a_bad_session_is_refused(tmp_path, session, message):
    with pytest.raises(TraceError, match=message):
        list(AgenticReader(path=written(tmp_path, session)).rows())


def test_files_that_cannot_be_unpacked_are_named(tmp_path):
    path = tmp_path / "a.jsonl.gz"
    path.write_bytes(b"no gzip")
    with pytest.raises(ScenarioError, match="cannot be read"):
        list(AgenticReader(path=str(path)).rows())
    path.write_bytes(gzip.compress(b"{}" * 999)[:20])
    with pytest.raises(ScenarioError, match="cannot be read"):
        list(AgenticReader(path=str(path)).rows())


PARTS = {"sys_prompt": [1, 2], "passages_ids": [5], "history": [7], "web_search": []}


def ragpulse(folder: Path, *rows: dict[str, Any]) -> str:
    for name, key, numbers in (
        ("1_sys_prompt", "sys_prompt_id", (1, 2)),
        ("2_passages", "passage_id", (5, 6)),
        ("3_history", "history_id", (7,)),
        ("4_user_input", "user_input_id", (8, 9)),
        ("5_web_search", "web_search_id", ()),
    ):
        lines = [{key: number, "token_length": 10 * number} for number in numbers]
        written(folder, *lines, name=f"{name}.jsonl")
    return written(folder, *rows, name="0_trace.jsonl")


def asked(time: object, user_input: int, num_tokens: int = 300, **more: Any) -> dict[str, Any]:
    ids = PARTS | {"user_input": [user_input]} | more
    length = {"input_length": num_tokens, "output_length": 4}
    return {"timestamp": time, **length, "hash_ids": ids, "session_id": f"s{user_input}"}


def test_prompts_share_the_parts_that_they_begin_with(tmp_path):
    other = asked("7", 8, passages_ids=[6])
    path = ragpulse(tmp_path, asked("9", 8), asked("4", 9), other, asked("9", 8))
    rows = list(RagPulseReader(path=path).rows())
    assert [row.arrival_time for row in rows] == [0, 3, 5, 5]
    spans = [[span[0] for span in row.content] for row in rows]
    assert [span[1] for span in rows[0].content] == [10, 20, 50, 70, 90]
    assert spans[0][:4] == spans[2][:4]
    assert spans[2] == spans[3]
    assert spans[0][:2] == spans[1][:2]
    assert not set(spans[0][2:]) & set(spans[1][2:])  # a part behind another one is another path


@pytest.mark.parametrize(
    ("row", "message"),
    [
        (asked("x", 8), "timestamp must be seconds from 0"),
        (asked(1, 8, 99), "input_length must be >= the tokens of its parts, got 99"),
        (asked(1, 3), "user_input 3 is not listed in 4_user_input.jsonl"),
        (asked(1, 8, history=7), "history must be a list of ids, got 7"),
        (asked(1, 8) | {"hash_ids": 3}, "hash_ids must be an object, got 3"),
        (asked(1, 8) | {"output_length": 0}, "output_length must be a whole number"),
    ],
)
def test_a_bad_row_of_ragpulse_is_refused(tmp_path, row, message):
    with pytest.raises(TraceError, match=message):
        list(RagPulseReader(path=ragpulse(tmp_path, asked(0, 8), row)).rows())


def test_files_of_parts_are_needed(tmp_path):
    path = ragpulse(tmp_path, asked(0, 8))
    (tmp_path / "2_passages.jsonl").unlink()
    with pytest.raises(ScenarioError, match=r"2_passages.jsonl must lie beside it; there is no"):
        list(RagPulseReader(path=path).rows())


# --- users who go through sessions --------------------------------------------------------------


def sent(rows: list[TraceRow], **options: Any) -> list[float]:
    """Return when each request is sent; an answer of n tokens takes n seconds."""
    client = llm_engine(
        predictor=ConstantPredictor(1.0), num_gpu_blocks=100, scheduler=ChunkedScheduler()
    )
    workload = Workload(Rows(rows), ClosedLoop(sessions=True, **options))
    requests = Simulation(clients=[client], workload=workload).run().requests
    return requests.sort_values("request_id")["arrival_time"].tolist()


def in_session(number: int | None, num_output: int, think_time: float = 0.0) -> TraceRow:
    return TraceRow(4, num_output, None, number, think_time=think_time)


def test_turn_comes_after_one_before_and_its_wait():
    rows = [in_session(0, 2), in_session(0, 3, 5.0), in_session(1, 1, 9.0), in_session(1, 1, 1.0)]
    assert sent(rows, concurrency=1) == [0.0, 7.0, 10.0, 12.0]
    assert sent(rows, concurrency=1, think_time=0.5) == [0.0, 7.0, 10.5, 12.5]
    assert sent(rows, concurrency=2, ramp_up=6.0) == [0.0, 7.0, 3.0, 5.0]


def test_requests_without_a_session_stand_alone():
    assert sent([in_session(None, 2, 9.0)] * 3, concurrency=1) == [0.0, 2.0, 4.0]


@pytest.mark.parametrize("make", [AgenticReader, RagPulseReader])
def test_readers_stream_nothing_before_they_are_asked(make, tmp_path):
    reader: TraceReader = make(path=str(tmp_path / "missing.jsonl"))
    rows = reader.rows()
    with pytest.raises(ScenarioError, match="no such file"):
        next(rows)


def test_a_start_that_is_none_is_refused():
    with pytest.raises(ValueError, match="start_every must be in \\[0, 1e.11\\] s"):
        AgenticReader(path="x", start_every=-1.0)


@pytest.mark.parametrize("last", [7, None])
def test_users_who_go_through_sessions_need_them_whole(last):
    """Rows in order of time mix sessions, whose waits would be lost; rows may have no session."""
    rows = [TraceRow(4, 1, None, session_id) for session_id in (7, 8, last)]
    workload = Workload(Rows(rows), ClosedLoop(concurrency=1, sessions=True))
    options = {"scheduler": ChunkedScheduler(), "num_gpu_blocks": 9, "block_size": 4}
    client = llm_engine("llm", predictor=ConstantPredictor(1.0), **options)
    simulation = Simulation(clients=[client], workload=workload)
    if last is None:
        assert simulation.run().summary["completed"] == 3
        return
    with pytest.raises(
        ScenarioError, match="request 2 belongs to session 7, and others came .*; sort"
    ):
        simulation.run()
