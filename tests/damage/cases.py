"""Cases of every kind: each reads something damaged in the working directory, as a user would.

A case passes when it is read, or refused in time with a message that fits a terminal; it raises
what a user would have to report.
"""

import io
import os
from collections.abc import Callable
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any

from mist_sim import Scenario, ScenarioError
from mist_sim.cli import main
from mist_sim.cli.scenario_input import load
from mist_sim.scenario.build import build
from mist_sim.traces import TRACE_READERS
from tests.damage.draws import Draw
from tests.damage.limits import time_limit
from tests.damage.other_files import damaged_files, remove, write
from tests.damage.scenarios import damaged_text, extreme_scenario
from tests.damage.traces import damaged_trace
from tests.damage.yaml_files import as_yaml, bomb, damaged_yaml

_LONGEST = 2_100  # characters of a line
_REFUSED, _MISSED = 2, 3  # exit codes


def furnish() -> None:
    """Put what paths of scenarios lead to into the working directory: a folder, and a pipe."""
    Path("folder").mkdir(exist_ok=True)
    if hasattr(os, "mkfifo") and not Path("pipe").exists():
        os.mkfifo("pipe")


def attempt(case: str, do: Callable[[], Any], said: str = "") -> Any:
    """Return what `do` does, or None where the input is refused: in time, and with a message.

    said: what the message has to name.
    """
    with time_limit(case):
        try:
            return do()
        except ScenarioError as error:
            message = str(error)
    assert message.strip(), case
    assert said in message, f"{case}: {message[:300]}"
    _check_fits(case, message)
    return None


def _check_fits(case: str, text: str) -> None:
    assert all(len(line) < _LONGEST for line in text.splitlines()), f"{case}: {text[:300]}"
    for words in ("function-", "tuple[", "is-instance", "lax-or-strict"):
        assert words not in text, f"{case}: a word of pydantic: {text[:300]}"


def scenario_case(number: int) -> bool:
    """Load and build a scenario file; tell whether it was taken."""
    Path("s.yaml").write_bytes(damaged_yaml(number))
    taken = _loads(f"scenario {number}") is not None
    if taken and number % 10 == 0:
        _check_resolved(f"scenario {number}")
    elif not taken and number % 10 == 0:
        assert run_cli(f"scenario {number}", "run", "s.yaml") == _REFUSED, number
    return taken


def _loads(case: str) -> Scenario | None:
    def read() -> Scenario:
        scenario = load("s.yaml", {}, allow_programs=False)
        build(scenario)
        return scenario

    scenario: Scenario | None = attempt(case, read)
    return scenario


def _check_resolved(case: str) -> None:
    """Nothing is lost on the way to a file and back."""
    scenario = Scenario.load("s.yaml")
    Path("resolved.yaml").write_text(scenario.resolved(), "utf-8")
    assert Scenario.load("resolved.yaml") == scenario, case


def text_case(number: int) -> bool:
    """Load a scenario file that lost characters."""
    Path("s.yaml").write_bytes(damaged_text(number))
    case = f"text {number}"
    return attempt(case, lambda: load("s.yaml", {}, allow_programs=False), "s.yaml") is not None


def bomb_case(number: int) -> bool:
    """Load a scenario file that holds far more than it is long."""
    Path("s.yaml").write_text(bomb(number), "utf-8")
    return _loads(f"bomb {number}") is not None


def trace_case(number: int) -> bool:
    """Read a whole trace."""
    kind, content = damaged_trace(number)
    path = f"{kind}.trace"
    Path(path).write_bytes(content)
    rows = attempt(f"trace {number}", lambda: list(TRACE_READERS[kind](path=path).rows()), path)
    if rows is not None and kind == "mooncake":  # a row for each line, and none lost
        lines = [line for line in content.decode("utf-8-sig").split("\n") if line.strip()]
        assert len(rows) == len(lines), f"trace {number}"
    return rows is not None


def file_case(number: int) -> bool:
    """Read a file of another kind, and run three requests with it where a scenario names it."""
    kind, files, read = damaged_files(number)
    write(files, Draw(f"write {number}"))
    try:
        return attempt(f"file {number} ({kind})", read) is not None
    finally:
        remove(files)


def run_case(number: int) -> bool:
    """Run a scenario of extremes by the command line; tell whether it ran."""
    Path("s.yaml").write_text(as_yaml(extreme_scenario(number)), "utf-8")
    return run_cli(f"run {number}", "run", "s.yaml", "-q") != _REFUSED


def run_cli(case: str, *words: str) -> int:
    """Run a command line; return the exit code, which is that of a bug nowhere."""
    out, err = io.StringIO(), io.StringIO()
    code = 0
    with time_limit(case), redirect_stdout(out), redirect_stderr(err):
        try:
            main(words)
        except SystemExit as leaving:
            code = int(leaving.code or 0)
    said = err.getvalue()
    assert code in (0, _REFUSED, _MISSED), f"{case}: {code}: {said[:1_000]}"
    assert bool(said.strip()) == (code == _REFUSED), f"{case}: {code}: {said[:1_000]}"
    _check_fits(case, said)
    return code


KINDS: dict[str, tuple[Callable[[int], bool], int]] = {
    "scenario": (scenario_case, 45),
    "text": (text_case, 10),
    "bomb": (bomb_case, 3),
    "trace": (trace_case, 15),
    "file": (file_case, 22),
    "run": (run_case, 5),
}
"""What does a case of a kind, and how many of a hundred are of it."""
