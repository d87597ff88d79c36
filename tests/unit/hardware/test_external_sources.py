"""Programs that time steps, over JSON lines; and predictors that come as plugins."""

import json
import os
import shlex
import sys
import time

import pytest

import mist_sim as mist
from mist_sim.core.batch import StepBatch
from mist_sim.errors import ScenarioError
from mist_sim.hardware.predictors import PREDICTORS
from mist_sim.hardware.predictors.external import ProgramPredictor
from tests.conftest import ROOT
from tests.reference.scenarios import of_profile
from tests.refusals import refused

DECODES = StepBatch((), 32, 32 * 1024)
PROMPT = StepBatch(((2048, 0),))


def parts(model="llama-3.1-8b", gpu="h100-sxm", ranks=1, **split):
    spec = mist.load_model(model) if isinstance(model, str) else model
    return {"model": spec, "cluster": mist.Cluster(mist.load_gpu(gpu), ranks, **split)}


@pytest.mark.parametrize("name", ["genz", "silicon"])
def test_a_missing_plugin_says_how_to_install_it(name, monkeypatch):
    monkeypatch.setattr(PREDICTORS, "_classes", {})
    monkeypatch.setattr(PREDICTORS, "_offers", {})
    says = rf"no predictor named '{name}' without its plugin: pip install \./plugins/{name}"
    data = {
        "model": "llama-3.1-8b",
        "workload": of_profile(2, "5 /s"),
        "clients": [{"name": "llm", "gpu": "h100-sxm", "predictor": name}],
    }
    for read in (lambda: PREDICTORS[name], lambda: mist.Scenario.from_dict(data)):
        with pytest.raises(ScenarioError, match=says):
            read()


def test_pipelines_are_refused():
    with pytest.raises(ScenarioError, match=r"pipeline_parallel_size must be 1 with \w+, which"):
        ProgramPredictor(**parts(pipeline_parallel_size=2), command="none")


# --- programs ---------------------------------------------------------------------------------

GREETING = '{"protocol": 1, "version": "1"}'


def command(script, tmp_path):
    """Return the command of a Python program."""
    path = tmp_path / "program.py"
    path.write_text(script)
    return shlex.join([sys.executable, str(path)])


def answers(body, greeting=GREETING):
    """Return a program that greets, and then runs `body` for each line with its `batches`."""
    return (
        "import json, sys\n"
        "setting = json.loads(sys.stdin.readline())\n"
        f"print('{greeting}', flush=True)\n"
        "for line in sys.stdin:\n"
        "    batches = json.loads(line)['batches']\n"
        f"    {body}\n"
    )


def constant(value):
    return answers(f"print(json.dumps({{'seconds': [{value}] * len(batches)}}), flush=True)")


def test_program_is_asked_and_its_times_are_kept(tmp_path):
    count = "print(line, file=open('asked', 'a')); "
    times = "[0.001 + 1e-6 * (b['context_sum'] + sum(n for n, _ in b['chunks'])) for b in batches]"
    script = answers(f"{count}print(json.dumps({{'seconds': {times}}}), flush=True)")
    program = command(script.replace("'asked'", repr(str(tmp_path / "asked"))), tmp_path)
    first = ProgramPredictor(**parts(), command=program)
    num_asked = len((tmp_path / "asked").read_text().splitlines())
    second = ProgramPredictor(**parts(), command=program)
    assert first.step_time(StepBatch(((64, 0),))) == pytest.approx(0.001064)
    assert second.step_time(DECODES) == first.step_time(DECODES) == pytest.approx(0.033768)
    assert len((tmp_path / "asked").read_text().splitlines()) == num_asked
    ProgramPredictor(**parts(ranks=2), command=program)
    assert len((tmp_path / "asked").read_text().splitlines()) == 2 * num_asked


@pytest.mark.skipif(os.name != "posix", reason="no groups of processes")
@pytest.mark.parametrize(
    "script",
    [
        "import subprocess; subprocess.Popen(['sleep', '60'])",
        "import os, time; os.fork(); time.sleep(60)",
        "while True: print('{}', flush=True)",
        "print('x' * 2**24, flush=True)",
    ],
)
def test_what_program_leaves_behind_is_not_waited_for(tmp_path, script):
    """A child that holds its output open kept mist waiting until it ended."""
    start = time.monotonic()
    with pytest.raises(ScenarioError):
        ProgramPredictor(**parts(), command=command(script, tmp_path), timeout=0.5)
    assert time.monotonic() - start < 20


def test_a_program_that_answers_without_reading_is_ended(tmp_path, monkeypatch):
    monkeypatch.setattr("mist_sim.hardware.predictors.external.PROTOCOL", [1] * 2**18)
    start = time.monotonic()
    with pytest.raises(ScenarioError, match="did not read its question within 0.5 s"):
        ProgramPredictor(
            **parts(), command=command("import time; time.sleep(60)", tmp_path), timeout=0.5
        )
    assert time.monotonic() - start < 20


def test_a_program_learns_what_it_times(tmp_path):
    size = "setting['model']['hidden_size'] * setting['cluster']['tensor_parallel_size']"
    program = command(constant(size), tmp_path)
    assert ProgramPredictor(**parts(ranks=2), command=program).step_time(DECODES) == 8192.0


@pytest.mark.parametrize(
    ("script", "message"),
    [
        ("raise SystemExit('out of order')", "ended with exit code 1 .*error: out of order"),
        ("import time; time.sleep(60)", "gave no answer within 0.5 s"),
        ("print('hello')", "must answer with a line of one JSON object, got .*hello"),
        ("print('[1]')", "must answer with a line of one JSON object"),
        ("print('[' * 100000)", "must answer with a line of one JSON object"),
        ("print('{}')", "must answer .*protocol.* first, got {}"),
        (answers("pass", '{"protocol": 9, "version": "1"}'), "first, got .*9"),
        (answers("print('{}', flush=True)"), "must answer .*seconds.* with 64 numbers"),
        (answers("raise SystemExit(3)"), "ended with exit code 3 instead of an answer"),
        (answers("import time; time.sleep(60)"), "gave no answer within 0.5 s"),
        (constant("-1.0"), r"must give finite times > 0 s, got -1.0 for .*\[\[1, 0\]\]"),
        (constant("float('nan')"), "must give finite times > 0 s, got NaN"),
        (constant("'fast'"), "must give finite times > 0 s, got .*fast"),
        (constant("True"), "must give finite times > 0 s, got true"),
    ],
)
def test_programs_that_do_not_answer(script, message, tmp_path):
    with pytest.raises(ScenarioError, match=message):
        ProgramPredictor(**parts(), command=command(script, tmp_path), timeout=0.5)


@pytest.mark.parametrize("command", ["no-such-program-anywhere", '"unclosed', "/"])
def test_programs_that_cannot_be_started(command):
    with pytest.raises(ScenarioError, match="cannot be started"):
        ProgramPredictor(**parts(), command=command)


test_nonsense_is_refused = refused(
    lambda options: ProgramPredictor(**parts(), **options),
    ({"command": " "}, "command must not be empty"),
    ({"command": "x", "timeout": 0.0}, "timeout must be finite and > 0 s"),
    ({"command": "x", "timeout": float("nan")}, "timeout must be finite and > 0 s"),
    error=ValueError,
)


def test_a_scenario_runs_on_a_program():
    program = shlex.join([sys.executable, str(ROOT / "examples/step_times.py")])
    scenario = mist.Scenario.from_dict(
        {
            "model": "llama-3.1-8b",
            "workload": of_profile(50, "5 /s"),
            "clients": [
                {
                    "name": "llm",
                    "gpu": "h100-sxm",
                    "predictor": {"type": "program", "command": program, "timeout": "20 s"},
                }
            ],
        }
    )
    summary = mist.simulate(scenario).summary
    assert summary["estimates"] == {"llm": "custom"}
    assert summary["mean_tpot_ms"] > 5
    assert json.dumps(summary)
