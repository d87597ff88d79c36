"""Azure, Mooncake and length-only readers: forms of files, refusals, facts of real traces."""

import json
from datetime import UTC, datetime
from functools import partial
from itertools import accumulate
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mist_sim import inputs
from mist_sim.errors import ScenarioError, TraceError
from mist_sim.traces import (
    TRACE_READERS,
    AzureReader,
    CsvReader,
    LengthsCsvReader,
    MooncakeReader,
    TraceReader,
    TraceRow,
)
from mist_sim.traces.workload import block_content, conversation_content, prefix_content
from tests.refusals import refused

HEADER = "TIMESTAMP,ContextTokens,GeneratedTokens"
ROWS = (
    "2023-11-16 18:15:46.6805900,374,44",
    "2023-11-16 18:15:50.9951690,396,109",
    "2023-11-16 18:16:00.0000001,7,1",
)
PARQUET = {"chat_parquet", "mist"}  # readers of binary files
EXPECTED = [TraceRow(374, 44, 0.0), TraceRow(396, 109, 4.314579), TraceRow(7, 1, 13.3194101)]


def write(folder: Path, text: str | bytes, name: str = "trace.csv") -> str:
    path = folder / name
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return str(path)


def azure(folder: Path, *rows: str, header: str = HEADER) -> AzureReader:
    return AzureReader(path=write(folder, "\n".join([header, *rows])))


def line(**changes: object) -> str:
    values = {"timestamp": 0, "input_length": 600, "output_length": 5, "hash_ids": [1, 2]}
    return json.dumps({key: value for key, value in (values | changes).items() if value != "-"})


def mooncake(folder: Path, *lines: str) -> MooncakeReader:
    return MooncakeReader(path=write(folder, "\n".join(lines), "trace.jsonl"))


# ------------------------------------------------------------------ forms of files


@pytest.mark.parametrize("between", [",", ";", "\t"])
def test_commas_semicolons_and_tabs_separate(tmp_path, between):
    text = "\n".join([HEADER, *ROWS]).replace(",", between)
    assert list(AzureReader(path=write(tmp_path, text.encode())).rows()) == EXPECTED
    broken = text.replace(f"{between}4", f'{between}"4', 1) + '\n"'
    with pytest.raises(TraceError, match="swallows|not valid CSV|columns"):
        list(AzureReader(path=write(tmp_path, broken.encode())).rows())


@pytest.mark.parametrize("end", ["\n", "\r\n"])
@pytest.mark.parametrize("last", [True, False])
@pytest.mark.parametrize("mark", [b"", b"\xef\xbb\xbf"])
def test_azure_reads_any_line_end_byte_order_mark_and_last_line(tmp_path, end, last, mark):
    text = end.join([HEADER, *ROWS]) + (end if last else "")
    reader = AzureReader(path=write(tmp_path, mark + text.encode()))
    assert list(reader.rows()) == EXPECTED
    assert list(reader.rows()) == EXPECTED  # a second call starts anew


def test_azure_finds_columns_by_name_among_others_and_skips_blank_lines(tmp_path):
    text = "GeneratedTokens, TIMESTAMP ,x,ContextTokens\n\n44,2023-11-16 18:15:46,,374\n\n"
    assert list(AzureReader(path=write(tmp_path, text)).rows()) == [TraceRow(374, 44, 0.0)]


def test_azure_reads_other_forms_of_time_and_crosses_days(tmp_path):
    stamps = [
        "2024-02-28 23:59:59",
        "2024-02-28T23:59:59.5Z",
        "2024-02-29 00:00:00.000000001+00:00",
        "2024-02-29 00:00:00.0000002",
        "2024-03-01 00:00:00.000000",
    ]
    rows = azure(tmp_path, *(f"{stamp},1,1" for stamp in stamps)).rows()
    assert [row.arrival_time for row in rows] == [0.0, 0.5, 1.000000001, 1.0000002, 86401.0]


def test_azure_streams(tmp_path):
    reader = azure(tmp_path, *ROWS, "bad")
    rows = reader.rows()
    assert [next(rows) for _ in EXPECTED] == EXPECTED
    with pytest.raises(TraceError, match="got 1"):
        next(rows)


TEXTS = (*10 * ("7", "12"), " 7", "7.0", '"7"', "07", "0", "1e1", "-1", "x", "1234567890", "7\r")


@pytest.mark.parametrize("skip", ["none", "cancelled", "bad"])
@given(
    rows=st.lists(
        st.tuples(st.sampled_from((*5 * (0, 0.5, 60), -1)), *2 * [st.sampled_from(TEXTS)])
    ),
    ends=st.sampled_from(("\n", "\r\n", "\n\n", "\r")),
)
def test_plain_rows_are_read_as_one_by_one(skip, rows, ends, tmp_path_factory):
    folder, stamps = tmp_path_factory.mktemp("rows"), list(accumulate([row[0] for row in rows]))
    moments = [f"{datetime.fromtimestamp(60 + at, UTC):%Y-%m-%d %H:%M:%S.%f}0" for at in stamps]
    own = "timestamp,prompt_tokens,output_tokens"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(inputs, "_CHUNK", 60)  # characters: a row or two together
        for form, header, times in ((AzureReader, HEADER, moments), (CsvReader, own, stamps)):
            lines = [f"{at},{row[1]},{row[2]}" for at, row in zip(times, rows, strict=True)]
            reader = form(path=write(folder, ends.join([header, *lines])), skip=skip)
            found = outcome(reader)
            patch.setattr(form, "_plain", lambda _: None)
            assert found == outcome(reader)


def outcome(reader: TraceReader) -> list[object]:
    """Return the rows of a reader, and how their reading ends."""
    found: list[object] = []
    try:
        found.extend(reader.rows())
    except ScenarioError as error:
        return [*found, str(error)]
    return [*found, reader.left_out.data]


def test_mooncake_reads_milliseconds_and_hash_ids(tmp_path):
    reader = mooncake(tmp_path, line(timestamp=27000), "", line(timestamp=27482.5, hash_ids=[]))
    assert list(reader.rows()) == [
        TraceRow(600, 5, 0.0, None, block_content([1, 2], [], 600, 5, 512)),
        TraceRow(600, 5, 0.4825, None, ()),
    ]


def test_mooncake_reads_blocks_of_any_size_and_those_of_the_answer(tmp_path):
    blocks = {"input_length": 35, "output_length": 30, "hash_ids": [7, 8]}
    path = mooncake(tmp_path, line(**blocks, output_hash_ids=[9, 10])).path
    (row,) = MooncakeReader(path=path, hash_block_size=16).rows()
    ids, sizes = zip(*row.content, strict=True)
    assert (len(set(ids)), sizes) == (4, (16, 16, 16, 16))
    path = mooncake(tmp_path, line(**blocks | {"hash_ids": [7, 8, 9]})).path
    (longer,) = MooncakeReader(path=path, hash_block_size=16).rows()
    assert longer.content == (*row.content[:2], (row.content[2][0], 3))


def test_ids_of_different_origins_never_meet():
    ids = {
        content[0][0]
        for number in (-5, -1, 0, 1, 2, 3, 4, 8, 10**9)
        for content in (
            block_content([number], [], 1, 1, 1),
            conversation_content(number, 1),
            prefix_content(number, 1),
        )
    }
    assert len(ids) == 3 * 9


def test_lengths_csv_reads_named_columns(tmp_path):
    path = write(tmp_path, "in,out\r\n 12 ,3\r\n4,5")
    reader = LengthsCsvReader(path=path, prompt_column="in", output_column="out")
    assert list(reader.rows()) == [TraceRow(12, 3), TraceRow(4, 5)]


def test_num_requests_takes_the_first_rows_and_refuses_too_few(tmp_path):
    path = azure(tmp_path, *ROWS).path
    assert list(AzureReader(path=path, num_requests=2).rows()) == EXPECTED[:2]
    assert len(list(AzureReader(path=path, num_requests=3).rows())) == 3
    with pytest.raises(ScenarioError, match=r"has 3 requests, num_requests asks for 4; lower"):
        list(AzureReader(path=path, num_requests=4).rows())


# ------------------------------------------------------------------ refusals


@pytest.mark.parametrize("name", sorted(set(TRACE_READERS)))
def test_every_reader_opens_nothing_before_the_first_row(name, tmp_path):
    reader = TRACE_READERS[name](path=str(tmp_path / "missing"))
    assert isinstance(reader, TraceReader)
    rows = reader.rows()
    with pytest.raises(ScenarioError, match=r"missing: no such file"):
        next(rows)


@pytest.mark.parametrize("name", sorted(set(TRACE_READERS) - PARQUET))
def test_every_reader_refuses_unusable_files(name, tmp_path):
    def read(text: bytes) -> None:
        list(TRACE_READERS[name](path=write(tmp_path, text)).rows())

    with pytest.raises(ScenarioError, match="is a folder"):
        list(TRACE_READERS[name](path=str(tmp_path)).rows())
    with pytest.raises(TraceError, match=r"trace\.csv:1: "):
        read(b"")
    with pytest.raises(ScenarioError, match=r"not UTF-8 text \(byte 0x8b\); decompress"):
        read(b"\x1f\x8b\x08")
    with pytest.raises(ValueError, match="num_requests must be >= 1, got 0; leave it out for all"):
        TRACE_READERS[name](path="x", num_requests=0)


@pytest.mark.parametrize("name", sorted(PARQUET))
def test_every_reader_of_parquet_refuses_unusable_files(name, tmp_path):
    with pytest.raises(ScenarioError, match="is a folder"):
        list(TRACE_READERS[name](path=str(tmp_path)).rows())
    with pytest.raises(ScenarioError, match="no such file"):
        list(TRACE_READERS[name](path="nowhere").rows())
    for text in (b"", b"PAR1", b"a,b"):
        with pytest.raises(ScenarioError, match="cannot be read as Parquet"):
            list(TRACE_READERS[name](path=write(tmp_path, text)).rows())


def test_a_missing_file_gets_a_hint(tmp_path):
    write(tmp_path, HEADER, "azure.csv")
    with pytest.raises(ScenarioError, match=r"no such file; did you mean 'azure\.csv'"):
        next(AzureReader(path=str(tmp_path / "azur.csv")).rows())
    with pytest.raises(ScenarioError, match="there is no folder"):
        next(AzureReader(path=str(tmp_path / "no" / "azure.csv")).rows())


@pytest.mark.parametrize(
    ("header", "problem"),
    [
        ("", "no header; a first line with TIMESTAMP, ContextTokens, GeneratedTokens is needed"),
        (
            "TIMESTAMP,ContextToken,GeneratedTokens",
            (
                "no column 'ContextTokens'; did you mean 'ContextToken'? The first line has "
                "3 columns; needed are TIMESTAMP, ContextTokens, Generated"
            ),
        ),
        (  # not the column of answers, which is needed itself
            "TIMESTAMP,GenerateTokens,GeneratedTokens",
            "no column 'ContextTokens'; did you mean 'GenerateTokens'?",
        ),
        ("a,b", "no column 'TIMESTAMP'. The first line has 2 columns; needed are"),
        (HEADER + ",TIMESTAMP", "more than one column 'TIMESTAMP'. The first line has 4"),
    ],
)
def test_a_wrong_header_says_what_is_needed(tmp_path, header, problem):
    with pytest.raises(TraceError) as caught:
        next(azure(tmp_path, ROWS[0], header=header).rows())
    assert caught.value.line == 1
    assert caught.value.problem.startswith(problem)


@pytest.mark.parametrize(
    ("row", "problem"),
    [
        ("2023-11-16 18:15:51.0,0,5", "ContextTokens must be a whole number of tokens from 1 to"),
        ("2023-11-16 18:15:51.0,5,0", "GeneratedTokens must be a whole number of tokens from 1 to"),
        ("2023-11-16 18:15:51.0,5,2.5", "got '2.5'"),
        ("2023-11-16 18:15:51.0,,5", "got ''"),
        ("2023-11-16 18:15:51.0,²,5", "got '²'"),
        ("2023-11-16 18:15:51.0," + "9" * 5000 + ",5", "ContextTokens must be"),
        ("2023-11-16 18:15:51.0,5", "a row must have 3 columns like the header, got 2"),
        ("2023-11-16 18:15:51.0,5,5,5", "got 4"),
        ('"2023-11-16 18:15:51.0,5,5', "not valid CSV"),
        ("16/11/2023 18:15,5,5", "TIMESTAMP must be a UTC time such as"),
        ("2023-11-16 18:15:60.0000000,5,5", "TIMESTAMP must be"),
        ("2023-11-16 18:15:5x.0000000,5,5", "TIMESTAMP must be"),
        ("2023-02-29 18:15:51.0,5,5", "got '2023-02-29 18:15:51.0'"),
        ("2023-11-16 18:15:51.0+02:00,5,5", "TIMESTAMP must be"),
        ("2023-11-16 18:15:50.9951689,5,5", "TIMESTAMP must not go backwards, got a time 1e-07 s"),
    ],
)
def test_azure_refuses_bad_row_with_file_and_line(tmp_path, row, problem):
    reader = azure(tmp_path, *ROWS[:2], row)
    with pytest.raises(TraceError) as caught:
        list(reader.rows())
    assert problem in caught.value.problem
    assert (caught.value.path, caught.value.line) == (reader.path, 4)
    assert str(caught.value).startswith(f"{reader.path}:4: ")


NO_OBJECT = "a row must be a JSON object with timestamp, input_length, output_length, hash_ids"


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("{", "not valid JSON"),
        ("[1]", "a row must be a JSON object, got [1]"),
        (line(hash_ids="-", timestamp="-"), f"{NO_OBJECT}; missing: timestamp, hash_ids"),
        (line(input_length=0), "input_length must be a whole number of tokens from 1 to"),
        (line(output_length=0), "output_length must be a whole number of tokens from 1 to"),
        (line(output_length=1.5), "got 1.5"),
        (line(input_length="7"), "got '7'"),
        (line(input_length=float("nan")), "got nan"),
        (line(timestamp=float("nan")), "timestamp must be milliseconds from 0 to 1e+14, got nan"),
        (line(timestamp=-1), "got -1"),
        (line(timestamp=1e300), "timestamp must be milliseconds from 0 to 1e+14, got 1e+300"),
        (line(timestamp=10**400), "timestamp must be milliseconds from 0 to 1e+14, got 1000"),
        (line(timestamp=999), "timestamp must not go backwards, got a time 0.001 s before"),
        (line(timestamp=2000, hash_ids=[1, "a"]), "hash_ids must be a list of integers"),
        (line(timestamp=2000, hash_ids=None), "hash_ids must be a list of integers, got None"),
        (line(timestamp=2000).replace("600", "9" * 5000), "not valid JSON"),
        (line(timestamp=2000, hash_ids=[1] * 4), "must have 1 or 2 ids for 600 tokens in blocks"),
        (line(timestamp=2000, input_length=512), "must have 1 ids for 512 tokens in blocks of 512"),
        (line(timestamp=2000, output_hash_ids=[9]), "must be the 0 blocks that 5 tokens complete"),
    ],
)
def test_mooncake_refuses_bad_row_with_file_and_line(tmp_path, text, problem):
    reader = mooncake(tmp_path, line(timestamp=1000), text)
    with pytest.raises(TraceError) as caught:
        list(reader.rows())
    assert problem in caught.value.problem
    assert (caught.value.path, caught.value.line) == (reader.path, 2)


@pytest.mark.parametrize("row", ["0,1", "1,0", "1,-2", "a,1", "1.5,1", "1,NaN"])
def test_lengths_csv_refuses_a_bad_row_with_file_and_line(tmp_path, row):
    path = write(tmp_path, f"num_prefill_tokens,num_decode_tokens\n5,5\n{row}\n")
    with pytest.raises(TraceError, match=r"trace\.csv:3: num_\w+ must be a whole number"):
        list(LengthsCsvReader(path=path).rows())


test_columns_differ = refused(
    lambda make: make(path="x"),
    (partial(LengthsCsvReader, prompt_column="a", output_column="a"), "output_column must differ"),
    (partial(CsvReader, prompt_column="timestamp"), "columns must differ"),
    error=ValueError,
)


# ------------------------------------------------------------------ facts of real traces


@pytest.mark.parametrize(
    ("name", "num_rows", "last", "prompt_tokens", "output_tokens"),
    [
        ("conv", 19_366, 3501.721937, 22_361_870, 4_088_665),
        ("code", 8_819, 3435.948056, 18_059_974, 245_896),
    ],
)
def test_the_azure_traces(shared, name, num_rows, last, prompt_tokens, output_tokens):
    path = shared(f"traces/AzureLLMInferenceTrace_{name}.csv")
    rows = list(AzureReader(path=str(path)).rows())
    assert len(rows) == num_rows
    assert (rows[0].arrival_time, rows[-1].arrival_time) == (0.0, last)
    assert sum(row.num_prompt_tokens for row in rows) == prompt_tokens
    assert sum(row.num_output_tokens for row in rows) == output_tokens


def test_the_mooncake_trace(shared):
    path = shared("traces/mooncake_synthetic_trace.jsonl")
    rows = list(MooncakeReader(path=str(path)).rows())
    assert len(rows) == 3_993
    assert (rows[0].arrival_time, rows[-1].arrival_time) == (0.0, 1022.025)
    assert sum(row.num_prompt_tokens for row in rows) == 61_194_628
    assert sum(row.num_output_tokens for row in rows) == 595_432
    assert max(row.num_prompt_tokens for row in rows) == 191_378
    for row in rows:
        assert len(row.content) == -(-row.num_prompt_tokens // 512)
        assert sum(tokens for _, tokens in row.content) == row.num_prompt_tokens


def test_the_blocks_of_a_vllm_run(shared):
    path = shared("measurements/vllm-0.19-rtxpro6000-llama3.1-8b/workload_block16.jsonl")
    rows = list(MooncakeReader(path=str(path), hash_block_size=16).rows())
    assert len(rows) == 300
    for row in rows:
        total = row.num_prompt_tokens + row.num_output_tokens
        assert sum(tokens for _, tokens in row.content) == total // 16 * 16


def test_the_arxiv_lengths(shared):
    path = shared("traces/arxiv_summarization_stats_llama2_tokenizer_filtered_v2.csv")
    rows = list(LengthsCsvReader(path=str(path)).rows())
    assert len(rows) == 28_257
    assert sum(row.num_prompt_tokens for row in rows) == 73_131_321
    assert sum(row.num_output_tokens for row in rows) == 8_234_948


def test_a_log_of_ones_own_is_read_by_the_names_of_its_columns(tmp_path):
    path = tmp_path / "gateway.csv"
    path.write_text(
        "user,out,ts_ms,in\na,80,1764000000000,900\nb,200,1764000000350,420\na,1,1764000001000,5\n"
    )
    names = {"prompt_column": "in", "output_column": "out", "session_column": "user"}
    rows = CsvReader(path=str(path), time_column="ts_ms", time_unit="ms", **names).rows()
    assert list(rows) == [
        TraceRow(900, 80, 0.0, 0),
        TraceRow(420, 200, 0.35, 1),
        TraceRow(5, 1, 1.0, 0),
    ]


def test_a_log_of_json_lines_is_read_by_its_keys(tmp_path):
    path = tmp_path / "calls.jsonl"
    path.write_text(
        '\n{"timestamp": "2026-07-21T06:14:07Z", "usage": {"in": 9, "out": 8}, "status": 200}\n'
        '{"timestamp": "2026-07-21T06:14:09Z", "usage": {"in": 4, "out": null}, "status": 500}\n'
        '{"timestamp": "2026-07-21T06:14:10Z", "usage": null}\n'
        '{"timestamp": "2026-07-21T06:14:11Z", "usage": {"in": 3, "out": 2}, "status": 499}\n'
    )
    names = {"prompt_column": "usage.in", "output_column": "usage.out", "time_unit": "date"}
    source = CsvReader(path=str(path), skip="bad", **names)
    assert list(source.rows()) == [TraceRow(9, 8, 0.0, None), TraceRow(3, 2, 4.0, None)]
    told = source.left_out.sentence("calls.jsonl")
    assert "2 of 4 rows: 1 without an answer (first in line 3)" in told
    assert "1 row of calls.jsonl with status 499" in told
    with pytest.raises(TraceError, match=r":2: no key 'prompt_tokens'.* 3 keys; needed are"):
        list(CsvReader(path=str(path)).rows())


def test_calls_whose_client_left_are_counted(tmp_path):
    path = tmp_path / "log.csv"
    path.write_text(
        "timestamp,status,prompt_tokens,output_tokens\n0,200,9,8\n1,499,4,2\n2,503,1,0\n3,499,1,0\n"
    )
    source = CsvReader(path=str(path), skip="cancelled")
    assert len(list(source.rows())) == 2
    told = source.left_out.sentence("log.csv")
    assert "2 of 4 rows: 2 without an answer" in told
    assert "1 row of log.csv with status 499 (the client left) count" in told


def test_statuses_of_calls_that_ended_early_are_counted_by_kind(tmp_path):
    statuses = ["ok", "cancelled", "CANCELED", "aborted", "client_closed", "error", "timeout"]
    statuses += ["503", "499", "200", "stop"]
    rows = "".join(f"{time},9,8,{status}\n" for time, status in enumerate(statuses))
    path = tmp_path / "log.csv"
    path.write_text(f"timestamp,prompt_tokens,output_tokens,status\n{rows}10.5,9,0,cancelled\n")
    source = CsvReader(path=str(path), skip="cancelled")
    assert len(list(source.rows())) == len(statuses)
    told = source.left_out.sentence("log.csv")
    assert "1 of 12 rows: 1 without an answer" in told
    assert (
        "5 rows of log.csv with status cancelled, CANCELED, aborted, client_closed, ... (the "
        "client left) and 3 rows of log.csv with status error, timeout, 503 (the call failed) "
        "count as whole calls"
    ) in told


def test_a_log_of_ones_own_may_have_dates(tmp_path):
    path = tmp_path / "log.csv"
    path.write_text(
        "timestamp,prompt_tokens,output_tokens\n"
        "2026-03-01T12:00:00.250Z,9,8\n2026-03-01T13:00:01+01:00,4,2\n2026-03-01 12:00:02Z,1,1\n"
    )
    rows = list(CsvReader(path=str(path), time_unit="date").rows())
    assert [row.arrival_time for row in rows] == pytest.approx([0.0, 0.75, 1.75], abs=1e-6)
    with pytest.raises(TraceError, match="time_unit: date reads dates"):
        list(CsvReader(path=str(path)).rows())


@pytest.mark.parametrize(("zones", "are"), [(("Z", ""), "no"), (("", "+01:00"), "a")])
def test_dates_with_and_without_a_time_zone_are_not_mixed(tmp_path, zones, are):
    path = tmp_path / "log.csv"
    rows = [f"2026-03-01T12:00:0{second}{zone},9,8" for second, zone in enumerate(zones)]
    path.write_text("\n".join(["timestamp,prompt_tokens,output_tokens", *rows]))
    with pytest.raises(TraceError, match=f"csv:3: timestamp: .* has {are} time zone"):
        list(CsvReader(path=str(path), time_unit="date").rows())


@pytest.mark.parametrize("time", ["", "yesterday", "-1", "nan", "2026-13-01T00:00:00Z"])
@pytest.mark.parametrize("unit", ["s", "ms", "date"])
def test_a_bad_time_of_a_log_of_ones_own_is_refused_with_its_line(tmp_path, time, unit):
    path = tmp_path / "log.csv"
    path.write_text(f"timestamp,prompt_tokens,output_tokens\n{time},9,8\n")
    with pytest.raises(TraceError, match=r"log\.csv:2: timestamp must be"):
        list(CsvReader(path=str(path), time_unit=unit).rows())
