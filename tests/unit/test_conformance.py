"""`python -m conformance`, with a stand-in for vLLM that knows the results of a log."""

import json
import sys
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from conformance import __main__ as conformance
from conformance import logs
from conformance.vllm_side import __main__ as theirs
from conformance.workloads import CLASSES
from tests.conftest import ROOT

LOG = ROOT / "tests/golden/vllm/0.19.0-sync.jsonl"
NAMES = ("scarce, no cache", "scarce, repeats")
SEEDS = {
    (spec["name"], spec["seed"]): found for spec, found in logs.read(LOG) if spec["name"] in NAMES
}
STAND_IN = """
import json, sys
specs, log = json.load(sys.stdin), json.load(open({log!r}))
print(json.dumps({{"version": "0.19.0", "options": {{"scheduler_reserve_full_isl": True}}}}))
for number, spec in enumerate(specs):
    if number == {most}:
        sys.exit("no more")
    stuck = {{"stuck": True}}
    if spec["name"].startswith("windows"):
        stuck = {{"failed": "TypeError: no windows", "built": False}}
    print(json.dumps(log.get(spec["name"] + str(spec["seed"]), stuck)), flush=True)
with open({asked!r}, "a") as file:
    file.write(str(len(specs)) + " ")
"""


def stand_in(folder: Path, most: int = -1) -> Path:
    """Return what is called as a Python with vLLM. most: workloads before it ends early."""
    log, program, python = folder / "log.json", folder / "stand_in.py", folder / "python"
    known = {name + str(seed): found | {"stuck": False} for (name, seed), found in SEEDS.items()}
    log.write_text(json.dumps(known))
    program.write_text(
        STAND_IN.format(log=str(log), asked=str(folder / "asked"), most=most), "utf-8"
    )
    python.write_text(f'#!/bin/sh\nexec {sys.executable} {program} "$@"\n')
    python.chmod(0o755)
    return python


def run(*words: object) -> Result:
    app = conformance.typer.Typer()
    app.command()(conformance.main)
    return CliRunner().invoke(app, [str(word) for word in words])


def of_log(folder: Path, python: Path, *words: object) -> Result:
    """Compare the workloads of the log, which are those of logs: `--log` makes them small."""
    seeds = [seed for _, seed in SEEDS]
    first, number = min(seeds), max(seeds) - min(seeds) + 1
    only = "|".join(("windows, ample", *NAMES))
    options = ("--only", only, "--first", first, "--number", number, "--log", folder / "new.jsonl")
    return run("--python", python, *options, *words)


def test_a_sample_of_every_class_runs_by_default():
    specs = conformance.specs_of("", range(3), 1, is_log=False)
    names = [spec["name"] for spec in specs]
    assert set(names) == set(CLASSES)
    assert len(specs) < 500  # minutes
    short = [name for name, kind in CLASSES.items() if not kind.long]
    assert names[: len(CLASSES)] == list(CLASSES)  # all classes before any runs again
    assert names[len(CLASSES) :] == short * 2


def test_the_results_of_a_log_are_equal_and_what_cannot_be_built_has_a_line(tmp_path):
    found = of_log(tmp_path, stand_in(tmp_path), "--seeds")
    assert found.exit_code == 0, found.output
    assert "equal to vLLM 0.19.0, synchronous" in found.output
    assert "differs from" not in found.output
    assert [row for row in found.output.splitlines() if NAMES[0] in row and "100.0%" in row]
    left_out = "windows, ample: left out, vLLM 0.19.0 cannot build it (TypeError: no windows)"
    assert " ".join(found.output.split()).count(left_out) == 1  # of many workloads
    written = logs.read(tmp_path / "new.jsonl")
    assert {(spec["name"], spec["seed"]) for spec, _ in written} == set(SEEDS)


def test_results_are_kept_and_none_runs_twice(tmp_path):
    keep = tmp_path / "kept.jsonl"
    found = of_log(tmp_path, stand_in(tmp_path, most=4), "--keep", keep)
    assert found.exit_code == 2
    assert "ended early" in found.output
    assert len(keep.read_text().splitlines()) == 1 + 4
    keep.write_text(keep.read_text() + '["scarce, no c')  # a line that was cut off
    whole = of_log(tmp_path, stand_in(tmp_path), "--keep", keep)
    assert whole.exit_code == 0, whole.output
    lines = [json.loads(line)[:2] for line in keep.read_text().splitlines()[1:]]
    assert len(lines) == len({tuple(line) for line in lines}) == int(asked(tmp_path)[0]) + 4
    again = of_log(tmp_path, Path("no-python"), "--keep", keep)
    assert again.exit_code == 0, again.output
    assert again.output == whole.output


def asked(folder: Path) -> list[str]:
    return (folder / "asked").read_text().split()


def test_results_of_another_kind_are_refused(tmp_path):
    keep = tmp_path / "kept.jsonl"
    of_log(tmp_path, stand_in(tmp_path), "--keep", keep)
    other = of_log(tmp_path, stand_in(tmp_path), "--keep", keep, "--async")
    assert other.exit_code == 2
    assert "has results without --async: name another file" in " ".join(other.output.split())


@pytest.mark.parametrize("text", ['{"version": "0.19.0"}', '{"version": "0.19.0"}\n'])
def test_file_of_something_else_is_refused_and_stays(text, tmp_path):
    keep = tmp_path / "kept.json"
    keep.write_text(text)
    found = of_log(tmp_path, stand_in(tmp_path), "--keep", keep)
    assert found.exit_code == 2
    assert "is no file of results: name another one" in " ".join(found.output.split())
    assert keep.read_text() == text


def test_what_ran_before_a_stop_is_shown(tmp_path, monkeypatch):
    add, compared = conformance.Findings.add, []

    def stopped_at_the_third(self, spec: dict[str, Any], result: dict[str, Any]) -> None:
        if len(compared) == 2:
            raise KeyboardInterrupt
        add(self, spec, result)
        compared.append(spec["name"])

    monkeypatch.setattr(conformance.Findings, "add", stopped_at_the_third)
    monkeypatch.setattr(conformance.logs, "write", None)  # no log of a part
    keep = tmp_path / "kept.jsonl"
    found = of_log(tmp_path, stand_in(tmp_path), "--keep", keep)
    assert found.exit_code == 130
    assert f"stopped; --keep {keep} goes on" in found.output.replace("\n", "")
    assert len(keep.read_text().splitlines()) >= 1 + 2


class Built:
    """An engine that one class has, and that hangs."""

    def __init__(self, spec: dict[str, Any], asynchronous: bool, options: dict[str, Any]) -> None:
        self.name = spec["name"]
        if self.name == "no scheduler":
            raise AssertionError("states need align\nand more")

    def run(self) -> dict[str, Any]:
        if self.name == "fails":
            raise KeyError("block")
        return {"stuck": True}


def test_the_side_of_vllm_goes_on_after_a_class_that_fails(monkeypatch, capsys):
    monkeypatch.setattr(theirs, "Engine", Built)
    monkeypatch.setattr(theirs, "lacks", lambda spec: "it has no lacks" * (spec["name"] == "lacks"))
    names = ["lacks", "no scheduler", "fails", "hangs", "no scheduler"]
    specs = [{"name": name, "num_engines": 1, "jobs": [{}]} for name in names]
    cannot = {"failed": "AssertionError: states need align", "built": False}
    assert list(theirs.results(specs, False, {})) == [
        {"failed": "it has no lacks", "built": False},
        cannot,
        {"failed": "KeyError: 'block'", "built": True},
        {"stuck": True},
        cannot,
    ]
    assert "KeyError" in capsys.readouterr().err


@pytest.mark.parametrize(("states", "code"), [(False, 0), (True, 1)])
def test_class_in_which_vllm_fails_ends_with_1(states, code, monkeypatch, capsys):
    runs = conformance.Runs("python")
    runs.header = {"version": "0.33.0", "options": {"scheduler_reserve_full_isl": True}}
    findings = conformance.Findings(runs)
    findings.add({"name": "scarce", "seed": 3}, {"failed": "KeyError: 7", "built": states})
    what = "fails in it" if states else "cannot build it"
    assert f"scarce: left out, vLLM 0.33.0 {what} (KeyError: 7)" in capsys.readouterr().out
    assert any(each["built"] for each in findings.left_out.values()) == bool(code)
