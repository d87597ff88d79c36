"""The processes of `--jobs`: what they import, and that they end with the command."""

import json
import os
import shutil
import signal
import subprocess
import sys
import sysconfig
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Event, Thread
from typing import Any

import pytest

from mist_sim.studies.workers import set_variables, variables_for_workers, while_processes_start
from tests.commands import exit_code
from tests.conftest import ROOT
from tests.processes import SEES_PROCESSES, in_session, wait_until_gone
from tests.reference.scenarios import of_profile

SMALL = {
    "model": "llama-3.1-8b",
    "slo": {"ttft": "1 s", "tpot": "50 ms"},
    "workload": of_profile(12, "30 /s"),
    "clients": [{"name": "llm", "gpu": "h100-sxm"}],
}
VERBS = {
    "run": ["run", "a.yaml", "--replications=3"],
    "vary": ["run", "a.yaml", "--vary=seed=1,2"],
    "goodput": ["goodput", "a.yaml", "--replications=2", "--rates=1:40", "--as-is"],
    "compare": ["compare", "a.yaml", "b.yaml"],
    "sliders": [
        "sliders",
        "taichi-hybrid",
        "--chunks=512",
        "--as-is",
        "--set=workload.lengths.num_requests=5",
    ],
}
HOSTILE = [
    *("numpy", "joblib", "random", "loky", "cloudpickle", "signal", "pickle", "argparse", "socket"),
    *("threading", "tempfile", "multiprocessing", "struct", "json", "pandas", "pydantic", "simpy"),
]
COMMANDS = {
    "mist": [str(Path(sysconfig.get_path("scripts"), "mist"))],
    "module": [sys.executable, "-m", "mist_sim"],
}


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.delenv("PYTHONPATH", raising=False)
    Path("a.yaml").write_text(json.dumps(SMALL))
    Path("b.yaml").write_text(json.dumps(SMALL | {"router": "random"}))
    return tmp_path


# --- what lies in the working directory ---------------------------------------------------------


CASES = [
    ("run", "mist"),
    pytest.param("run", "module", marks=pytest.mark.deep),
    *(pytest.param(verb, "mist", marks=pytest.mark.deep) for verb in VERBS if verb != "run"),
]


def hostile() -> None:
    for name in HOSTILE:
        Path(f"{name}.py").write_text("open('executed', 'a').write(__name__ + '\\n')\n")


@pytest.mark.parametrize(("verb", "command"), CASES)
def test_no_process_executes_what_lies_in_working_directory(verb, command, capsys):
    exit_code(*VERBS[verb], "--jobs=1", "-q")
    expected = capsys.readouterr().out
    hostile()
    ran = subprocess.run(
        [*COMMANDS[command], *VERBS[verb], "--jobs=2", "-q"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert not Path("executed").exists(), Path("executed").read_text()
    assert (ran.returncode, ran.stdout, ran.stderr) == (0, expected, "")
    assert len(expected.splitlines()) > 3, "results, not a message"


def test_the_module_leaves_the_working_directory_out():
    hostile()
    command = [*COMMANDS["module"], "run", "a.yaml", "--json", "-q"]
    ran = subprocess.run(command, capture_output=True, text=True, check=True)
    assert not Path("executed").exists(), Path("executed").read_text()
    assert json.loads(ran.stdout)["completed"] == 12


def test_the_working_directory_stays_where_the_package_itself_comes_from_it():
    """As in a copy of the repository that is not installed: workers have to find it, too."""
    Path("mist_sim").mkdir()
    Path("mist_sim/__init__.py").touch()
    shutil.copy(ROOT / "mist_sim/__main__.py", "mist_sim")
    Path("mist_sim/cli.py").write_text("import sys\ndef main(): print(sys.path[0])\n")
    ran = subprocess.run(COMMANDS["module"], capture_output=True, text=True, check=True)
    assert ran.stdout.strip() == str(Path.cwd())


SCRIPT = """
import plugin_beside
from mist_sim import Scenario, replicate

if __name__ == "__main__":
    replicate(Scenario.load("a.yaml", {"replications": 2, "router": "beside"}), jobs=2)
"""
PLUGIN = """
import os
from dataclasses import dataclass
from pathlib import Path
from mist_sim import ROUTERS

@ROUTERS.register("beside")
@dataclass
class Beside:
    "Take the first, and note what programs would be told that this process starts."
    def choose(self, request, stage, candidates):
        import helper_beside
        variables = [os.environ.get(name) for name in ("PYTHONSAFEPATH", "PYTHONWARNINGS")]
        Path("seen", str(os.getpid())).write_text(str(variables))
        return candidates[0].client_id
"""


def test_a_script_and_what_lies_beside_it_work_in_other_processes_too(monkeypatch):
    """Workers import from where the script does, and give on the environment as it was."""
    Path("scripts").mkdir()
    Path("seen").mkdir()
    Path("scripts/script.py").write_text(SCRIPT)
    Path("scripts/plugin_beside.py").write_text(PLUGIN)
    Path("scripts/helper_beside.py").touch()
    monkeypatch.setenv("PYTHONWARNINGS", "ignore::ResourceWarning")
    subprocess.run([sys.executable, "scripts/script.py"], check=True, capture_output=True)
    seen = {path.read_text() for path in Path("seen").iterdir()}
    assert seen == {"[None, 'ignore::ResourceWarning']"}


def test_variables_are_as_before(monkeypatch):
    monkeypatch.setenv("PYTHONWARNINGS", "default")
    monkeypatch.delenv("PYTHONSAFEPATH", raising=False)
    with variables_for_workers() as before:
        assert os.environ["PYTHONSAFEPATH"] == "1"
        assert os.environ["PYTHONWARNINGS"].startswith("default,ignore:resource_tracker")
        assert before == {"PYTHONSAFEPATH": None, "PYTHONWARNINGS": "default"}
        set_variables(before)
        assert "PYTHONSAFEPATH" not in os.environ
    assert "PYTHONSAFEPATH" not in os.environ
    assert os.environ["PYTHONWARNINGS"] == "default"


def test_run_that_is_closed_late_leaves_no_variables(monkeypatch):
    monkeypatch.delenv("PYTHONSAFEPATH", raising=False)
    stopped, later = variables_for_workers(), variables_for_workers()
    before = stopped.__enter__()
    assert later.__enter__() == before
    stopped.__exit__(None, None, None)
    later.__exit__(None, None, None)
    assert "PYTHONSAFEPATH" not in os.environ


# --- the end of the command ---------------------------------------------------------------------

STOPPED = """
import os, signal, sys, time
from loky.backend.popen_loky_posix import Popen
from mist_sim.cli import main

signal.signal(signal.SIGINT, signal.default_int_handler)  # shells let the background ignore it
number, left = signal.Signals(int(sys.argv.pop(1))), int(sys.argv.pop(1))
launch = Popen._launch

def launch_and_stop(*args):
    global left
    launch(*args)
    left -= 1
    if not left:
        time.sleep(0.15 if number == signal.SIGINT else 0.0)  # they import something
        (os.kill if number == signal.SIGKILL else os.killpg)(os.getpid(), number)

Popen._launch = launch_and_stop
main(["run", "a.yaml", "--replications=2", "--jobs=2", "--out", "a"])
"""


@contextmanager
def stopped_while_workers_start(number: signal.Signals, num_workers: int) -> Iterator[Any]:
    """Start a command that gets a signal when so many workers have been started; wait for it."""
    command = [sys.executable, "-c", STOPPED, str(int(number)), str(num_workers)]
    with subprocess.Popen(
        command,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        start_new_session=True,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        process.wait(120)
        yield process
        wait_until_gone(process.pid, 5.0)


@pytest.mark.skipif(not SEES_PROCESSES, reason="needs /proc")
@pytest.mark.parametrize("num_workers", [1, 2])
def test_nobody_is_left_of_a_command_that_is_killed_while_workers_start(num_workers):
    """Before the first has its task; their parent is gone before they have imported anything."""
    with stopped_while_workers_start(signal.SIGKILL, num_workers) as process:
        left = len(in_session(process.pid))
        assert 0 < left <= num_workers + 2, "and two that clean up; some may be gone by now"


@pytest.mark.skipif(not SEES_PROCESSES, reason="needs /proc")
@pytest.mark.parametrize(
    "name",
    ["SIGINT", *(pytest.param(name, marks=pytest.mark.deep) for name in ("SIGHUP", "SIGTERM"))],
)
def test_a_terminal_that_stops_all_while_workers_start_gets_one_message(name):
    """A worker that is interrupted while it imports something says where."""
    number = signal.Signals[name]
    with stopped_while_workers_start(number, 2) as process:
        assert process.returncode == 128 + number
        word = {"SIGINT": "interrupted", "SIGHUP": "hung up", "SIGTERM": "terminated"}[name]
        assert process.stderr.read() == f"{word}; no results were written\n"
        assert not Path("a").exists()


@pytest.mark.skipif(os.name != "posix", reason="needs signals of POSIX")
@pytest.mark.parametrize("name", ["SIGINT", "SIGHUP", "SIGTERM"])
def test_a_signal_that_another_thread_takes_waits_until_processes_have_started(name):
    """Such as a thread of a BLAS library, where they are not blocked."""
    number = signal.Signals[name]
    come = Event()
    taker = Thread(target=lambda: (come.wait(), signal.raise_signal(number)))
    taker.start()
    before = signal.signal(number, signal.default_int_handler)
    started = []

    def start_some() -> None:
        with while_processes_start():
            come.set()
            taker.join()
            started.append("all")

    try:
        with pytest.raises(KeyboardInterrupt):
            start_some()
        assert signal.getsignal(number) is signal.default_int_handler
    finally:
        signal.signal(number, before)
    assert started


@pytest.mark.skipif(os.name != "posix", reason="other systems do not tell")
def test_worker_whose_parent_is_gone_ends_at_once():
    code = "from mist_sim.studies.workers import end_with; end_with({}); print('here')"
    for parent, expected in ((os.getpid(), (0, "here\n")), (os.getpid() + 1, (1, ""))):
        command = [sys.executable, "-c", code.format(parent)]
        ran = subprocess.run(command, capture_output=True, text=True, check=False)
        assert (ran.returncode, ran.stdout) == expected


CACHED = """
from functools import cache
import mist_sim as mist

@cache
def lengths(number):
    return [10] * number

def make(number):
    work = mist.Workload.from_lists(lengths(number), lengths(number))
    llm = mist.llm_client("a", model="qwen3-4b", gpu="l4")
    return mist.Simulation(clients=[llm], workload=work)

if __name__ == "__main__":
    mist.study(make, vary={"number": [5, 6]}, jobs=2)
"""


def test_a_program_whose_functions_cannot_be_read_elsewhere_is_told_so(tmp_path):
    """Caches of the main program travel by name, and processes have another main program."""
    program = tmp_path / "program.py"
    program.write_text(CACHED)
    done = subprocess.run(
        [sys.executable, str(program)],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert "such as a cached function of the program that is run" in done.stderr
    assert "ended from outside" not in done.stderr
