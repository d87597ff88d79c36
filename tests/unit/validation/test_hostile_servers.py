"""Servers that lie, stall and flood: nothing lasts longer or holds more than its bounds."""

import json
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

import pandas as pd
import pytest

from mist_sim.errors import ScenarioError
from mist_sim.observation import Observation, Server
from mist_sim.rng import Streams
from mist_sim.traces import Rows, TraceArrivals, TraceRow, Workload
from mist_sim.traces.downloads import fetch
from tests.commands import mist
from tests.hostile_servers import (
    ANSWERS,
    ANY,
    CHUNKED,
    CLOSED,
    GAP,
    ODD,
    OK,
    PIECE,
    Lie,
    Talk,
    honest,
    lying,
)  # fmt: skip

LIMIT = 8.0  # s for an answer: an honest server beside so many others needs more than one
SLACK = 20.0  # s: the machine of a test may be busy; a hostile server goes on for longer
LIES = [each for lie, _ in ANSWERS.values() for each in (lie, honest)]
MEASURED = pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="no peak of memory")
SCENARIO = """
model: llama-3.1-8b
workload: {trace: {type: vidur, path: sent.csv}, arrivals: {type: trace}}
clients: [{name: llm, gpu: h100-sxm}]
"""


@pytest.fixture(autouse=True)
def working_directory(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def by_length(talk: Talk) -> None:
    """Lie to a prompt of n tokens as `LIES[n - 1]` does, and to nothing else."""
    LIES[len(json.loads(talk.body)["prompt"]) - 1 if talk.body else 1](talk)


def in_time(work: Callable[[], object], seconds: float) -> None:
    start = time.monotonic()
    work()
    assert time.monotonic() - start < seconds + SLACK


def observed_apart(url: str, code: int = 0) -> tuple[str, str, float]:
    """Observe a server in a process of its own; return what it printed, and its peak in MiB."""
    Path("s.yaml").write_text(SCENARIO)
    told = "print([line for line in open('/proc/self/status') if 'VmHWM' in line][0])"
    program = (
        f"import atexit; atexit.register(lambda: {told}); from mist_sim.cli import main; main()"
    )
    words = f"observe {url} s.yaml --model m --out o --timeout {LIMIT} -q".split()
    done = subprocess.run(
        [sys.executable, "-c", program, *words], capture_output=True, text=True, check=False
    )
    assert done.returncode == code, done.stderr
    table, _, peak = done.stdout.partition("VmHWM:")
    return table, done.stderr, int(peak.split()[0]) / 1024


def test_each_lie_costs_its_own_request_alone():
    pytest.importorskip("httpx")
    rows = [TraceRow(1 + k, 8, k * 0.05) for k in range(len(LIES))]
    requests = Workload(Rows(rows), TraceArrivals()).requests(Streams(0))
    seen = Observation()
    with lying(by_length) as url:
        server = Server(url=url, model="m", timeout=LIMIT)
        in_time(lambda: server.observe(requests, seen), 2 * LIMIT)
    found = seen.requests
    assert not [each.error for each in found[1::2] if each.error]
    assert [each.num_output_tokens for each in found[1::2]] == [8] * len(ANSWERS)
    for (name, (_, told)), each in zip(ANSWERS.items(), found[::2], strict=True):
        assert each.error, name
        assert told in each.error, name


@pytest.mark.parametrize("name", ODD)
def test_odd_answers_are_whole(name):
    pytest.importorskip("httpx")
    requests = Workload(Rows([TraceRow(9, 8, 0.0)] * 2), TraceArrivals()).requests(Streams(0))
    seen = Observation()
    with lying(lambda talk: ODD[name](talk) if talk.body else honest(talk)) as url:
        Server(url=url, model="m", timeout=LIMIT).observe(requests, seen)
    assert [(each.error, each.num_output_tokens) for each in seen.requests] == [("", 8)] * 2
    assert [each.num_pieces for each in seen.requests] == [8, 8]


def test_an_answer_in_one_piece_has_no_gaps():
    pytest.importorskip("httpx")
    requests = Workload(Rows([TraceRow(9, 8, 0.0)]), TraceArrivals()).requests(Streams(0))
    seen, usage = Observation(), {"choices": [], "usage": {"completion_tokens": 8}}
    with lying(lambda talk: talk.events(PIECE, usage) if talk.body else honest(talk)) as url:
        Server(url=url, model="m", timeout=LIMIT).observe(requests, seen)
    assert seen.requests[0].num_output_tokens == 8
    assert seen.latencies["tpot"] == []


@MEASURED
@pytest.mark.deep
@pytest.mark.parametrize("name", ["floods without line ends", "nests", "holds lines"])
def test_a_thousand_lies_at_once_stay_small(name):
    pytest.importorskip("httpx")
    lies = {"holds lines": (_asked(CHUNKED + b"7d00\r\n" + b"x" * 32_000 + b"\r\n"), "")}
    lie, _ = (ANSWERS | lies)[name]
    rows = "0,9,8\n" * 1_000
    Path("sent.csv").write_text(f"arrived_at,num_prefill_tokens,num_decode_tokens\n{rows}")
    with lying(lambda talk: lie(talk) if talk.body else honest(talk)) as url:
        _, told, peak = observed_apart(url, code=2)
    assert "no request was answered" in told
    assert peak < 200


@MEASURED
def test_an_observation_of_lies_stays_small():
    pytest.importorskip("httpx")
    rows = "".join(f"{k * 0.05},{1 + k},8\n" for k in range(len(LIES)))
    Path("sent.csv").write_text(f"arrived_at,num_prefill_tokens,num_decode_tokens\n{rows}")
    with lying(by_length) as url:
        table, told, peak = observed_apart(url)
    assert f"{len(ANSWERS)} of {len(LIES)} requests have no whole answer, the first" in told
    assert f"Latency of the {len(ANSWERS)} requests that were answered" in table
    assert peak < 200
    assert len(pd.read_csv("o/requests.csv")) == len(ANSWERS)


@pytest.mark.parametrize("name", ANY)
def test_a_first_question_is_bounded_too(name, capsys):
    pytest.importorskip("httpx")
    text = "trace: {type: vidur, path: sent.csv}, arrivals: {type: trace}"
    assert text in SCENARIO
    Path("sent.csv").write_text("arrived_at,num_prefill_tokens,num_decode_tokens\n0,1,8\n")
    Path("s.yaml").write_text(SCENARIO)
    with lying(ANY[name]) as url:
        words = ("observe", url, "s.yaml", "--model", "m", "--out", "o", "--timeout", 0.3)
        in_time(lambda: mist(*words, "-q", code=2), 1.0)
    assert capsys.readouterr().err.count("\n") == 1
    assert not Path("o").exists()


def _asked(begin: bytes, lie: Lie = Talk.stall) -> Lie:
    def answer(talk: Talk) -> None:
        talk.say(begin)
        lie(talk)

    return answer


FILES: dict[str, tuple[Lie, str]] = {
    **{name: (lie, "cannot be read") for name, lie in ANY.items()},
    "is redirected in a circle": (ANY["is redirected in a circle"], "redirected over 5 times"),
    "drips": (
        _asked(CHUNKED, lambda talk: talk.for_ever(b"1,2\n", GAP, chunked=True)),
        "'it took over 0.5 s'; t.part keeps what has come, call again to go on",
    ),
    "floods": (
        _asked(CHUNKED, lambda talk: talk.for_ever(b"x" * 4_096, chunked=True)),
        "must have <= 1048576 bytes",
    ),
    "promises too much": (
        _asked(OK + b"Content-Length: 99999999999\r\n\r\n"), "must have <= 1048576 bytes"
    ),
    "breaks off": (
        _asked(OK + b"Content-Length: 99\r\n\r\nabc", lambda talk: None), "after 3 of 99 bytes"
    ),
    "sends a part unasked": (
        _asked(b"HTTP/1.1 206 Part\r\nContent-Range: bytes 0-2/9\r\nContent-Length: 3\r\n\r\nabc"),
        "another part than asked, which begins at 0",
    ),
    "has a length below 0": (
        _asked(OK + b"Content-Length: -3\r\n\r\nabc"), "must be one whole number, got ['-3']"
    ),
    "has two lengths": (
        _asked(OK + b"Content-Length: 3\r\nContent-Length: 2\r\n\r\nabc"), "got ['2', '3']"
    ),
    "has a length of 5,000 digits": (
        _asked(OK + b"Content-Length: 1" + b"0" * 5_000 + b"\r\n\r\nabc"), "one whole number"
    ),
    "leads to a file": (
        _asked(b"HTTP/1.1 302 There\r\nLocation: file:///etc/passwd\r\nContent-Length: 0\r\n\r\n"),
        "redirected to 'file:///etc/passwd'",
    ),
    "leads to another protocol": (
        _asked(b"HTTP/1.1 302 There\r\nLocation: ftp://x/y\r\nContent-Length: 0\r\n\r\n"),
        "redirected to 'ftp://x/y'",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", FILES)
def test_a_download_is_bounded(name, monkeypatch):
    monkeypatch.setattr("mist_sim.traces.downloads.DOWNLOAD_BYTES", 2**20)
    lie, told = FILES[name]

    def work() -> None:
        with pytest.raises(ScenarioError) as refusal:
            fetch(f"{url}/t", Path("t"), timeout=0.5)
        assert told in str(refusal.value)
        assert str(refusal.value).isprintable()

    with lying(lie) as url:
        in_time(work, 1.0)
    assert not Path("t").exists()
    assert not Path("t.part").exists() or Path("t.part").stat().st_size


def test_part_that_ends_early_is_gone_on_with():
    Path("t.part").write_bytes(b"abc")

    def three(talk: Talk) -> None:
        begin = int(talk.headers["range"].removeprefix("bytes=").removesuffix("-"))
        bounds = f"Content-Range: bytes {begin}-{begin + 2}/9\r\nContent-Length: 3\r\n\r\n"
        talk.say(b"HTTP/1.1 206 Part\r\n", bounds.encode(), b"def" if begin == 3 else b"ghi")

    with lying(three) as url:
        with pytest.raises(ScenarioError, match="ended after 6 of 9 bytes.*call again to go on"):
            fetch(f"{url}/t", Path("t"), timeout=LIMIT)
        fetch(f"{url}/t", Path("t"), timeout=LIMIT)
    assert Path("t").read_bytes() == b"abcdefghi"


def test_an_end_that_nobody_told_is_named(capsys):
    with lying(lambda talk: talk.say(CLOSED, b"1,2\n")) as url:
        mist("trace", "fetch", f"{url}/t", "--out", "t")
    assert "and the server did not say where the file ends" in capsys.readouterr().err


def test_many_addresses_share_the_time(monkeypatch):
    with socket.create_server(("127.0.0.1", 0), backlog=0) as full, ExitStack() as waiting:
        place = full.getsockname()
        for _ in range(4):  # no one accepts them
            client = waiting.enter_context(socket.socket())
            client.setblocking(False)
            client.connect_ex(place)
        found = [(socket.AF_INET, socket.SOCK_STREAM, 6, "", place)] * 60
        monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: found)

        def work() -> None:
            with pytest.raises(ScenarioError, match="cannot be read"):
                fetch("http://many.test/t", Path("t"), timeout=0.5)

        in_time(work, 0.5)


def test_another_part_than_asked_is_no_file():
    Path("t.part").write_bytes(b"abc")
    begin = b"HTTP/1.1 206 Part\r\nContent-Range: bytes 0-2/3\r\nContent-Length: 3\r\n\r\nabc"
    with lying(_asked(begin)) as url, pytest.raises(ScenarioError, match="another part than asked"):
        fetch(f"{url}/t", Path("t"), timeout=5)
    assert Path("t.part").read_bytes() == b"abc"


def test_devices_are_no_traces(tmp_path):
    with pytest.raises(ScenarioError, match="must be an ordinary file"):
        fetch("file:///dev/zero", tmp_path / "t")
