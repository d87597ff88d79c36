"""Programs that a file names: no verb starts one that was not allowed, whatever file says it."""

import io
import shlex
import sys
from pathlib import Path
from typing import Any

import pytest

from mist_sim import Scenario, ScenarioError, replicate, simulate
from mist_sim.cli.app import app
from mist_sim.scenario.build import build
from mist_sim.validation import read_run
from tests.reference.scenarios import of_profile
from tests.unit.clients.test_taichi import said

PROGRAM = """\
import json, sys
open({started!r}, "a").close()
json.loads(sys.stdin.readline())
print('{{"protocol": 1, "version": "1"}}', flush=True)
for line in sys.stdin:
    times = [1e-3 * (1 + len(each["chunks"])) for each in json.loads(line)["batches"]]
    print(json.dumps({{"seconds": times}}), flush=True)
"""
SCENARIO = """\
model: qwen3-0.6b
workload:
  lengths: {{type: synthetic, num_requests: 5, prompt: {{type: fixed, tokens: 50}},
            output: {{type: fixed, tokens: 5}}}}
  arrivals: {{type: poisson, rate: 5 /s}}
clients: [{{name: llm, gpu: l4, predictor: {{type: program, command: {command!r}}}}}]
slo: {{ttft: 1 s}}
"""
RUN = "name: ours\nengine: mist-sim\nprovenance: this test\nsummary: {mean_ttft_ms: 10}\nscenario: "

READ_SCENARIOS = set(
    shlex.split("run goodput sliders bestserve plan explain search sweep compare validate observe")
)
READ_NONE = set(
    shlex.split(
        "demo from-vllm help list schema fit calibrate profile timeline afd reshard trace report "
        "plot"
    )  # plot shows the title of a resolved scenario, and runs nothing
)


@pytest.fixture
def started(tmp_path, monkeypatch) -> Path:
    """The file that a program of `s.yaml` makes when it starts, in a folder full of such files."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MIST_SIM_CACHE", "")  # a program whose answers are kept is not asked again
    (tmp_path / "program.py").write_text(PROGRAM.format(started=str(tmp_path / "started")))
    text = SCENARIO.format(command=command())
    for name in ("s.yaml", "t.yaml", "demo"):
        (tmp_path / name).write_text(text)
    (tmp_path / "hybrid.yaml").write_text(hybrid())
    for name, space in spaces(text).items():
        (tmp_path / name).write_text(space)
    for folder, scenario in (("named", "../s.yaml"), ("inside", as_mapping(text))):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "run.yaml").write_text(RUN + scenario)
    return tmp_path / "started"


def spaces(text: str) -> dict[str, str]:
    """Spaces whose scenario names a program, and in which a value does."""
    program = f"{{type: program, command: {command()!r}}}"
    rest = "objectives: [p99_ttft]\nvary: "
    plain = text.replace(f", predictor: {program}", "")
    hidden = f"clients.0.predictor: [{program}]"
    return {
        "space.yaml": f"scenario: s.yaml\n{rest}{{clients.0.count: 1:2}}",
        "hidden.yaml": f"scenario: {as_mapping(plain)}\n{rest}\n  {hidden}",
    }


def command() -> str:
    return shlex.join([sys.executable, str(Path("program.py").resolve())])


def as_mapping(text: str) -> str:
    return "\n" + "".join(f"  {line}\n" for line in text.splitlines())


def hybrid() -> str:
    everything = said()
    everything["workload"]["lengths"]["num_requests"] = 6
    everything["slo"] = {"ttft": "1 s"}
    everything["clients"][0]["predictor"] = {"type": "program", "command": command()}
    from mist_sim.scenario.format import yaml_text

    return yaml_text.dump(everything)


VERBS = [
    ["run", "s.yaml"],
    ["run", "s.yaml", "--out", "results"],
    ["run", "s.yaml", "--replications", "2", "--jobs", "2"],
    ["run", "s.yaml", "--set", "clients.0.predictor.timeout=5 s"],
    ["goodput", "s.yaml", "--rates", "1:2"],
    ["sliders", "hybrid.yaml"],
    ["bestserve", "s.yaml", "--strategies", "1m"],
    ["plan", "s.yaml", "--max-gpus", "1"],
    ["search", "space.yaml"],
    ["search", "hidden.yaml"],
    ["sweep", "s.yaml", "clients.0.count=1:2"],
    ["compare", "s.yaml", "t.yaml"],
    ["compare", "hybrid.yaml", "--designs"],
    ["validate", "named"],
    ["validate", "inside"],
]


@pytest.mark.parametrize("words", VERBS, ids=" ".join)
def test_a_program_that_a_file_names_is_not_started(mist, started, words):
    code, out, err = mist(*words)
    assert code == 2
    assert not out
    assert ".predictor.command: names a program, " in err
    assert str(started.with_name("program.py")) in err
    assert "and none was started" in err
    assert "--allow-programs" in err
    assert not started.exists()
    assert not Path("results").exists()


def test_nor_is_that_of_a_scenario_on_standard_input(mist, started, monkeypatch):
    text = io.TextIOWrapper(io.BytesIO(Path("s.yaml").read_bytes()))
    monkeypatch.setattr(sys, "stdin", text)
    code, _, err = mist("run", "-")
    assert code == 2
    assert "standard input: clients.0.predictor.command: names a program" in err
    assert not started.exists()


def test_nor_is_that_of_a_resolved_scenario_in_a_folder_of_results(mist, started):
    assert mist("run", "s.yaml", "--allow-programs", "--out", "results", "-q")[0] == 0
    started.unlink()
    code, _, err = mist("run", "results/scenario.resolved.yaml")
    assert code == 2
    assert "names a program" in err
    assert mist("timeline", "results")[0] == 0
    assert not started.exists()


@pytest.mark.parametrize(
    "words", [["run", "s.yaml"], ["validate", "named"], ["validate", "inside"]], ids=" ".join
)
def test_it_is_started_where_that_is_allowed(mist, started, words):
    assert mist(*words, "--allow-programs")[0] == 0
    assert started.exists()


@pytest.mark.parametrize(
    "words",
    [
        ["run", "s.yaml", "--replications", "2", "--jobs", "2"],
        ["goodput", "s.yaml", "--rates", "1:2", "--as-is", "--jobs", "1"],
        shlex.split("sliders hybrid.yaml --chunks 128,256 --tolerance 0.5 --as-is --jobs 1"),
        ["bestserve", "s.yaml", "--strategies", "1m", "--jobs", "1"],
        ["compare", "s.yaml", "t.yaml", "--jobs", "1"],
    ],
    ids=" ".join,
)
def test_searches_and_comparisons_start_it_too_where_that_is_allowed(mist, started, words):
    assert mist(*words, "--allow-programs")[0] == 0
    assert started.exists()


def test_a_command_on_the_command_line_is_the_users_own(mist, started):
    """Also where it takes the place of what a file says, and beside other keys of the file."""
    other = command()
    Path("s.yaml").write_text(SCENARIO.format(command="no-such-program"))
    assert mist("run", "s.yaml", "--set", f"clients.0.predictor.command={other}")[0] == 0
    assert started.exists()
    started.unlink()
    Path("s.yaml").write_text(SCENARIO.format(command=other))
    whole = f"clients.0.predictor={{type: program, command: {other!r}}}"
    assert mist("run", "s.yaml", "--set", whole)[0] == 0
    assert started.exists()


def test_a_file_cannot_hide_its_command_behind_what_the_user_sets(mist, started):
    text = SCENARIO.format(command=command()).replace("type: program, ", "")
    Path("s.yaml").write_text(text)
    code, _, err = mist("run", "s.yaml", "--set", "clients.0.predictor.type=program")
    assert code == 2
    assert "clients.0.predictor.command: names a program" in err
    assert not started.exists()


@pytest.mark.parametrize(
    "words",
    [
        ["demo", "--out", "results"],
        ["from-vllm", "s.yaml"],
        ["run", "--from-vllm", "s.yaml"],
        ["list", "topologies", "s.yaml"],
        ["fit", "s.yaml", "--out", "fit.json"],
        ["calibrate", "kernels", "s.yaml"],
        ["calibrate", "closed_loop", "s.yaml"],
        ["profile", "--model", "s.yaml", "--out", "table.csv"],
        ["timeline", "inside"],
        ["afd", "s.yaml", "--slots", "4", "--coefficients", "s.yaml"],
    ],
    ids=" ".join,
)
def test_verbs_that_read_no_scenario_start_nothing_from_one(mist, started, words):
    """Not even where one lies in the place of what they read."""
    assert mist(*words)[0] == 2
    assert not started.exists()


def test_every_verb_that_reads_scenarios_has_the_option():
    from typer.main import get_command

    verbs: dict[str, Any] = get_command(app).commands  # type: ignore[attr-defined]
    assert set(verbs) == READ_SCENARIOS | READ_NONE  # a new verb has to say which it is
    for name, verb in verbs.items():
        options = {word for option in verb.params for word in option.opts}
        assert ("--allow-programs" in options) == (name in READ_SCENARIOS), name


# --- Python -----------------------------------------------------------------------------------


def test_in_python_files_of_ones_own_run_and_those_of_others_may_be_refused(started):
    assert simulate(Scenario.load("s.yaml")).summary["estimates"] == {"llm": "custom"}
    started.unlink()
    with pytest.raises(ScenarioError, match=r"s.yaml: clients.0.predictor.command: names a prog"):
        Scenario.load("s.yaml", allow_programs=False)
    text = Path("s.yaml").read_text()
    with pytest.raises(ScenarioError, match=r"of others: clients.0.predictor.command: names a"):
        Scenario.from_yaml(text, source="of others", allow_programs=False)
    with pytest.raises(ScenarioError, match=r"run.yaml: scenario: clients.0.predictor.command"):
        read_run(Path("inside"), allow_programs=False)
    assert not started.exists()


def test_python_objects_and_plugins_need_no_leave(started):
    scenario = Scenario.from_dict(
        {
            "model": "qwen3-0.6b",
            "workload": of_profile(3, {"type": "all_at_once"}),
            "clients": [
                {"name": "a", "gpu": "l4", "predictor": {"type": "program", "command": command()}}
            ],
            "replications": 2,
        }
    )
    build(scenario)
    assert started.exists()
    assert len(replicate(scenario, jobs=1).summaries) == 2
