"""Timelines: what the tables say, as trace events that nest."""

import json
from collections import defaultdict

import pytest

from mist_sim import Scenario, simulate
from mist_sim.cli.app import BAD_INPUT
from tests.commands import exit_code
from tests.reference.scenarios import of_profile

APART = {
    "model": "llama-3.1-8b",
    "workload": of_profile(40, "20 /s"),
    "clients": [
        {"name": "prefill", "gpu": "h100-sxm", "role": "prefill"},
        {"name": "decode", "gpu": "h100-sxm", "role": "decode"},
    ],
    "network": {"bandwidth": "50 GB/s"},
}


@pytest.fixture(scope="module")
def result():
    return simulate(Scenario.from_dict(APART))


@pytest.fixture(scope="module")
def folder(result, tmp_path_factory):
    return result.save(tmp_path_factory.mktemp("runs") / "run")


def events_of(path):
    return json.loads(path.read_text())["traceEvents"]


@pytest.fixture(scope="module")
def events(result, tmp_path_factory):
    path = tmp_path_factory.mktemp("timelines") / "timeline.json"
    result.save_timeline(path)
    return events_of(path)


def test_all_steps_requests_and_transfers_are_there(result, events):
    steps = [event for event in events if event["ph"] == "X"]
    assert len(steps) == len(result.steps)
    computed = sum(event["args"]["num_prefill_tokens"] for event in steps)
    assert computed == result.steps["num_prefill_tokens"].sum()
    begun = [event for event in events if event["ph"] == "b"]
    assert sum(event["name"].startswith("request ") for event in begun) == 40
    moved = [event["args"]["num_bytes"] for event in begun if event["cat"] == "transfer"]
    assert sum(moved) == pytest.approx(result.transfers["num_bytes"].sum())
    assert len(moved) == 40


def test_spans_of_a_request_nest_and_last_as_long_as_in_the_tables(result, events):
    spans, open_spans = defaultdict(dict), defaultdict(list)
    for event in events:
        if event["ph"] == "b":
            open_spans[event["cat"], event["id"]].append(event)
        if event["ph"] == "e":
            begun = open_spans[event["cat"], event["id"]].pop()
            assert begun["name"] == event["name"]
            assert begun["ts"] <= event["ts"]
            spans[event["cat"], event["id"]][event["name"]] = event["ts"] - begun["ts"]
    assert not any(open_spans.values())
    for row in result.requests.to_dict("records"):
        found = spans["request", row["request_id"]][f"request {row['request_id']}"]
        assert found == pytest.approx(1e6 * row["e2el"], abs=0.01)
    prefills = result.stages[result.stages["stage"] == "prefill"]
    for row in prefills.to_dict("records"):
        found = spans["request", row["request_id"]]["prefill"]
        assert found == pytest.approx(1e6 * (row["finished_at"] - row["started_at"]), abs=0.01)


def test_a_window_keeps_what_reaches_into_it(folder, result, tmp_path):
    out = tmp_path / "window.json"
    assert exit_code("timeline", folder, "--out", out, "--from", "1 s", "--until", "1.2 s") == 0
    kept = {event["id"] for event in events_of(out) if event.get("cat") == "request"}
    requests = result.requests
    inside = (requests["arrival_time"] < 1.2) & (requests["finished_at"] >= 1)
    assert kept == set(requests["request_id"][inside])
    assert 0 < len(kept) < 40


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["nowhere"], "nowhere: has no summary.json; name a folder that mist run --out wrote"),
        (["{run}", "--from", "2 s", "--until", "1 s"], "--until must be later than --from, 2 s"),
        (["{run}", "--from", "2"], "--from: a duration needs a number and a unit"),
        (["{run}", "--out", "{run}"], "is a folder; name a file"),
    ],
)
def test_what_is_refused(folder, options, message, capsys):
    words = [option.replace("{run}", str(folder)) for option in options]
    assert exit_code("timeline", *words) == BAD_INPUT
    assert message in capsys.readouterr().err


def test_a_file_that_is_there_stays(folder, tmp_path, capsys):
    out = tmp_path / "mine.json"
    out.write_text("mine")
    assert exit_code("timeline", folder, "--out", out) == BAD_INPUT
    assert out.read_text() == "mine"
    assert exit_code("timeline", folder, "--out", out, "--force") == 0
    assert events_of(out)
    capsys.readouterr()


def test_tables_are_read_in_pieces(folder, tmp_path, monkeypatch):
    """A million requests do not fill memory; where a piece ends changes nothing."""
    whole, pieces = tmp_path / "whole.json", tmp_path / "pieces.json"
    assert exit_code("timeline", folder, "--out", whole) == 0
    monkeypatch.setattr("mist_sim.metrics.timeline._CHUNK", 7)
    assert exit_code("timeline", folder, "--out", pieces) == 0
    assert pieces.read_bytes() == whole.read_bytes()
