"""More of a trace, a part of one, a picture of one, a download of one."""

import hashlib
import signal
from contextlib import AbstractContextManager
from functools import partial
from http.server import SimpleHTTPRequestHandler
from pathlib import Path

import numpy as np
import pytest

from mist_sim import ScenarioError
from mist_sim.rng import Streams
from mist_sim.traces import GammaArrivals, Profile, ServeGenReader, TraceRow
from mist_sim.traces.downloads import fetch
from mist_sim.traces.readers.opening import reader_of
from mist_sim.traces.statistics import statistics
from mist_sim.traces.synthesis import fit_trace
from mist_sim.traces.workload import block_content, sampled
from mist_sim.traces.writers import WRITERS
from tests.commands import mist
from tests.contract.test_registered_plugins import BESIDE, TRACES
from tests.loopback import served

# ------------------------------------------------------------------------ synth


def _bursty(number: int) -> list[TraceRow]:
    """Return requests with bursts (cv 2), and prompts that share their beginning."""
    lengths = Profile(num_requests=number).sample_rows(Streams(1).generator("lengths"))
    times = GammaArrivals(rate=5.0, burstiness=0.25).times(Streams(1).generator("arrivals"))
    rng = Streams(1).generator("reuse")
    rows, start = [], None
    for position, (row, time) in enumerate(zip(lengths, times, strict=False)):
        start = time if start is None else start
        number_of_blocks = -(-row.num_prompt_tokens // 16)
        shared = min(int(rng.integers(0, 40)), number_of_blocks)
        group = int(rng.integers(0, 20)) * 10**6
        own = range(10**9 + position * 10**5, 10**9 + position * 10**5 + number_of_blocks - shared)
        ids = [*range(group, group + shared), *own]
        content = block_content(ids, (), row.num_prompt_tokens, row.num_output_tokens, 16)
        rows.append(row._replace(arrival_time=time - start, content=content))
    return rows


def test_what_is_made_has_the_statistics_of_what_it_was_learnt_from():
    rows = _bursty(2000)
    before = statistics(rows)
    made = list(fit_trace(rows).rows(8_000, Streams(0).generator("synth")))
    after = statistics(made)
    for kind in ("prompt_tokens", "output_tokens"):
        for figure in ("mean", "std", "p50", "p90", "p95"):
            assert after[kind][figure] == pytest.approx(before[kind][figure], rel=0.05)
    assert after["rate"] == pytest.approx(before["rate"], rel=0.05)
    assert after["cv"] == pytest.approx(before["cv"], rel=0.05)
    assert after["known_prompt_share"] == pytest.approx(before["known_prompt_share"], abs=0.02)
    pairs = [(row.num_prompt_tokens, row.num_output_tokens) for row in rows]
    others = [(row.num_prompt_tokens, row.num_output_tokens) for row in made]
    assert np.corrcoef(np.log(others).T)[0, 1] == pytest.approx(
        np.corrcoef(np.log(pairs).T)[0, 1], abs=0.05
    )


def test_a_trace_without_times_or_reuse_gives_none():
    rows = list(Profile(num_requests=200).sample_rows(Streams(0).generator("lengths")))
    profile = fit_trace(rows)
    made = list(profile.rows(300, Streams(0).generator("synth")))
    assert {row.arrival_time for row in made} == {None}
    assert {row.content for row in made} == {()}
    timed = list(profile.rows(3000, Streams(0).generator("synth"), rate=7.0))
    assert statistics(timed)["rate"] == pytest.approx(7.0, rel=0.1)
    with pytest.raises(ScenarioError, match="must have >= 40 requests, got 3"):
        fit_trace(rows[:3])


def test_synth_and_sample_write_files(tmp_path, capsys):
    source, out = tmp_path / "t.jsonl", tmp_path / "more.jsonl"
    source.write_text("".join(WRITERS["timed_trace"](_bursty(200))))
    words = ("trace", "synth", source, "--to", "timed_trace", "--out", out, "--requests", 50)
    mist(*words)
    told = capsys.readouterr().err
    assert "Learnt from 200 requests. Kept: lengths" in told
    assert "Not kept: the order of gaps" in told
    assert "hash_block_size: 16" in told
    first = out.read_text()
    assert len(list(reader_of(str(out)).rows())) == 50
    mist(*words, "--force")
    assert out.read_text() == first
    out.unlink()
    mist("trace", "sample", source, "--to", "vidur", "--out", out, "--share", 0.3)
    assert 30 < len(list(reader_of(str(out)).rows())) < 90


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["synth", "--requests", "0"], "--num-requests must be >= 1"),
        (["synth", "--requests", "5", "--rate", "-1"], "--rate must be finite and > 0"),
        (["synth", "--requests", "5", "--to", "mist"], "--to must be one of"),
        (["sample", "--share", "0"], "--share must be above 0"),
        (["sample", "--share", "1e-9"], "--share must leave at least one request"),
    ],
)
def test_what_cannot_be_made_is_told(words, told, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("t.csv").write_text("".join(WRITERS["vidur"](_bursty(50))))
    to = [] if "--to" in words else ["--to", "azure"]
    mist("trace", words[0], "t.csv", "--out", "o", *words[1:], *to, code=2)
    assert told in capsys.readouterr().err
    assert not Path("o").exists()


def test_a_sample_has_conversations_whole_and_grows_with_its_share():
    rows = [TraceRow(1, 1, float(n), session_id=n % 50) for n in range(500)]
    small, large = (list(sampled(rows, share)) for share in (0.2, 0.6))
    assert set(small) < set(large)
    kept = {row.session_id for row in small}
    assert len(small) == 10 * len(kept)
    alone = list(sampled([TraceRow(1, 1, float(n)) for n in range(2000)], 0.25))
    assert len(alone) == pytest.approx(500, abs=80)


# --------------------------------------------------------------------- ServeGen


def _servegen(folder: Path) -> str:
    (folder / "client_lengths.csv").write_text(BESIDE["servegen"]["client_lengths.csv"])
    path = folder / "rates.csv"
    lines = ["workload,client,window_start_s,rate_req_s,cv,arrival_law,param1,param2"]
    for window in range(20):
        lines += [
            f"language/m-large,0,{600 * window},3,2,Gamma,0.25,1",
            f"language/m-large,1,{600 * window},1,1,Weibull,1,1",
            f"language/m-large,2,{600 * window},9,1,Gamma,1,1",  # has no lengths
        ]
    path.write_text("\n".join(lines) + "\n")
    return str(path)


def test_clients_send_at_their_rates(tmp_path):
    path = _servegen(tmp_path)
    found = statistics(ServeGenReader(path=path).rows())
    assert found["num_requests"] == 20 * 600 * (3 + 1)
    assert found["rate"] == pytest.approx(4.0, rel=0.01)
    assert found["cv"] > 1.2  # a Poisson client and a bursty one
    half = statistics(ServeGenReader(path=path, start=600, duration=3000, rate=2.0).rows())
    assert half["rate"] == pytest.approx(2.0, rel=0.03)
    assert half["seconds"] == pytest.approx(3000, rel=0.01)


def test_a_workload_that_there_is_not_is_told(tmp_path):
    with pytest.raises(ScenarioError, match=r"service must be one of 'language/m-large', got 'm'"):
        list(ServeGenReader(path=_servegen(tmp_path), service="m").rows())
    (tmp_path / "client_lengths.csv").unlink()
    with pytest.raises(ScenarioError, match="needs the lengths of clients beside it"):
        list(ServeGenReader(path=str(tmp_path / "rates.csv")).rows())


# ---------------------------------------------------------------------- picture


def test_a_picture_of_every_form(tmp_path, capsys):
    pytest.importorskip("matplotlib")
    for name in ("mooncake", "lengths_csv"):
        source = tmp_path / name
        source.write_text(TRACES[name])
        picture = tmp_path / f"{name}.png"
        mist("trace", "inspect", source, "--plot", picture)
        assert picture.read_bytes().startswith(b"\x89PNG")
    mist("trace", "inspect", source, "--plot", picture, code=2)
    assert "is there already" in capsys.readouterr().err
    mist("trace", "inspect", source, "--plot", "x.gif", code=2)
    assert "--plot must name a .png, .svg or .pdf file" in capsys.readouterr().err


# ------------------------------------------------------------------------ fetch


class _Ranges(SimpleHTTPRequestHandler):
    """Serves files, and goes on in the middle of one where it is asked to."""

    asked: list[str]

    def log_message(self, *_: object) -> None:
        pass

    def do_GET(self) -> None:
        whole = Path(self.directory, self.path.lstrip("/"))
        wanted = self.headers.get("Range")
        if not wanted or not whole.exists():
            super().do_GET()
            return
        self.asked.append(wanted)
        begin = int(wanted.removeprefix("bytes=").removesuffix("-"))
        content = whole.read_bytes()[begin:]
        self.send_response(206 if content else 416)
        self.send_header("Content-Range", f"bytes {begin}-9/*")
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)


def _served(folder: Path) -> AbstractContextManager[str]:
    _Ranges.asked = []
    return served(partial(_Ranges, directory=str(folder)))


@pytest.fixture
def source(tmp_path):
    folder = tmp_path / "served"
    folder.mkdir()
    (folder / "t.csv").write_text(TRACES["azure"])
    return folder


def test_a_file_is_fetched_and_its_checksum_compared(source, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    digest = hashlib.sha256(TRACES["azure"].encode()).hexdigest()
    with _served(source) as url:
        mist("trace", "fetch", f"{url}/t.csv", "--sha256", digest)
    assert f"sha256 {digest} (as expected)" in capsys.readouterr().err
    assert Path("t.csv").read_text() == TRACES["azure"]
    mist("trace", "fetch", (source / "t.csv").as_uri(), code=2)
    assert "is there already" in capsys.readouterr().err
    mist("trace", "fetch", (source / "t.csv").as_uri(), "--out", "u", "--sha256", "0" * 64, code=2)
    assert f"sha256 must be {'0' * 64}, got {digest}" in capsys.readouterr().err
    assert not Path("u").exists()
    assert not Path("u.part").exists()


def test_a_download_goes_on_where_it_stopped(source, tmp_path):
    target, seen = tmp_path / "t", []
    (tmp_path / "t.part").write_bytes(TRACES["azure"].encode()[:50])
    with _served(source) as url:
        fetch(f"{url}/t.csv", target, progress=lambda done, total: seen.append((done, total)))
        assert _Ranges.asked == ["bytes=50-"]
        assert target.read_text() == TRACES["azure"]
        size = len(TRACES["azure"])
        assert seen[-1] == (size, size)
        (tmp_path / "v.part").write_bytes(b"x" * size)  # longer is not a beginning of it
        fetch(f"{url}/t.csv", tmp_path / "v")
    assert (tmp_path / "v").read_text() == TRACES["azure"]


def test_an_interrupted_download_says_what_it_keeps(source, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)

    def interrupt(*_: object, **__: object) -> None:
        signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr("rich.progress.Progress.update", interrupt)
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        mist("trace", "fetch", (source / "t.csv").as_uri(), "--out", "t", code=130)
    finally:
        signal.signal(signal.SIGINT, before)
    told = "interrupted; t.part keeps what has come, call again to go on"
    assert told in capsys.readouterr().err
    assert Path("t.part").exists()


@pytest.mark.parametrize(
    ("content", "told"),
    [
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:4d\nsize 9\n", "Git LFS pointer"),
        (b"<!DOCTYPE html><html>", "is a page of HTML"),
        (b"", "is empty"),
    ],
)
def test_what_servers_send_in_place_of_a_file(content, told, source, tmp_path):
    (source / "p").write_bytes(content)
    with pytest.raises(ScenarioError, match=told):
        fetch((source / "p").as_uri(), tmp_path / "p")
    assert not list(tmp_path.glob("p*"))


def test_what_cannot_be_fetched_is_told(source, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    with _served(source) as url:
        mist("trace", "fetch", f"{url}/nothing", code=2)
        assert "cannot be read: status 404" in capsys.readouterr().err
    mist("trace", "fetch", f"{url}/t.csv", code=2)
    assert "cannot be read" in capsys.readouterr().err
    for words, told in (
        (["azure-conv-2032"], "did you mean 'azure-conv-2023'?"),
        (["ftp://x/y"], "a URL must begin with https://"),
        ([f"{url}/t.csv", "--out", "no/where"], "there is no folder no"),
    ):
        mist("trace", "fetch", *words, code=2)
        assert told in capsys.readouterr().err
    mist("trace", "fetch")
    assert "azure-conv-2023" in capsys.readouterr().out


def test_sources_name_readers_that_there_are():
    from mist_sim.traces import TRACE_READERS
    from mist_sim.traces.sources import SOURCES

    assert {source.form for source in SOURCES.values()} <= set(TRACE_READERS)
    assert all(len(bytes.fromhex(source.sha256)) in (0, 32) for source in SOURCES.values())
