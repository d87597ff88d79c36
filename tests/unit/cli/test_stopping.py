"""Signals to a real `mist` process: it ends at once, with its workers, and leaves nothing."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from mist_sim import output as folders
from mist_sim import output as replacement
from mist_sim.cli import main
from mist_sim.cli.signals import Saved, Stopped, interruption_of, stopping_signals
from tests.commands import exit_code
from tests.conftest import ROOT

if os.name != "posix":
    pytest.skip("signals as POSIX has them", allow_module_level=True)

ENOUGH = 120.0  # to start processes, on a machine that is busy with others
SOON = 10.0  # seconds, on a busy machine: it takes about one, and the runs a minute
SLOW = """
import os, signal, sys, time
from pathlib import Path
from mist_sim import ROUTERS
from mist_sim.cli import main

# shells ignore it for what they start in the background, such as these tests
signal.signal(signal.SIGINT, signal.default_int_handler)

@ROUTERS.register("slow")
class Slow:
    "Say which process it is, and take a minute for the run."
    def choose(self, request, stage, candidates):
        Path("pids", str(os.getpid())).touch()
        time.sleep(0.05)
        return candidates[0].client_id

main(sys.argv[1:])
"""
RUN = ["run", "demo", "--set", "router=slow", "--set", "workload.lengths.num_requests=1200"]
TERM = signal.SIGTERM, 143, "terminated"
HUP = signal.SIGHUP, 129, "hung up"
INT = signal.SIGINT, 130, "interrupted"


def signals(*usual: tuple[signal.Signals, int, str]) -> list[Any]:
    """Return all signals as parameters; those that are not usual are left to the deep tests."""
    rare = [each for each in (TERM, HUP, INT) if each not in usual]
    return [*usual, *(pytest.param(*each, marks=pytest.mark.deep) for each in rare)]


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    Path("pids").mkdir()
    return tmp_path


@contextmanager
def computing(*args: str, num_workers: int = 1) -> Iterator[subprocess.Popen[str]]:
    """Start `mist` with a slow router, as a group of its own; enter when so many compute."""
    command = [sys.executable, "-c", SLOW, *RUN, *args]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    ) as process:
        try:
            wait(lambda: len(pids()) >= num_workers or process.poll() is not None, ENOUGH)
            assert process.poll() is None, process.communicate()
            yield process
        finally:
            process.kill()


def pids() -> list[int]:
    return [int(path.name) for path in Path("pids").iterdir()]


def is_running(pid: int) -> bool:
    stat = Path(f"/proc/{pid}/stat")
    if stat.parent.parent.joinpath("self").exists():
        try:
            return stat.read_text().rpartition(")")[2].split()[0] != "Z"
        except OSError:
            return False
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def wait(condition: Callable[[], bool], seconds: float) -> None:
    end = time.monotonic() + seconds
    while not condition() and time.monotonic() < end:
        time.sleep(0.02)
    assert condition()


def everything() -> list[str]:
    return sorted(str(path) for path in Path().rglob("*") if path.parts[0] != "pids")


@pytest.mark.parametrize(("number", "code", "word"), signals(TERM), ids=str)
def test_signal_ends_workers_of_replications_and_leaves_nothing(number, code, word):
    args = ["--replications", "4", "--jobs", "2", "--out", "a/b"]
    with computing(*args, num_workers=2) as process:
        process.send_signal(number)
        out, err = process.communicate(timeout=SOON)
        assert not any(map(is_running, pids())), "it waits for its workers"
    assert (process.returncode, out) == (code, "")
    assert err == f"{word}; no results were written\n"
    assert everything() == []


@pytest.mark.parametrize(("number", "code", "word"), signals(INT), ids=str)
def test_a_signal_to_all_processes_gives_one_message(number, code, word):
    """What a terminal sends on Ctrl-C, and when it is closed."""
    with computing("--replications", "4", "--jobs", "2", num_workers=2) as process:
        os.killpg(process.pid, number)
        _, err = process.communicate(timeout=SOON)
        assert not any(map(is_running, pids()))
    assert (process.returncode, err) == (code, f"{word}; no results were written\n")


def test_workers_end_with_a_command_that_is_killed():
    with computing("--replications", "4", "--jobs", "2", num_workers=2) as process:
        assert pids()
        process.kill()
        wait(lambda: not any(map(is_running, pids())), SOON)


def test_a_signal_ends_a_run_and_a_second_one_does_not_disturb_that():
    Path("mine").mkdir()
    with computing("--out", "mine") as process:
        Path("mine/theirs.txt").write_text("theirs")
        process.send_signal(signal.SIGTERM)
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=SOON)
    assert (process.returncode, out) in [(143, ""), (130, "")]
    assert err.endswith("; no results were written\n")
    assert err.count("\n") == 1
    assert everything() == ["mine", "mine/theirs.txt"]


def test_a_hangup_that_is_ignored_stays_ignored():
    """What `nohup` does."""
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with computing() as process:
            process.send_signal(signal.SIGHUP)
            time.sleep(0.5)
            assert process.poll() is None
    finally:
        signal.signal(signal.SIGHUP, before)


@pytest.mark.parametrize("others", [[], ["--replications", "2", "--jobs", "1"]], ids=str)
def test_a_second_run_is_told_at_once_that_its_folder_is_in_use(capsys, others):
    with computing("--out", "a", *others) as first:
        with pytest.raises(SystemExit) as leaving:
            main(["run", "demo", "--out", "a", "--set", "workload.lengths.num_requests=5"])
        assert first.poll() is None, "it has to be told while the first computes"
    assert leaving.value.code == 2
    assert capsys.readouterr().err == (
        "error: output folder a: is in use: another run is about to write it; wait for its end, "
        "or name another\n"
    )


def test_a_demo_beside_another_takes_the_next_folder(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    with computing("--out", "mist-demo"), pytest.raises(SystemExit) as leaving:
        main(["demo"])
    assert leaving.value.code == 0
    assert "mist-demo is taken; the results go to mist-demo-2" in capsys.readouterr().err


def test_an_interruption_after_results_are_written_says_so(capsys, monkeypatch):
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("mist_sim.metrics.Result.show", interrupted)
    assert exit_code("run", "demo", "--out", "a", "--set", "workload.lengths.num_requests=5") == 130
    assert capsys.readouterr().err == "interrupted; the results are in a\n"
    assert Path("a/summary.json").exists()


@pytest.mark.parametrize("command", [["demo", "--out", "a"], ["schema", "--out", "a"]])
def test_a_signal_after_all_is_written_and_said_says_where_it_is(command, capsys, monkeypatch):
    def interrupted(*_: object) -> None:
        signal.raise_signal(signal.SIGTERM)

    monkeypatch.setattr(Saved, "__exit__", interrupted)
    assert exit_code(*command) == 143
    assert capsys.readouterr().err.splitlines()[-1] == "terminated; the results are in a"


def test_interruption_does_not_name_results_of_command_before(capsys, monkeypatch):
    exit_code("schema", "--out", "a")

    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("mist_sim.metrics.Result.show", interrupted)
    exit_code("demo", "--out", "mist-demo")
    assert capsys.readouterr().err.splitlines()[-1] == "interrupted; the results are in mist-demo"
    exit_code("run", "demo")
    assert capsys.readouterr().err == "interrupted; no results were written\n"


WRITERS = {
    "a new folder": (["demo", "--out", "a"], Path, "rename"),
    "an empty folder": (["demo", "--out", "empty"], replacement, "replace"),
    "a file": (["schema", "--out", "b.json"], Path, "replace"),
}


@pytest.mark.parametrize("case", WRITERS)
def test_a_signal_while_results_go_into_their_place_waits_until_they_are_there(
    case, capsys, monkeypatch
):
    """What nobody knows to be done yet would be told as not written."""
    command, home, name = WRITERS[case]
    move = getattr(home, name)

    def interrupted(*args: Any) -> None:
        move(*args)
        signal.raise_signal(signal.SIGHUP)

    monkeypatch.setattr(home, name, interrupted)
    Path("empty").mkdir()
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)  # a test run under nohup ignores it
    try:
        assert exit_code(*command) == 129
    finally:
        signal.signal(signal.SIGHUP, before)
    said = capsys.readouterr().err.splitlines()[-1]
    assert said == f"hung up; the results are in {command[-1]}"
    found = {"a": "a/summary.json", "empty": "empty/summary.json"}.get(command[-1], command[-1])
    assert Path(found).exists()
    assert not list(Path().glob(".*"))


def test_signal_while_results_are_kept_beside_says_where(capsys, monkeypatch):
    """Somebody puts a file into the place, and the signal comes at the same time."""
    Path("a").mkdir()
    sums, beside = folders.write_sums, folders._free_name

    def others(new: Path) -> None:
        sums(new)
        Path("a/summary.json").write_text("theirs")

    def interrupted(*args: Any) -> Path:
        signal.raise_signal(signal.SIGTERM)
        return beside(*args)

    monkeypatch.setattr(folders, "_free_name", interrupted)
    monkeypatch.setattr(folders, "write_sums", others)
    assert exit_code("demo", "--out", "a") == 143
    assert capsys.readouterr().err.splitlines()[-1] == "terminated; the results are in a-2"
    assert Path("a-2/summary.json").exists()


# --- what becomes of the exception ------------------------------------------------------------


def test_an_interruption_that_became_another_error_is_one(capsys, monkeypatch):
    """As where a class is made: Python turns what its attributes raise into a RuntimeError."""

    def interrupted(*_: object, **__: object) -> None:
        try:
            raise Stopped(signal.SIGTERM)
        except Stopped as stop:
            raise RuntimeError("Error calling __set_name__") from stop

    monkeypatch.setattr("mist_sim.scenario.simulate", interrupted)
    assert exit_code("run", "demo", "--out", "a") == 143
    assert capsys.readouterr().err == "terminated; no results were written\n"
    assert everything() == []


def test_an_error_after_an_error_is_no_interruption():
    first = ValueError()
    first.__context__ = second = TypeError()
    second.__context__ = first
    assert interruption_of(first) is None
    second.__context__ = stop = KeyboardInterrupt()
    assert interruption_of(first) is stop
    assert interruption_of(None) is None


class Dying:
    """Takes a signal while Python swallows exceptions."""

    def __del__(self) -> None:
        signal.raise_signal(signal.SIGTERM)
        time.sleep(0.05)


def test_an_interruption_that_is_swallowed_comes_again(capsys):
    alarm = signal.getsignal(signal.SIGALRM)
    start = time.monotonic()

    def work() -> None:
        Dying()
        while time.monotonic() < start + SOON:
            time.sleep(0.01)

    with pytest.raises(Stopped) as stopped, stopping_signals():
        work()
    assert stopped.value.number == signal.SIGTERM
    assert time.monotonic() < start + SOON
    assert capsys.readouterr().err == "", "no traceback of what was swallowed"
    assert signal.getitimer(signal.ITIMER_REAL) == (0.0, 0.0)
    assert signal.getsignal(signal.SIGALRM) == alarm


def test_an_interruption_comes_once_while_the_command_leaves():
    seen = []

    def work() -> None:
        try:
            signal.raise_signal(signal.SIGTERM)
            time.sleep(1)
        except Stopped as stop:
            seen.append(stop.number)
            time.sleep(0.5)  # as one that ends its workers
            raise

    with pytest.raises(Stopped), stopping_signals():
        work()
    assert seen == [signal.SIGTERM]
