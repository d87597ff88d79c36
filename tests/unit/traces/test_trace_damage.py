"""Every reader of traces on damaged files: it says where, what must hold, and what to do."""

import gzip
import re
from pathlib import Path

import pyarrow as pa
import pytest
from pyarrow import parquet

from mist_sim import ScenarioError
from mist_sim.bounds import LINE_LENGTH
from mist_sim.cli.app import BAD_INPUT
from mist_sim.traces import TRACE_READERS
from tests.commands import exit_code
from tests.contract.test_registered_plugins import BESIDE, PARQUET_TRACES, TRACES

VALUES = {  # of each reader: a number of tokens and a time, as its example has them
    "azure": ("396,109", "{},109", "2023-11-16 18:15:50.9951690", "{}"),
    "mooncake": ('"input_length": 600', '"input_length": {}', '"timestamp": 3052', None),
    "timed_trace": ('"input_length": 40', '"input_length": {}', '"timestamp": 3052', None),
    "lengths_csv": ("2048,1", "{},1", None, None),
    "csv": ("2048,1", "{},1", "15.25,", "{},"),
    "burstgpt": ("1087,230", "{},230", "45.5,,", "{},,"),
    "vidur": ("547,248", "{},248", "1.5,", "{},"),
    "splitwise": (",1,20,4", ",1,{},4", "0.5,1,", "{},1,"),
    "llmservingsim": (
        '"input_toks": 20',
        '"input_toks": {}',
        '"arrival_time_ns": 1000000007',
        None,
    ),
    "agentic": ('"in": 13', '"in": {}', '"t": 3', None),
    "agentic_mooncake": ('"input_length": 1112', '"input_length": {}', '"delay": 100.0', None),
    "dynamo": (
        '"input_length": 40',
        '"input_length": {}',
        '"request_received_ms": 1700000003052',
        None,
    ),
    "otel": (
        '"intValue": "97"',
        '"intValue": {}',
        '"startTimeUnixNano": "1700000003000000000"',
        None,
    ),
    "servegen": ("0,0,0.02,1.5", "0,0,{},1.5", ",1,0,0.01", ",1,{},0.01"),
    "ragpulse": ('"input_length": 20', '"input_length": {}', None, None),
    "sharegpt": (None, None, None, None),
}
WRONG = {"nan": "NaN", "huge": "1e308", "negative": "-1", "digits": "9" * 10**7}
"""Values that no reader takes; the last is longer than a line may be."""


def _path(folder: Path, name: str) -> Path:
    for beside, text in BESIDE.get(name, {}).items():
        (folder / beside).write_text(text)
    path = folder / ("t.parquet" if name in PARQUET_TRACES else "t")
    if name in PARQUET_TRACES:
        parquet.write_table(pa.Table.from_pylist(PARQUET_TRACES[name]), path)
    else:
        path.write_text(TRACES[name])
    return path


def _refusal(name: str, path: Path) -> str:
    with pytest.raises(ScenarioError) as caught:
        list(TRACE_READERS[name](path=str(path)).rows())
    message = str(caught.value)
    assert str(path) in message
    assert len(message) < 1_000
    return message


def _damaged(how: str, whole: bytes) -> bytes:
    return {
        "cut in a row": whole[: len(whole) - 9],
        "cut in the header": whole[:9],
        "empty": b"",
        "packed": gzip.compress(whole),
        "packed and cut": gzip.compress(whole)[:-12],
        "utf-16": whole.decode("latin-1").encode("utf-16"),
        "binary": bytes(range(128, 256)) * 8,
    }[how]


@pytest.mark.parametrize("name", [*TRACES, *PARQUET_TRACES])
@pytest.mark.parametrize(
    "how", ["cut in a row", "cut in the header", "empty", "packed", "utf-16", "binary"]
)
def test_a_file_that_is_damaged_as_a_whole(name, how, tmp_path):
    path = _path(tmp_path, name)
    path.write_bytes(_damaged(how, path.read_bytes()))
    if how == "cut in a row" and name in ("lengths_csv", "servegen", "burstgpt", "vidur"):
        pytest.skip("what is left of the last row has values enough, or is another row")
    if how == "cut in a row" and name in ("azure", "splitwise"):
        assert re.search(r":\d+: ", _refusal(name, path))
        return
    _refusal(name, path)


@pytest.mark.parametrize("name", TRACES)
def test_a_packed_file_that_is_cut(name, tmp_path):
    path = _path(tmp_path, name)
    packed = path.with_name("t.gz")
    packed.write_bytes(_damaged("packed and cut", path.read_bytes()))
    assert "cannot be read" in _refusal(name, packed)
    packed.write_bytes(path.read_bytes())
    assert "Not a gzipped file" in _refusal(name, packed)


@pytest.mark.parametrize("name", TRACES)
def test_a_file_without_line_ends(name, tmp_path):
    path = _path(tmp_path, name)
    with path.open("ab") as file:
        file.truncate(path.stat().st_size + 2**40)  # zeros, which take no room on a disk
    said = _refusal(name, path)
    assert "a line must have <= " in said or r"got '\x00'" in said


@pytest.mark.parametrize(
    ("what", "wrong"), [(what, wrong) for what in ("tokens", "time") for wrong in WRONG][:-1]
)
@pytest.mark.parametrize("name", VALUES)
def test_a_value_that_cannot_be(name, wrong, what, tmp_path):
    old, new, old_time, new_time = VALUES[name]
    if what == "time":
        old = old_time
        new = new_time or (old_time and re.sub(r'"?[\d.]+"?$', "{}", old_time))
    if old is None:
        pytest.skip("its rows have no such value")
    path = _path(tmp_path, name)
    text = path.read_text()
    assert old in text
    before = text[: text.index(old)]
    path.write_text(text.replace(old, new.replace("{}", WRONG[wrong]), 1))
    message = _refusal(name, path)
    line = before.count("\n") + 1
    assert message.startswith(f"{path}:{line}: ")
    if wrong == "digits":
        assert "digits" in message or f"<= {LINE_LENGTH}" in message or "<= 16777216" in message
    else:
        assert " must be " in message
        assert WRONG[wrong].lower() in message.lower().replace("e+", "e")
        assert re.search("; (correct|remove|complete|sort|set|leave)", message), message


@pytest.mark.parametrize("name", PARQUET_TRACES)
def test_parquet_with_columns_of_another_kind(name, tmp_path):
    path = _path(tmp_path, name)
    column = {"mist": "num_prompt_tokens", "chat_parquet": "conversation"}[name]
    for value in (float("nan"), 1e308, -1, "9" * 10**6, None):
        rows = [dict(row, **{column: value}) for row in PARQUET_TRACES[name]]
        parquet.write_table(pa.Table.from_pylist(rows), path)
        message = _refusal(name, path)
        assert message.startswith(f"{path}:1: ")
        assert " must be " in message
        assert re.search("; (correct|leave)", message)


def test_a_header_in_the_middle_is_named(tmp_path, capsys):
    path = tmp_path / "joined.csv"
    head, row = "timestamp,prompt_tokens,output_tokens\n", "{},100,20\n"
    path.write_text(head + row.format(0) + head + row.format(1), "utf-8")
    afd = ["afd", str(path), "--slots", "64", "--coefficients", "deepseek-v3-ascend-910c"]
    for verb in (["trace", "inspect", str(path)], afd):
        assert exit_code(*verb) == BAD_INPUT
        said = capsys.readouterr().err
        assert "joined.csv:3: the row must not be the header again" in said
        assert "--set skip=bad leaves out 1 of 3 rows" in said
