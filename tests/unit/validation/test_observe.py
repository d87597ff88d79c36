"""A live server under a workload of ours, on the loopback."""

import asyncio
import cProfile
import json
import os
import pstats
import signal
import subprocess
import sys
import time
from pathlib import Path

import pandas as pd
import pytest

from mist_sim.observation import Observation, Prompts, Server
from mist_sim.rng import Streams
from mist_sim.traces import AllAtOnce, Rows, TraceRow, Workload
from mist_sim.traces.readers.opening import reader_of
from mist_sim.validation import read_run
from tests.commands import mist
from tests.conftest import ROOT
from tests.hostile_servers import honest, lying
from tests.loopback import Delays, server

pytest.importorskip("httpx")

SCENARIO = """
model: llama-3.1-8b
workload:
  lengths:
    type: synthetic
    num_requests: 12
    prompt: {type: fixed, tokens: 40}
    output: {type: fixed, tokens: 8}
  arrivals: {type: constant, rate: 20 /s}
clients:
  - {name: llm, gpu: h100-sxm}
"""


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("s.yaml").write_text(SCENARIO)
    return tmp_path


def _observe(url, *words, code=0, scenario="s.yaml"):
    mist("observe", url, scenario, "--model", "m", "--out", "o", "-q", *words, code=code)


def test_the_delays_of_a_server_are_found(folder):
    """A busy machine may add to what the server waits, and takes nothing off."""
    delays = Delays(first=0.2, gap=0.05)
    with server(delays) as url:
        _observe(url)
    found = pd.read_csv("o/requests.csv")
    assert len(found) == 12
    assert (found["ttft"] >= 0.2).all()
    assert found["ttft"].median() < 0.3
    assert found["tpot"].median() == pytest.approx(0.05, rel=0.2)
    assert (found["e2el"] >= 0.55).all()


def test_what_was_sent_is_what_the_scenario_says(folder):
    delays = Delays()
    with server(delays) as url:
        _observe(url, "--vocabulary", 500)
    bodies = delays.bodies
    assert {len(body["prompt"]) for body in bodies} == {40}
    assert {body["max_tokens"] for body in bodies} == {8}
    assert all(100 <= token < 500 for body in bodies for token in body["prompt"])
    assert len({tuple(body["prompt"]) for body in bodies}) == 12  # nothing in common
    rows = list(reader_of("o/sent.csv").rows())
    assert [(row.num_prompt_tokens, row.num_output_tokens) for row in rows] == [(40, 8)] * 12
    assert rows[-1].arrival_time == pytest.approx(11 / 20, abs=0.2)


def test_the_folder_is_validated(folder, capsys):
    with server(Delays(first=0.05, gap=0.01)) as url:
        _observe(url, "--engine", "vLLM 0.33")
    run = read_run(Path("o"))
    assert run.engine == "vLLM 0.33"
    measured = {row.metric: row.measured for row in run.rows()}
    found = pd.read_csv("o/requests.csv")
    assert measured["TTFT, mean"] == pytest.approx(found["ttft"].mean() * 1e3)
    mist("validate", "o", "--margin", 5)
    out = capsys.readouterr().out
    assert "s.yaml on http://127.0.0.1" in out
    told = " ".join(out.split())
    assert "apart (KS); typical ratio" in told
    assert "too few requests to test" in told


def test_users_of_a_closed_loop_wait_for_their_answers(folder):
    text = SCENARIO.replace("{type: constant, rate: 20 /s}", "{type: closed_loop, concurrency: 3}")
    Path("c.yaml").write_text(text)
    with server(Delays(first=0.05, gap=0.01)) as url:
        _observe(url, scenario="c.yaml")
    sent = pd.read_csv("o/sent.csv")["arrived_at"]
    ends = sent + pd.read_csv("o/requests.csv")["e2el"]
    for at in sent:
        assert ((sent < at) & (ends > at)).sum() < 3


def test_blocks_in_common_are_sent_in_common(folder):
    lines = [
        {"timestamp": 0, "input_length": 40, "output_length": 2, "hash_ids": [1, 2, k]}
        for k in (3, 4)
    ]
    Path("t.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    old = SCENARIO[SCENARIO.index("  lengths") : SCENARIO.index("clients")]
    trace = "  trace: {type: mooncake, path: t.jsonl, hash_block_size: 16}\n"
    Path("m.yaml").write_text(SCENARIO.replace(old, trace))
    delays = Delays()
    with server(delays) as url:
        _observe(url, scenario="m.yaml")
    one, two = (body["prompt"] for body in delays.bodies)
    assert one[:32] == two[:32]
    assert one[32:] != two[32:]
    assert "hash_block_size: 16" in Path("o/scenario.yaml").read_text()
    assert '"hash_ids": [1, 2, 3]' in Path("o/sent.jsonl").read_text()


def test_requests_that_fail_are_left_out_and_told(folder, capsys):
    with server(Delays(fails=frozenset({2, 5}))) as url:
        _observe(url)
    assert (
        "2 of 12 requests have no whole answer, the first because: status 500"
        in capsys.readouterr().err
    )
    assert len(pd.read_csv("o/requests.csv")) == 10


def test_a_server_that_refuses_all_leaves_no_folder(folder, capsys):
    with server(Delays(fails=frozenset(range(12)))) as url:
        _observe(url, code=2)
    assert "no request was answered, the first because: status 500" in capsys.readouterr().err
    assert not Path("o").exists()


@pytest.mark.parametrize(
    ("words", "change", "told"),
    [
        ((), ("clients:", "  pipeline: [preprocess, prefill, decode]\nclients:"), ""),
        ((), ("clients:", "  timeout: 1 s\nclients:"), "leave out time limits"),
        (("--vocabulary", "50"), ("", ""), "--vocabulary must be > 100"),
    ],
)
def test_what_it_cannot_send_is_refused(words, change, told, folder, capsys):
    Path("s.yaml").write_text(SCENARIO.replace(*change) if change[0] else SCENARIO)
    _observe("http://127.0.0.1:9", *words, code=2)
    assert told in capsys.readouterr().err


def test_a_server_that_is_not_there_is_told(folder, capsys):
    _observe("http://127.0.0.1:9", code=2)
    assert "cannot be reached" in capsys.readouterr().err
    _observe("nonsense", code=2)
    assert "nonsense: cannot be reached" in capsys.readouterr().err
    assert not Path("o").exists()


def test_longer_prompts_of_a_conversation_begin_with_shorter_ones():
    def request(number, tokens, content):
        row = TraceRow(tokens, 2, content=content)
        made = next(Workload(Rows([row]), AllAtOnce()).requests(Streams(0)))
        made.request_id = number
        return made

    prompts = Prompts()
    short = prompts.tokens(request(0, 10, ((7, 12),)))
    long = prompts.tokens(request(1, 30, ((7, 32),)))
    assert long[:10] == short
    assert prompts.tokens(request(0, 10, ())) != prompts.tokens(request(1, 10, ()))


def test_many_requests_at_once_cost_no_more_each():
    def calls_each(number: int) -> float:
        requests = Workload(Rows([TraceRow(9, 2)] * number), AllAtOnce()).requests(Streams(0))
        seen, profile = Observation(), cProfile.Profile()
        with lying(honest) as url:
            profile.runcall(Server(url=url, model="m").observe, requests, seen)
        assert len(seen.answered) == number
        return pstats.Stats(profile).total_calls / number

    few = calls_each(30)
    assert calls_each(120) < 1.2 * few


def test_a_machine_that_is_late_says_so(folder, capsys):
    requests = Workload(Rows([TraceRow(9, 2)] * 2), AllAtOnce()).requests(Streams(0))
    seen = Observation()
    with server(Delays()) as url:
        Server(url=url, model="m").observe(requests, seen, progress=lambda *_: time.sleep(0.3))
        assert seen.lateness >= 0.3
        _observe(url)
    assert "This machine noted answers up to" in capsys.readouterr().err


PROGRAM = """
import signal, sys
from mist_sim.cli import main

# shells ignore it for what they start in the background, such as these tests
signal.signal(signal.SIGINT, signal.default_int_handler)
main(sys.argv[1:])
"""


@pytest.mark.skipif(os.name != "posix", reason="signals as POSIX has them")
@pytest.mark.parametrize(
    ("number", "code", "told"),
    [
        (signal.SIGINT, 130, "interrupted; the results are in o\n"),
        (signal.SIGTERM, 143, "terminated; the results are in o\n"),
    ],
)
def test_a_signal_keeps_what_was_observed(number, code, told, folder):
    delays = Delays(stalls=frozenset(range(3, 12)))
    words = [
        sys.executable,
        "-c",
        PROGRAM,
        "observe",
        "URL",
        "s.yaml",
        *["--model", "m", "--out", "o"],
    ]
    with server(delays) as words[4]:
        process = subprocess.Popen(
            words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
            env=os.environ | {"PYTHONPATH": str(ROOT)},
        )  # fmt: skip
        while len(delays.bodies) < 6 and process.poll() is None:
            time.sleep(0.05)
        process.send_signal(number)
        out, err = process.communicate(timeout=60)
    assert process.returncode == code
    assert err.endswith(told)
    assert "requests have no whole answer, the first because: its answer had not come" in err
    assert "Latency of the 3 requests that were answered" in out
    assert len(pd.read_csv("o/requests.csv")) == 3
    assert "requests without a whole answer left out" in read_run(Path("o")).provenance
    assert {path.name for path in folder.iterdir()} == {"o", "s.yaml"}
    mist("validate", "o")


@pytest.mark.skipif(os.name != "posix", reason="signals as POSIX has them")
def test_a_signal_before_any_answer_leaves_nothing(folder, capsys, monkeypatch):
    delays = Delays(stalls=frozenset(range(12)))
    asyncio_sleep = asyncio.sleep

    async def sleep(seconds: float) -> None:
        await asyncio_sleep(seconds)
        if delays.bodies:
            signal.raise_signal(signal.SIGTERM)

    monkeypatch.setattr("mist_sim.observation.asyncio.sleep", sleep)
    with server(delays) as url:
        _observe(url, code=143)
    assert "terminated; no results were written" in capsys.readouterr().err
    assert [path.name for path in folder.iterdir()] == ["s.yaml"]
