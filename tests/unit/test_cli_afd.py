"""`mist afd`: what it prints, and how it refuses bad input."""

from __future__ import annotations

import json

import pytest

from mist_sim.cli import main
from mist_sim.rng import Streams

SIX = ("--alpha-a", "0.00165", "--beta-a", "50", "--alpha-f", "0.083", "--beta-f", "100")
SIX += ("--alpha-c", "0.022", "--beta-c", "20")
PRESET = ("--coefficients", "deepseek-v3-ascend-910c")
SLOTS = ("--slots", "256")


@pytest.fixture(autouse=True)
def trace(tmp_path, monkeypatch):
    """Geometric lengths in the form of Azure's traces, and a terminal of 80 columns."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "80")
    rng = Streams(1).generator("trace")
    prefill, output = rng.geometric(1 / 100, 3000), rng.geometric(1 / 500, 3000) + 1
    pairs = zip(prefill.tolist(), output.tolist(), strict=True)
    rows = [f"2023-11-16 18:15:46.6805900,{p},{o}\n" for p, o in pairs]
    (tmp_path / "t.csv").write_text("TIMESTAMP,ContextTokens,GeneratedTokens\n" + "".join(rows))
    (tmp_path / "short.csv").write_text(
        "TIMESTAMP,ContextTokens,GeneratedTokens\n" + "".join(rows[:12])
    )


@pytest.fixture
def mist(capsys):
    """Run the command line: returns (exit code, stdout, stderr)."""

    def run(*args: str) -> tuple[int, str, str]:
        with pytest.raises(SystemExit) as leaving:
            main(("afd", *args))
        out, err = capsys.readouterr()
        return int(leaving.value.code or 0), out, err

    return run


def test_tables(mist):
    code, out, err = mist("t.csv", *SLOTS, *PRESET)
    assert (code, err) == (0, "")
    for words in ("theta, mean", "nu, standard deviation", "95 % interval", "best", "TPOT", "idle"):
        assert words in out
    assert max(map(len, out.splitlines())) <= 80


def test_json(mist):
    code, out, err = mist("t.csv", *SLOTS, *SIX, "--json")
    data = json.loads(out)
    assert (code, err) == (0, "")
    assert data["load"]["theta"]["value"] == pytest.approx(599, rel=0.06)
    assert data["load"]["theta"]["low"] < data["load"]["theta"]["value"]
    assert data["mean_field"]["ratio"] == pytest.approx(9.55, rel=0.1)
    assert data["mean_field"]["low"] < data["mean_field"]["ratio"] < data["mean_field"]["high"]
    assert data["candidates"][3]["ratio"] is None
    assert data["gaussian"]["throughput_gaussian"] > data["in_flight"]["throughput"]


def test_six_coefficients_are_those_of_the_name(mist):
    assert mist("t.csv", *SLOTS, *SIX, "--json") == mist("t.csv", *SLOTS, *PRESET, "--json")


def test_one_coefficient_takes_the_place_of_the_named_one(mist):
    _, out, _ = mist("t.csv", *SLOTS, *PRESET, "--beta-a", "80", "--json")
    assert json.loads(out)["coefficients"]["beta_a"] == 80


def test_a_cycle_makes_seconds(mist):
    _, cycles, _ = mist("t.csv", *SLOTS, *PRESET, "--json")
    _, seconds, _ = mist("t.csv", *SLOTS, *PRESET, "--cycle", "100 us", "--json")
    before, after = json.loads(cycles)["in_flight"], json.loads(seconds)["in_flight"]
    assert after["tpot"] == pytest.approx(1e-4 * before["tpot"])
    assert after["throughput"] == pytest.approx(1e4 * before["throughput"])
    assert after["attention_idle"] == pytest.approx(before["attention_idle"])


def test_who_emits_the_first_token(mist):
    _, prefill, _ = mist("t.csv", *SLOTS, *PRESET, "--json")
    _, decode, _ = mist("t.csv", *SLOTS, *PRESET, "--first-token", "decode", "--json")
    steps = [json.loads(out)["load"]["mean_decode"] for out in (prefill, decode)]
    assert steps[1] == pytest.approx(steps[0] + 1)


def test_coefficients_from_measured_times(mist, tmp_path):
    rows = "part,size,time\nattention,1000,51.65\nattention,2000,53.3\nffn,100,108.3\n"
    rows += "ffn,200,116.6\ncommunication,100,22.2\ncommunication,200,24.4\n"
    (tmp_path / "times.csv").write_text(rows)
    _, out, _ = mist("t.csv", *SLOTS, "--coefficients", "times.csv", "--json")
    assert json.loads(out)["coefficients"]["alpha_a"] == pytest.approx(1.65e-3)


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (("t.csv", *SLOTS), "coefficients are missing: --alpha-a, --beta-a"),
        (("t.csv", *SLOTS, *SIX[:-2]), "coefficients are missing: --beta-c; give all six"),
        (("t.csv", *SLOTS, *PRESET, "--alpha-f", "-1"), "coefficients: alpha_f must be > 0"),
        (("t.csv", *SLOTS, "--coefficients", "deepseek-v3"), "did you mean 'deepseek-v3-ascend"),
        (("t.csv", *SLOTS, *PRESET, "--cycle", "5"), "--cycle: a duration needs a number and"),
        (("t.csv", *SLOTS, *PRESET, "--cycle", "0 s"), "--cycle must be > 0 s"),
        (("t.csv", *SLOTS, *PRESET, "--first-token", "x"), "--first-token must be prefill or"),
        (("t.csv", *SLOTS, *PRESET, "--format", "azur"), "did you mean 'azure'"),
        (("t.csv", *SLOTS, *PRESET, "--format", "lengths_csv"), "t.csv:1: no column"),
        (("none.csv", *SLOTS, *PRESET), "none.csv"),
        (("short.csv", *SLOTS, *PRESET), "too short: it must have 30 requests that decode, or"),
        (("t.csv", *SLOTS, *PRESET, "--beta-f", "1e12"), "above 0, got"),
        (("t.csv", *SLOTS, *PRESET, "--beta-f", "1e13"), "beta_f must be <= 1e+12, got 1e+13"),
        (("t.csv", *SLOTS, *PRESET, "--alpha-a", "9"), "best ratio must be <= 1024"),
        (("t.csv", "--slots", "0", *PRESET), "--slots"),
        (("t.csv", *SLOTS, *PRESET, "--batches", "1"), "--batches"),
    ],
)
def test_bad_input(mist, args, words):
    code, out, err = mist(*args)
    assert (code, out) == (2, "")
    assert words in " ".join(err.split())
