"""The ShareGPT reader: pairs, estimated lengths, streaming, refusals."""

import json
from pathlib import Path
from typing import Any

import pytest

from mist_sim.errors import TraceError
from mist_sim.traces import ShareGptReader, TraceRow
from mist_sim.traces.workload import conversation_content


def talk(*messages: tuple[str, str], name: str = "a") -> dict[str, Any]:
    turns = [{"from": role, "value": value} for role, value in messages]
    return {"id": name, "conversations": turns}


def reader(folder: Path, content: object, **parameters: Any) -> ShareGptReader:
    path = folder / "talks.json"
    path.write_text(content if isinstance(content, str) else json.dumps(content, indent=1))
    return ShareGptReader(path=str(path), **parameters)


def lengths(source: ShareGptReader) -> list[tuple[int, int, int | None]]:
    return [(r.num_prompt_tokens, r.num_output_tokens, r.session_id) for r in source.rows()]


TWO_TALKS = [
    talk(("human", "abcd"), ("gpt", "ef"), ("human", "g"), ("gpt", "hij")),
    talk(("user", "k"), ("assistant", "l"), name="b"),
]


def test_a_prompt_is_the_conversation_so_far(tmp_path):
    rows = reader(tmp_path, TWO_TALKS, chars_per_token=1)
    assert lengths(rows) == [(4, 2, 0), (7, 3, 0), (1, 1, 1)]
    assert next(rows.rows()) == TraceRow(4, 2, None, 0, conversation_content(0, 6))


def test_turns_of_conversation_are_one_content_that_grows(tmp_path):
    contents = [row.content for row in reader(tmp_path, TWO_TALKS, chars_per_token=1).rows()]
    ((first, short),), ((second, long),), ((other, _),) = contents
    assert first == second != other
    assert (short, long) == (6, 10)


def test_lengths_are_rounded_up(tmp_path):
    assert lengths(reader(tmp_path, TWO_TALKS, chars_per_token=2.5))[1] == (3, 2, 0)
    text = [talk(("human", "x" * 394), ("gpt", "y" * 395))]
    assert lengths(reader(tmp_path, text)) == [(100, 101, 0)]  # 3.94 characters a token


def test_only_answers_to_a_user_are_requests(tmp_path):
    talks = [
        talk(("gpt", "hello")),
        talk(("system", "12"), ("gpt", "345"), ("human", "6"), ("system", "7"), ("gpt", "8")),
        talk(("human", "1"), ("human", "2"), ("gpt", "3"), ("gpt", "4")),
        {"conversations": []},
    ]
    assert lengths(reader(tmp_path, talks, chars_per_token=1)) == [(7, 1, 1), (2, 1, 2)]


@pytest.mark.parametrize("chunk", [1, 2, 7, 100])
def test_reading_in_pieces_changes_nothing(tmp_path, monkeypatch, chunk):
    awkward = [talk(("human", 'a"\\ \n é 😀 {[,'), ("gpt", "]}" * 40)), *TWO_TALKS]
    source = reader(tmp_path, awkward, chars_per_token=1)
    whole = lengths(source)
    monkeypatch.setattr("mist_sim.traces.readers.json_stream._CHUNK", chunk)
    assert lengths(source) == whole


def test_num_requests_counts_pairs(tmp_path):
    assert lengths(reader(tmp_path, TWO_TALKS, num_requests=1, chars_per_token=1)) == [(4, 2, 0)]


def test_empty_answers_are_refused_or_left_out(tmp_path):
    talks = [talk(("human", "ab"), ("gpt", ""), ("human", "c"), ("gpt", "d"))]
    with pytest.raises(TraceError, match=r":2: conversation 'a', message 1: .*; skip: cancelled"):
        lengths(reader(tmp_path, talks))
    assert lengths(reader(tmp_path, talks, chars_per_token=1, skip="cancelled")) == [(3, 1, 0)]


@pytest.mark.parametrize(
    ("content", "line", "problem"),
    [
        ("{}", 1, "the file must be a JSON list of conversations, got '{'"),
        ("\n\n7", 3, "the file must be a JSON list"),
        ("[]", 1, "the file has no requests"),
        ("[\n 5]", 2, "a conversation must be a JSON object, got '5'"),
        ('[\n{"a": 1,\n "b": x}]', 3, "not valid JSON (Expecting value)"),
        ('[{"conversations": []', 1, "not valid JSON"),
        ('[{"id": "a', 1, "not valid JSON (Unterminated string"),
        ('[{"conversations": []} {}]', 1, "conversations must be separated by a comma, got '{'"),
        ('[{"conversations": []}', 1, "separated by a comma, got 'the end of the file'"),
        ('[{"conversations": []},]', 1, "a conversation must be a JSON object, got ']'"),
        ('[{"conversations": []}]\n[]', 2, "nothing may follow the list"),
        ('[{"id": 1, "turns": []}]', 1, 'must have a list "conversations". Correct the file'),
        ('[{"conversations": [7]}]', 1, 'message 0: must have the strings "from" and "value"'),
        ('[{"conversations": [{"from": "gpt"}]}]', 1, "message 0: must have the strings"),
        ([talk(("human", "a"), ("gtp", "b"))], 2, "got 'gtp'; did you mean 'gpt'?"),
        ([talk(("human", "a"), ("gpt", "b")), talk(("you", "c"))], 15, "got 'you'"),
    ],
)
def test_bad_files_are_refused_with_file_and_line(tmp_path, content, line, problem):
    source = reader(tmp_path, content)
    with pytest.raises(TraceError) as caught:
        lengths(source)
    assert problem in caught.value.problem
    assert (caught.value.path, caught.value.line) == (source.path, line)


def test_broken_json_is_found_without_reading_on(tmp_path, monkeypatch):
    source = reader(tmp_path, '[{"a": x' + " " * 1000 + "}]")
    monkeypatch.setattr("mist_sim.traces.readers.json_stream._CHUNK", 100)
    monkeypatch.setattr("mist_sim.traces.readers.json_stream._Cursor._read_more", _read_once)
    with pytest.raises(TraceError, match="Expecting value"):
        lengths(source)


def _read_once(cursor: Any) -> bool:
    assert not cursor._text, "read on after a mistake that no more text can repair"
    cursor._text = cursor._file.read(100)
    return True


@pytest.mark.parametrize("value", [0, -1, float("nan"), float("inf")])
def test_chars_per_token_must_be_positive(value):
    with pytest.raises(ValueError, match="chars_per_token must be finite and > 0, got"):
        ShareGptReader(path="x", chars_per_token=value)


def test_the_sample_file(shared):
    rows = list(ShareGptReader(path=str(shared("traces/sharegpt_format_sample.json"))).rows())
    assert len(rows) == 1_000
    assert {row.session_id for row in rows} == set(range(500))
    assert all(row.arrival_time is None for row in rows)
