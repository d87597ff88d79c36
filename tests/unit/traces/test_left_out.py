"""Rows of a trace that cannot be read: `skip` in every reader, one refusal, one count."""

import json
from typing import Any

import pytest

from mist_sim import Scenario, ScenarioError, simulate
from mist_sim.core.result_warnings import LEFT_OUT
from mist_sim.errors import TraceError
from mist_sim.testing import check_trace_reader
from mist_sim.traces import TRACE_READERS, CsvReader, OtelReader
from mist_sim.traces.readers.opening import reader_of
from tests.contract.test_registered_plugins import TRACES

LOG = """timestamp,prompt_tokens,output_tokens
1000000,10,5
2000000,10,0
2000000,10,
2500000,abc,4
2600000,10
2700000,512.0,7.0
2700000,5,7
"""
BY_LINE = sorted(set(TRACES) - {"sharegpt", "otel", "agentic", "servegen", "ragpulse"})


@pytest.fixture
def log(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "log.csv").write_text(LOG)
    return "log.csv"


def test_a_refusal_tells_all_kinds_of_faults(log):
    with pytest.raises(TraceError) as caught:
        list(CsvReader(path=log, time_unit="us").rows())
    no_answer, no_prompt, no_width, remedy = str(caught.value).splitlines()
    assert no_answer.startswith("log.csv:3: output_tokens must be")
    assert no_answer.endswith("(2 rows, this is the first)")
    assert no_prompt.startswith("log.csv:5: prompt_tokens must be")
    assert no_width.startswith("log.csv:6: a row must have 3 columns like the header, got 2")
    assert remedy == "skip: bad leaves out 4 of 7 rows; skip: cancelled the 2 without an answer"


def test_what_is_left_out_is_counted_by_kind(log):
    told = r"log\.csv:5: .*\n.*\n.*skip: bad leaves out 4 of 7 rows, the 2 without an answer among"
    with pytest.raises(TraceError, match=told):
        list(CsvReader(path=log, time_unit="us", skip="cancelled").rows())
    reader = CsvReader(path=log, time_unit="us", skip="bad")
    rows = [(row.num_prompt_tokens, row.arrival_time) for row in reader.rows()]
    assert rows == [(10, 0.0), (512, 1.7), (5, 1.7)]
    assert reader.left_out.num_left_out == 4
    assert [(each["rows"], each["first_line"]) for each in reader.left_out.data] == [
        (2, 3),
        (1, 5),
        (1, 6),
    ]
    assert reader.left_out.sentence(log).startswith(
        "Left out of log.csv: 4 of 7 rows: 2 without an answer (first in line 3); 1 since "
    )


@pytest.mark.parametrize(
    ("first", "last", "kept"), [(10, 11, 18), (10, 17, 12), (10, 20, 9), (1, 20, 0)]
)
@pytest.mark.parametrize("is_closed", [True, False])
def test_rows_behind_a_stray_quote_count(first, last, kept, is_closed, tmp_path):
    rows = [f'{k}.5,10,5,"a, b"' if k < first else f"{k}.5,10,5,text" for k in range(1, 21)]
    rows[first - 1] = f'{first}.5,10,5,"text'
    if is_closed:
        rows[last - 1] += '"'
    path = tmp_path / "log.csv"
    path.write_text("\n".join(["timestamp,prompt_tokens,output_tokens,text", *rows, ""]))
    end = last if is_closed else 20
    told = f"a quoted field opened in line {first + 1} swallows {end - first} line"
    with pytest.raises(TraceError, match=f"log.csv:{first + 1}: {told}"):
        list(CsvReader(path=str(path)).rows())
    reader = CsvReader(path=str(path), skip="bad")
    if first > 1:
        kept = kept if is_closed else first - 1
        assert len(list(reader.rows())) == kept
        assert reader.left_out.num_left_out == 20 - kept


def test_texts_of_several_lines_are_no_fault(tmp_path):
    path = tmp_path / "log.csv"
    head = "timestamp,prompt_tokens,output_tokens,text"
    path.write_text(f'{head}\n1,10,5,"so, it, was, 3\n\nthe, 2nd, of, May"\n2,x,5,a\n3,7,5,b\n')
    reader = CsvReader(path=str(path), skip="bad")
    assert [row.num_prompt_tokens for row in reader.rows()] == [10, 7]
    assert [each["first_line"] for each in reader.left_out.data] == [5]


def test_a_header_that_swallows_rows_is_told(tmp_path):
    path = tmp_path / "log.csv"
    path.write_text('timestamp,prompt_tokens,output_tokens,"a\n1,9,9,b\n2,9,9,c"\n3,9,9,d\n')
    with pytest.raises(TraceError, match="opened in line 1 swallows 2 lines"):
        list(CsvReader(path=str(path)).rows())


def test_rows_beyond_the_first_ones_asked_for_do_not_count(log):
    assert len(list(CsvReader(path=log, time_unit="us", num_requests=1).rows())) == 1


def test_a_file_of_bad_rows_alone_is_told(tmp_path):
    path = tmp_path / "log.csv"
    path.write_text("timestamp,prompt_tokens,output_tokens\nx,1,1\ny,1,1\n")
    with pytest.raises(TraceError, match="no row of the file can be read: has it another form"):
        list(CsvReader(path=str(path), skip="bad").rows())


@pytest.mark.parametrize("name", BY_LINE)
def test_every_reader_of_lines_leaves_out_bad_ones(name, tmp_path):
    path = tmp_path / "t"
    path.write_text(TRACES[name])
    whole = list(reader_of(str(path), name).rows())
    head, tail = TRACES[name].rstrip("\n").rsplit("\n", 1)
    path.write_text(f"{head}\n???\n{tail}\n")
    with pytest.raises(TraceError, match="skip: bad leaves out 1 of"):
        list(reader_of(str(path), name).rows())
    reader: Any = TRACE_READERS[name](path=str(path), skip="bad")
    assert list(reader.rows()) == whole
    assert reader.left_out.num_left_out == 1
    check_trace_reader(lambda: TRACE_READERS[name](path=str(path), skip="bad"))


def test_conversations_are_left_out_whole(tmp_path):
    talk = [{"from": "human", "value": "ab"}, {"from": "gpt", "value": "cd"}]
    path = tmp_path / "t"
    path.write_text(json.dumps([{"conversations": talk}, {}, {"conversations": talk}]))
    reader: Any = TRACE_READERS["sharegpt"](path=str(path), skip="bad")
    assert [row.session_id for row in reader.rows()] == [0, 2]
    assert reader.left_out.num_left_out == 1


def _spans(*answers: int | None) -> str:
    spans = [
        {
            "traceId": "a",
            "startTimeUnixNano": str(10**9 * k),
            "endTimeUnixNano": str(10**9 * k + 5),
            "attributes": [
                {"key": "gen_ai.operation.name", "value": {"stringValue": "chat"}},
                {"key": "gen_ai.usage.input_tokens", "value": {"intValue": "9"}},
                *(
                    [{"key": "gen_ai.usage.output_tokens", "value": {"intValue": str(tokens)}}]
                    if tokens is not None
                    else []
                ),
            ],
        }
        for k, tokens in enumerate(answers)
    ]
    return json.dumps({"resourceSpans": [{"scopeSpans": [{"spans": spans}]}]})


def test_spans_of_unanswered_calls_are_counted(tmp_path):
    path = str(tmp_path / "t")
    (tmp_path / "t").write_text(_spans(5, 0, None, 3))
    reader = OtelReader(path=path)
    assert [row.num_output_tokens for row in reader.rows()] == [5, 3]
    assert reader.left_out.data == [{"why": "without an answer", "rows": 2, "first_line": 1}]
    with pytest.raises(TraceError, match="skip: cancelled leaves out 2 of 4 rows"):
        list(OtelReader(path=path, skip="none").rows())


def test_results_say_what_was_left_out(log):
    trace = {"type": "csv", "path": log, "time_unit": "us", "skip": "bad"}
    scenario = Scenario.load("demo", overrides={"workload": {"trace": trace}})
    result = simulate(scenario)
    assert result.summary["completed"] == 3
    (told,) = [each for each in result.warnings if each.kind is LEFT_OUT]
    assert str(told).startswith("Left out of log.csv: 4 of 7 rows: 2 without an answer")
    assert {"kind": "left out", "text": str(told)} in result.summary["warnings"]


def test_verbs_of_traces_say_it_in_a_line(log, mist):
    options = ["--format=csv", "--set=time_unit=us", "--set=skip=bad"]
    code, out, err = mist("trace", "inspect", log, *options, "--json")
    assert (code, err) == (0, "")
    assert json.loads(out)["left_out"][0] == {
        "why": "without an answer",
        "rows": 2,
        "first_line": 3,
    }
    for words in (["inspect", log], ["convert", log, "--to=vidur", "--out=v.csv"]):
        code, _, err = mist("trace", *words, *options)
        assert code == 0
        assert "4 of 7 rows: 2 without an answer (first in line 3)" in err


@pytest.mark.parametrize(("unit", "size"), [("s", 1), ("ms", 1e3), ("us", 1e6), ("ns", 1e9)])
def test_every_unit_of_times(unit, size, tmp_path):
    path = tmp_path / "log.csv"
    path.write_text(f"timestamp,prompt_tokens,output_tokens\n0,1,1\n{2.5 * size},1,1\n")
    rows = CsvReader(path=str(path), time_unit=unit).rows()
    assert [row.arrival_time for row in rows] == [0, 2.5]


@pytest.mark.parametrize(
    ("unit", "hint"),
    [("µs", "here write us."), ("seconds", "here write s."), ("m", "got 'm'."), ("u", "got 'u'.")],
)
def test_a_unit_is_not_taken_for_another(unit, hint, log, mist):
    code, _, err = mist("trace", "inspect", log, "--format=csv", f"--set=time_unit={unit}")
    assert code == 2
    assert err.rstrip().endswith(hint)


def test_equal_times_are_a_burst(tmp_path, mist, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "b.csv").write_text("timestamp,prompt_tokens,output_tokens\n" + "5,3,2\n" * 4)
    code, out, _ = mist("trace", "inspect", "b.csv")
    assert code == 0
    assert "all requests come at once" in out
    assert "none" not in out
    overrides = {"workload": {"trace": {"type": "csv", "path": "b.csv"}}}
    result = simulate(Scenario.load("demo", overrides=overrides))
    overrides["workload"]["arrivals"] = {"type": "trace", "rate": "1 /s"}
    assert set(result.requests["arrival_time"]) == {0.0}
    with pytest.raises(ScenarioError, match="CsvReader has all at one time"):
        simulate(Scenario.load("demo", overrides=overrides))


def test_afd_takes_options_of_a_trace(log, mist):
    words = ["afd", log, "--format=csv", "--set=time_unit=us", "--slots=64", "--alpha-a=1"]
    more = ["--beta-a=1", "--alpha-f=1", "--beta-f=1", "--alpha-c=1", "--beta-c=1"]
    code, _, err = mist(*words, *more)
    assert code == 2
    assert "--set skip=bad leaves out 4 of 7 rows" in err


def test_plan_takes_options_of_its_trace(log, mist):
    words = ["plan", "--model", "llama-3.1-8b", "--gpus", "h100-sxm", "--trace", log, "--format"]
    more = ["csv", "--set", "workload.trace.time_unit=us", "--ttft-ms", "900", "--max-gpus", "1"]
    code, _, err = mist(*words, *more)
    assert code == 2
    assert "skip: bad leaves out 4 of 7 rows" in err
