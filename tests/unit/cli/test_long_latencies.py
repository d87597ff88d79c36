"""Latencies from 10 s on are shown in seconds, by one rule in all tables."""

import json
import re
from pathlib import Path

import pytest

from mist_sim import Scenario, simulate
from mist_sim.report.elements import in_ms, latency, metric_cell, number
from tests.reference.scenarios import synthetic

OVERLOADED = {
    "model": "llama-3.1-8b",
    "workload": synthetic(300, 3000, 60, "100 /s"),
    "clients": [{"name": "llm", "gpu": "l40s"}],
    "slo": {"ttft": "500 ms"},
}
LONG = r"\b\d\d(\.\d)? s\b"
LONG_IN_MS = r"\d\d,\d{3}(\.\d+)?( ms|  ms)"


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("slow.yaml").write_text(json.dumps(OVERLOADED))


def test_the_rule():
    assert latency(9_999.0) == ("9,999", "ms")
    assert latency(10_000.0) == ("10.0", "s")
    assert (in_ms(9_999.0), in_ms(24_592.0), in_ms(float("nan"))) == ("9,999", "24.6 s", "-")
    assert metric_cell("p99_ttft_ms", 24_592.0) == "24.6 s"
    assert metric_cell("p99_ttft_ms", 24_592.0, 512.0) == "24.6 ± 0.51 s", "in one unit"
    assert metric_cell("p99_ttft_ms", 592.0, 51.2) == "592 ± 51.2"
    assert metric_cell("output_throughput", 24_592.0) == "24,592", "no latency"


@pytest.mark.parametrize(
    ("words", "seconds"),
    [
        (["run"], [rf"TTFT +({LONG}  +)+", rf"Expected.* TTFT {LONG}", "p90 TTFT  +[0-9.]+  +s, "]),
        (
            ["run", "--set=replications=2"],
            [r"TTFT +(\d\d\.\d ± \d\.\d\d s +)+", r"Expected.* TTFT [0-9.]+ ± \S+ s "],
        ),
        (["run", "--vary=seed=1,2"], [rf"seed=1 .*{LONG} .* seed=2 .*{LONG}"]),
        (["compare", "--vary=seed=1,2", "--any-workload"], [rf"p99 TTFT, ms .*{LONG}.*{LONG}"]),
    ],
    ids=["run", "replications", "study", "comparison"],
)
def test_every_table_keeps_it(mist, words, seconds):
    code, out, _ = mist(words[0], "slow.yaml", *words[1:], "-q")
    assert code == 0
    text = out.replace("\n", " ")
    for wanted in seconds:
        assert re.search(wanted, text), (wanted, out)
    found = [line for line in out.splitlines() if re.match(r" +(TTFT|E2E|queue) ", line)]
    assert not any(re.search(r"\d\d,\d{3}", line) for line in found), out
    assert not re.search(LONG_IN_MS, out), out


def test_strict_says_it_in_seconds(mist):
    code, _, err = mist("run", "slow.yaml", "-q", "--strict")
    assert code == 3
    assert re.search(rf"p90 TTFT is {LONG}, limit 500 ms", err)


def test_the_page_of_a_run_keeps_it():
    result = simulate(Scenario.from_dict(OVERLOADED))
    page = result.presenter.report(result)
    seconds = number(result.summary["p99_ttft_ms"] / 1e3)
    assert f">{seconds}</span> <small>s</small>" in page, "the card"
    assert re.search(rf"TTFT .* {re.escape(seconds)} s$", page, re.MULTILINE), "the table"
    slowest = number(result.summary["p90_ttft_ms"] / 1e3)
    assert f"p90 TTFT {slowest} s of 500 ms: miss" in page, "the verdict"
