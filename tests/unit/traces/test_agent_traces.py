"""Traces of agents: sessions and waits of Weka, Dynamo, OpenTelemetry and agentic Mooncake."""

import gzip
import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mist_sim import ScenarioError
from mist_sim.traces import (
    AgenticMooncakeReader,
    AgenticReader,
    AzureReader,
    DynamoReader,
    MooncakeReader,
    OtelReader,
    TimedTraceReader,
)
from mist_sim.traces.readers.opening import form_of
from tests.effort import examples

BLOCK = 4


def _file(folder: Path, records: list[dict], indent: int | None = None) -> str:
    path = folder / "t"
    path.write_text("".join(json.dumps(each, indent=indent) + "\n" for each in records))
    return str(path)


# ------------------------------------------------------------------------- Weka


def _weka(hashes: bool, sub_agent_at: float = 0.0) -> dict:
    def turn(t: float, runs: list[list[int]]) -> dict:
        ids = [first + k for first, number in runs for k in range(number)]
        blocks = {"hash_ids": ids} if hashes else {"hash_runs": runs}
        return {"t": t, "type": "n", "in": BLOCK * len(ids), "out": 5, "api_time": 1.0} | blocks

    return {
        "id": "trace",
        "block_size": BLOCK,
        "requests": [
            turn(0.0, [[1, 3]]),
            {
                "t": 2.0,
                "type": "subagent",
                "requests": [turn(sub_agent_at, [[50, 2]]), turn(sub_agent_at + 4, [[50, 3]])],
            },
            turn(9.0, [[1, 3], [20, 2]]),
        ],
    }


def test_lists_of_ids_are_runs_of_them(tmp_path):
    lists = list(AgenticReader(path=_file(tmp_path, [_weka(hashes=True)] * 2)).rows())
    runs = list(AgenticReader(path=_file(tmp_path, [_weka(hashes=False)] * 2)).rows())
    assert lists == runs
    assert len(lists) == 8
    assert [row.think_time for row in lists[:4]] == [0.0, 8.0, 0.0, 3.0]


def test_a_file_of_one_session_over_many_lines(tmp_path):
    path = _file(tmp_path, [_weka(hashes=True)], indent=2)
    assert form_of(path) == "agentic"
    whole = list(AgenticReader(path=path).rows())
    assert whole == list(AgenticReader(path=_file(tmp_path, [_weka(hashes=True)])).rows())


def test_times_of_sub_agents_count_from_their_start_or_from_the_session(tmp_path):
    relative = AgenticReader(path=_file(tmp_path, [_weka(hashes=True)]), start_every=100.0)
    times = [row.arrival_time for row in relative.rows()]
    assert times == [0.0, 2.0, 6.0, 9.0]
    path = _file(tmp_path, [_weka(hashes=True, sub_agent_at=2.0)])
    absolute = AgenticReader(path=path, start_every=100.0, absolute_times=True)
    assert [row.arrival_time for row in absolute.rows()] == times


# ----------------------------------------------------------------------- Dynamo


def _dynamo(came: float, ended: float, session: str | None, **more: object) -> dict:
    replay = {"trace_block_size": 16, "input_length": 40, "input_sequence_hashes": [1, 2, 3]}
    record: dict = {
        "schema": "dynamo.request.trace.v1",
        "event_type": "request_end",
        "event_time_unix_ms": ended,
        "request": {"request_received_ms": came, "output_tokens": 8, "replay": replay | more},
    }
    return record | ({"agent_context": {"session_id": session}} if session else {})


def test_dynamo_is_sorted_by_when_requests_came(tmp_path):
    """Its lines come when requests end; events may lie in an envelope, and others are left out."""
    records = [
        _dynamo(2_000, 2_500, "a"),
        {"event": _dynamo(1_000, 3_000, "b"), "timestamp": 1},
        {"schema": "dynamo.request.trace.v1", "event_type": "tool_end"},
        _dynamo(5_000, 5_100, "a"),
    ]
    rows = list(DynamoReader(path=_file(tmp_path, records)).rows())
    assert [row.arrival_time for row in rows] == [0.0, 1.0, 4.0]
    assert [row.session_id for row in rows] == [0, 1, 1]
    assert [length for _, length in rows[0].content] == [16, 16, 8]
    turns = list(DynamoReader(path=_file(tmp_path, records), by_session=True).rows())
    assert [(row.session_id, row.think_time) for row in turns] == [(0, 0), (1, 0), (1, 2.5)]
    assert {row.arrival_time for row in turns} == {None}


@pytest.mark.parametrize(
    ("record", "told"),
    [
        ({"schema": "dynamo.request.trace.v9"}, "schema must be dynamo.request.trace.v1"),
        (_dynamo(1, 2, None, input_sequence_hashes=[1] * 4), "must have at most 3 hashes"),
        (_dynamo(1, 2, None, input_sequence_hashes="x"), "must be a list of integers"),
    ],
)
def test_what_is_no_request_of_dynamo_is_told(record, told, tmp_path):
    with pytest.raises(ScenarioError, match=told):
        list(DynamoReader(path=_file(tmp_path, [record])).rows())


# ------------------------------------------------------------------------- OTel


def _span(trace: str, start: float, end: float, attributes: dict) -> dict:
    kinds = {int: "intValue", str: "stringValue"}
    return {
        "traceId": trace,
        "startTimeUnixNano": str(int(start * 1e9)),
        "endTimeUnixNano": str(int(end * 1e9)),
        "attributes": [
            {"key": f"gen_ai.{key}", "value": {kinds[type(value)]: value}}
            for key, value in attributes.items()
        ],
    }


def test_calls_of_models_are_told_from_other_spans(tmp_path):
    chat = {"operation.name": "chat", "usage.input_tokens": 30, "usage.output_tokens": 7}
    older = {"usage.prompt_tokens": 50, "usage.completion_tokens": 9}
    spans = [
        _span("a", 10, 12, chat),
        _span("a", 12, 15, {"operation.name": "execute_tool"}),
        _span("a", 9, 30, chat | {"operation.name": "invoke_agent"}),
        _span("a", 15, 16, older),
        _span("b", 1, 2, chat | {"conversation.id": "c", "usage.output_tokens": 0}),
        _span("b", 11, 12, chat | {"conversation.id": "c"}),
    ]
    halves = [
        {"resourceSpans": [{"scopeSpans": [{"spans": part}]}]} for part in (spans[:3], spans[3:])
    ]
    path = _file(tmp_path, halves, indent=1)
    assert form_of(path) == "otel"
    rows = list(OtelReader(path=path).rows())
    assert [(row.arrival_time, row.session_id, row.num_prompt_tokens) for row in rows] == [
        (0.0, 0, 30),
        (1.0, 1, 30),
        (5.0, 0, 50),
    ]
    turns = list(OtelReader(path=path, by_session=True).rows())
    assert [(row.session_id, row.think_time) for row in turns] == [(0, 0.0), (0, 3.0), (1, 0.0)]


# ----------------------------------------------------------- agentic Mooncake


def _row(name: str, session: str | None, waits: list[str], **more: object) -> dict:
    return {
        "request_id": name,
        "session_id": session,
        "input_length": 20,
        "output_length": 3,
        "wait_for": waits,
    } | more


def test_rows_of_a_session_wait_for_one_another(tmp_path):
    records = [
        _row("r1", "a", [], timestamp=0.0, delay=7_000),
        _row("s1", "b", ["r1"], delay=500),
        _row("r2", "a", ["r1"], delay=1_000, tool_wait_ms=250.0),
        _row("r3", "a", ["r2", "s1"]),
    ]
    path = _file(tmp_path, records)
    assert form_of(path) == "agentic_mooncake"
    rows = list(AgenticMooncakeReader(path=path).rows())
    assert [(row.session_id, row.think_time) for row in rows] == [
        (0, 0.0),
        (0, 1.25),
        (0, 0.0),
        (1, 0.0),
    ]
    assert {row.arrival_time for row in rows} == {None}


def test_a_turn_begins_with_the_answer_before_it(tmp_path):
    of_first = {"hash_ids": [1, 2], "output_hash_ids": [3], "output_length": 10}
    of_second = {"hash_ids": [1, 2, 3, 4], "input_length": 40}
    path = _file(tmp_path, [_row("r1", "a", [], **of_first), _row("r2", "a", ["r1"], **of_second)])
    first, second = AgenticMooncakeReader(path=path, hash_block_size=10).rows()
    assert first.content == second.content[:3]


def test_a_row_that_waits_for_an_earlier_one_is_a_branch_and_refused(tmp_path):
    records = [_row("r1", "a", []), _row("r2", "a", ["r1"]), _row("r3", "a", ["r1"])]
    with pytest.raises(ScenarioError, match=r":3: wait_for must name the request before it.*'r2'"):
        list(AgenticMooncakeReader(path=_file(tmp_path, records)).rows())


# ------------------------------------------------------- blocks of other sizes


@given(st.lists(st.tuples(st.integers(0, 10**6), st.integers(17, 3000)), min_size=1, max_size=6))
@examples(30)
def test_timed_trace_is_mooncake_in_seconds_and_other_blocks(tmp_path_factory, drawn):
    folder = tmp_path_factory.mktemp("trace")
    of_vllm, of_mooncake = [], []
    for at, tokens in sorted(drawn):
        row = {
            "input_length": tokens,
            "output_length": 5,
            "hash_ids": list(range(-(-tokens // 16))),
        }
        of_vllm.append(row | {"timestamp": at / 1000})
        of_mooncake.append(row | {"timestamp": at})
    path = _file(folder, of_vllm)
    assert form_of(path) == "timed_trace"
    found = list(TimedTraceReader(path=path).rows())
    other = list(MooncakeReader(path=_file(folder, of_mooncake), hash_block_size=16).rows())
    assert [row._replace(arrival_time=None) for row in found] == [
        row._replace(arrival_time=None) for row in other
    ]
    times = [row.arrival_time for row in other]
    assert [row.arrival_time for row in found] == pytest.approx(times, abs=1e-9)


def test_azure_with_images_is_read_packed(tmp_path):
    """The trace of 2025 has NumImages between time and tokens, and is packed."""
    text = (
        "TIMESTAMP,NumImages,ContextTokens,GeneratedTokens\n"
        "2024-10-15 00:00:00.032400,1,1428,5\n"
        "2024-10-15 00:00:00.132400,0,96,44\n"
    )
    path = tmp_path / "t.csv.gz"
    path.write_bytes(gzip.compress(text.encode()))
    assert form_of(str(path)) == "azure"
    rows = list(AzureReader(path=str(path)).rows())
    assert [row[:3] for row in rows] == [(1428, 5, 0.0), (96, 44, pytest.approx(0.1))]
