"""Forms of traces: facts of each reader, recognition, damage, and the way there and back."""

import json
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyarrow import parquet

from mist_sim import Scenario, ScenarioError, simulate
from mist_sim.errors import MistError
from mist_sim.rng import Streams
from mist_sim.traces import (
    BurstGptReader,
    ChatParquetReader,
    LlmServingSimReader,
    MistReader,
    Rows,
    TraceArrivals,
    TraceRow,
    Workload,
)
from mist_sim.traces.readers.opening import form_of, reader_of
from mist_sim.traces.statistics import statistics
from mist_sim.traces.workload import block_content, conversation_content, prefix_content
from mist_sim.traces.writers import WRITERS
from tests.commands import mist
from tests.contract.test_registered_plugins import PARQUET_TRACES, TRACES
from tests.effort import examples


def _write(folder: Path, name: str) -> str:
    if name in TRACES:
        path = folder / "trace"
        path.write_text(TRACES[name])
    else:
        path = folder / "trace.parquet"
        parquet.write_table(pa.Table.from_pylist(PARQUET_TRACES[name]), path)
    return str(path)


def _text(folder: Path, text: str) -> str:
    path = folder / "t"
    path.write_text(text)
    return str(path)


# ---------------------------------------------------------------------- readers


def test_burstgpt_has_sessions_where_the_file_has_them(tmp_path):
    rows = list(BurstGptReader(path=_write(tmp_path, "burstgpt")).rows())
    assert rows == [TraceRow(472, 18, 0.0, 0), TraceRow(1087, 230, 40.5), TraceRow(500, 7, 40.5, 0)]
    older = "Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type\n5,x,4,2,6,API\n"
    rows = list(BurstGptReader(path=_text(tmp_path, older)).rows())
    assert rows == [TraceRow(4, 2, 0.0)]


def test_burstgpt_leaves_out_what_failed_if_asked_to(tmp_path):
    text = "Timestamp,Model,Request tokens,Response tokens\n5,x,4,0\n7,x,4,2\n9,x,5,3\n"
    path = _text(tmp_path, text)
    with pytest.raises(ScenarioError, match="Response tokens must be .*; skip: cancelled"):
        list(BurstGptReader(path=path).rows())
    rows = list(BurstGptReader(path=path, skip="cancelled").rows())
    assert rows == [TraceRow(4, 2, 0.0), TraceRow(5, 3, 2.0)]


def test_equal_tokens_are_equal_blocks(tmp_path):
    first, second, third = LlmServingSimReader(path=_write(tmp_path, "llmservingsim")).rows()
    assert first.content == second.content
    assert len(first.content) == 2  # one block of the prompt, one that the answer completes
    assert third.content[0] == first.content[0]
    assert third.content[1] != first.content[1]
    assert third.arrival_time == 1.0


def test_sessions_wait_for_their_tools(tmp_path):
    call = {"input_toks": 5, "output_toks": 2, "tool_duration_ns": 3_000_000_000}
    lines = [{"session_id": "a", "arrival_time_ns": 0, "sub_requests": [call, call]}] * 2
    path = _text(tmp_path, "".join(json.dumps(each) + "\n" for each in lines))
    rows = list(LlmServingSimReader(path=path).rows())
    assert [(row.session_id, row.think_time) for row in rows] == [(0, 0), (0, 3), (1, 0), (1, 3)]
    assert {row.arrival_time for row in rows} == {None}
    mixed = json.dumps(lines[0]) + "\n" + TRACES["llmservingsim"]
    with pytest.raises(ScenarioError, match="a request after a session; split the file"):
        list(LlmServingSimReader(path=_text(tmp_path, mixed)).rows())


def test_chats_are_read_in_turns(tmp_path):
    chat = [
        {"role": "user", "content": "a" * 8},
        {"role": "assistant", "content": "b" * 4},
        {"role": "user", "content": "c" * 4},
        {"role": "assistant", "content": "d" * 40},
        {"role": "user", "content": "no answer"},
    ]
    path = str(tmp_path / "chats.parquet")
    parquet.write_table(pa.Table.from_pylist([{"conversation": chat, "other": 1}]), path)
    rows = list(ChatParquetReader(path=path, chars_per_token=4.0).rows())
    assert [(row.num_prompt_tokens, row.num_output_tokens) for row in rows] == [(2, 1), (4, 10)]
    assert rows[0].content[0][0] == rows[1].content[0][0]  # a later turn repeats the earlier one


# ------------------------------------------------------------------ recognition


@pytest.mark.parametrize("name", [*TRACES, *PARQUET_TRACES])
def test_every_form_is_recognised(name, tmp_path):
    assert form_of(_write(tmp_path, name)) == name


@pytest.mark.parametrize("text", ["", "\n\n", "a,b\n1,2\n", "{}\n", '{"a": 1}\n', '"x', "\x00"])
def test_other_files_are_told(text, tmp_path):
    with pytest.raises(ScenarioError, match="has no form that is known"):
        form_of(_text(tmp_path, text))


@pytest.mark.parametrize("name", [*TRACES, *PARQUET_TRACES])
def test_damaged_files_are_told_in_a_sentence(name, tmp_path):
    """Twenty damaged variants of each: cut, turned, doubled bytes, another encoding, packed."""
    path = Path(_write(tmp_path, name))
    whole, rng = path.read_bytes(), Streams(len(name)).generator("damage")
    for _ in range(20):
        at = int(rng.integers(len(whole)))
        damaged = (
            whole[:at],
            whole[:at] + bytes([int(rng.integers(256))]) + whole[at + 1 :],
            whole[:at] + whole[at // 2 :],
            whole.decode("latin-1").encode("utf-16"),
            whole.replace(b"1", b"-1").replace(b"2", b"NaN"),
            whole.replace(b"1", b"9" * 400),
        )
        path.write_bytes(damaged[int(rng.integers(len(damaged)))])
        try:
            rows = list(reader_of(str(path), name).rows())
        except MistError as error:
            assert 20 < len(str(error)) < 2000  # noqa: PT017
        else:
            assert all(row.num_prompt_tokens >= 1 for row in rows)


# -------------------------------------------------------------- there and back


def test_a_run_replayed_from_its_own_table_gives_the_same_records(tmp_path):
    overrides = {"workload.lengths.num_requests": 300}
    first = simulate(Scenario.load("demo", overrides=overrides))
    first.save(tmp_path / "run")
    replay = Scenario.load(
        "demo",
        overrides={
            "workload.lengths": None,
            "workload.trace": {"type": "mist", "path": str(tmp_path / "run/requests.parquet")},
            "workload.arrivals": {"type": "trace"},
        },
    )
    start = first.requests["arrival_time"].iloc[0]
    again, table = simulate(replay).requests, first.requests
    for column in ("num_prompt_tokens", "num_output_tokens", "status", "num_preemptions"):
        assert again[column].equals(table[column])
    for column in ("ttft", "tpot", "e2el", "queued"):
        assert again[column].to_numpy() == pytest.approx(table[column].to_numpy(), abs=1e-9)
    assert again["arrival_time"].to_numpy() == pytest.approx(table["arrival_time"] - start)


tokens = st.integers(1, 5000)
moments = st.lists(st.integers(0, 10**9), min_size=1, max_size=12).map(sorted)


@given(moments, st.tuples(tokens, tokens), st.booleans())
@examples(60)
@pytest.mark.parametrize("form", list(WRITERS))
def test_what_is_written_reads_back(form, tmp_path_factory, ticks, pair, has_blocks):
    """Times are multiples of 100 ns, which all forms hold; Mooncake's hold blocks, too."""
    prompt, output = pair
    size = 16 if form == "timed_trace" else 512
    ids = list(range(-(-prompt // size)))
    content = block_content(ids, (), prompt, output, size) if has_blocks else ()
    first = ticks[0]
    rows = [TraceRow(prompt, output, (at - first) / 1e7, content=content) for at in ticks]
    path = tmp_path_factory.mktemp("trace") / "t"
    path.write_text("".join(WRITERS[form](rows)))
    if form != "timed_trace" or (has_blocks and prompt > 16):  # else its keys are Mooncake's
        assert form_of(str(path)) == form
    back = list(reader_of(str(path), form).rows())
    assert [row.arrival_time for row in back] == pytest.approx(
        [row.arrival_time for row in rows], abs=1e-9
    )
    assert [row[:2] for row in back] == [row[:2] for row in rows]
    if form in ("mooncake", "timed_trace"):
        assert [row.content for row in back] == [row.content for row in rows]


TURN = conversation_content(0, 2)


def test_a_row_without_what_form_needs_is_told():
    with pytest.raises(ScenarioError, match="the trace has no times"):
        list(WRITERS["azure"]([TraceRow(1, 1)]))
    prefix, turn = (TraceRow(1, 1, 0.0, content=c) for c in (prefix_content(0, 1), TURN))
    block = TraceRow(1, 1, 0.0, content=block_content([7], [], 1, 1, 16))
    for rows in [prefix], [turn, block], [block, turn], [turn, prefix]:
        with pytest.raises(ScenarioError, match="--without-prefixes"):
            list(WRITERS["mooncake"](rows))


# ------------------------------------------------------------------------- rate


@given(moments.filter(lambda at: at[-1] > at[0]), st.floats(0.01, 1e3))
@examples(60)
def test_a_rate_is_what_the_replay_has(ticks, rate):
    rows = Rows([TraceRow(1, 1, (at - ticks[0]) / 1e3) for at in ticks])
    sent = [r.arrival_time for r in Workload(rows, TraceArrivals(rate=rate)).requests(Streams(0))]
    assert (len(sent) - 1) / sent[-1] == pytest.approx(rate)


def test_a_rate_needs_times_and_no_speedup():
    with pytest.raises(ValueError, match="speedup must be left out where rate is given"):
        TraceArrivals(rate=2.0, speedup=3.0)
    at_once = Workload(Rows([TraceRow(1, 1, 0.0)] * 3), TraceArrivals(rate=2.0))
    with pytest.raises(ScenarioError, match="rate needs a trace whose requests come at different"):
        list(at_once.requests(Streams(0)))


# ------------------------------------------------------------------- statistics


def test_statistics_of_a_small_trace():
    ids = [block_content([0, n], (), 1024, 8, 512) for n in (1, 2, 1)]
    rows = [
        TraceRow(1024, 8, 2.0 * n, session_id=n % 2, content=each, model="m")
        for n, each in enumerate(ids)
    ]
    found = statistics(iter(rows))
    assert found["known_prompt_share"] == pytest.approx((0 + 512 + 1024) / 3072)
    assert (found["rate"], found["cv"], found["seconds"]) == (0.5, 0.0, 4.0)
    assert (found["sessions"], found["turns_a_session"], found["models"]) == (2, 1.5, {"m": 3})
    assert found["prompt_tokens"]["total"] == 3072


# -------------------------------------------------------------------- the verb


def test_inspect_and_convert(tmp_path, capsys):
    path = _write(tmp_path, "azure")
    mist("trace", "inspect", path)
    out = capsys.readouterr().out
    assert "azure" in out
    assert "requests" in out
    mist("trace", "inspect", path, "--json", "--num-requests", 2)
    assert json.loads(capsys.readouterr().out)["num_requests"] == 2
    mist("trace", "convert", path, "--to", "mooncake", "--out", tmp_path / "m.jsonl")
    assert list(reader_of(str(tmp_path / "m.jsonl")).rows()) == list(reader_of(path).rows())
    mist("trace", "convert", path, "--to", "mooncake", "--out", tmp_path / "m.jsonl", code=2)
    assert "is there already" in capsys.readouterr().err


def test_lengths_get_times_by_a_rate(tmp_path, capsys):
    path = _write(tmp_path, "lengths_csv")
    out = tmp_path / "a.csv"
    mist("trace", "convert", path, "--to", "azure", "--out", out, code=2)
    assert "the trace has no times" in capsys.readouterr().err
    assert not out.exists()
    mist("trace", "convert", path, "--to", "azure", "--out", out, "--rate", 4)
    assert len(list(reader_of(str(out)).rows())) == 2


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["convert", "{file}", "--to", "azur", "--out", "x"], "--to must be one of azure"),
        (["convert", "{file}", "--to", "azure", "--out", "x", "--rate", "-1"], "--rate must be"),
        (["inspect", "{file}", "--num-requests", "0"], "--num-requests must be >= 1"),
        (["inspect", "{file}", "--format", "azur"], "azure"),
        (["inspect", "nowhere"], "nowhere: no such file"),
    ],
)
def test_what_is_refused(words, told, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    path = _write(tmp_path, "azure")
    mist("trace", *(word.replace("{file}", path) for word in words), code=2)
    assert told in capsys.readouterr().err
    assert not Path("x").exists()


def test_a_run_with_models_names_them_again(tmp_path):
    rows = [dict(row, model="m") for row in PARQUET_TRACES["mist"]]
    path = str(tmp_path / "requests.parquet")
    parquet.write_table(pa.Table.from_pylist(rows), path)
    reader = MistReader(path=path)
    assert reader.names_models
    assert list(reader.models()) == [(1, "m")]
