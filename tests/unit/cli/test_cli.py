"""The command line: what it prints where, what it writes, and how it fails."""

import io
import json
import os
import re
import subprocess
import sys
import threading
from pathlib import Path

import pandas as pd
import pytest

import mist_sim
from mist_sim import compiled
from mist_sim.errors import InvariantError
from mist_sim.metrics import Result

SCENARIO = """\
model: llama-3.1-8b
workload:
  lengths: {type: profile, num_requests: 30}
  arrivals: {type: poisson, rate: 5 /s}
clients:
  - {name: llm, gpu: h100-sxm}
slo: {ttft: 1 s}
"""
FILES = [
    "SHA256SUMS",
    "clients.parquet",
    "requests.parquet",
    "scenario.resolved.yaml",
    "stages.parquet",
    "steps.parquet",
    "summary.json",
]
DEMO_FILES = sorted([*FILES, "report.html"])
HEADER = "TIMESTAMP,ContextTokens,GeneratedTokens\n"
ROW = "2023-11-16 18:15:46.6805900,374,44\n"


@pytest.fixture(autouse=True)
def working_directory(tmp_path, monkeypatch):
    """A folder with a scenario, and a terminal of 80 columns."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "80")
    (tmp_path / "s.yaml").write_text(SCENARIO)
    return tmp_path


def listing() -> list[str]:
    return sorted(str(path) for path in Path().rglob("*"))


# --- run --------------------------------------------------------------------------------------


def test_run_prints_results_and_writes_nothing(mist):
    code, out, err = mist("run", "s.yaml")
    assert code == 0
    for words in ("requests finished", "TTFT", "p99", "goodput", "llama-3.1-8b on h100-sxm"):
        assert words in out
    assert max(map(len, out.splitlines())) <= 80
    assert "Nothing was saved" in err
    assert listing() == ["s.yaml"]


def test_run_writes_a_folder(mist):
    code, _, err = mist("run", "s.yaml", "--out", "a/b")
    assert code == 0
    assert f"Written to {Path('a/b')}: {', '.join(FILES)}" in err
    assert sorted(path.name for path in Path("a/b").iterdir()) == FILES
    assert json.loads(Path("a/b/summary.json").read_text())["completed"] == 30
    assert len(pd.read_parquet("a/b/requests.parquet")) == 30


def test_a_folder_may_begin_with_the_home(mist, monkeypatch, working_directory):
    monkeypatch.setenv("HOME", str(working_directory / "home"))
    monkeypatch.setenv("USERPROFILE", str(working_directory / "home"))
    (working_directory / "home").mkdir()
    code, _, err = mist("run", "s.yaml", "--out", "~/a")
    assert code == 0
    assert f"Written to {working_directory / 'home' / 'a'}" in err
    assert sorted(path.name for path in Path("home/a").iterdir()) == FILES
    assert mist("schema", "--out", "~/schema.json")[0] == 0
    assert Path("home/schema.json").exists()


def test_a_resolved_scenario_runs_again_to_identical_bytes(mist):
    mist("run", "s.yaml", "--out", "one", "--seed", "9", "--set", "router=random")
    assert mist("run", "one/scenario.resolved.yaml", "--out", "two")[0] == 0
    for name in FILES:
        assert Path("one", name).read_bytes() == Path("two", name).read_bytes(), name


def test_quiet_leaves_the_results(mist):
    code, out, err = mist("run", "s.yaml", "--quiet")
    assert (code, err) == (0, "")
    assert "TTFT" in out


def test_json_is_the_summary_and_nothing_else(mist):
    code, out, err = mist("run", "s.yaml", "--json", "--out", "a")
    assert code == 0
    assert out == Path("a/summary.json").read_text()
    assert json.loads(out)["completed"] == 30
    assert err.startswith("Written to a: ")
    more = ["--replications", "2", "--jobs", "1"]
    code, out, err = mist("run", "s.yaml", "--json", *more)
    assert (code, err) == (0, "")
    assert json.loads(out)["replications"] == 2


def read_from(monkeypatch, content: bytes) -> None:
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(content), encoding="ascii"))


def test_a_scenario_may_come_from_standard_input(mist, monkeypatch):
    read_from(monkeypatch, SCENARIO.replace("name: llm", "name: größer").encode())
    code, out, _ = mist("run", "-", "--set", "clients.0.count=2")
    assert code == 0
    assert out.startswith("standard input\n2 x größer (llama-3.1-8b on h100-sxm)")


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "error: standard input: is empty"),
        (b"a: 1\n\xff", "error: standard input:2: not UTF-8 text"),
        (b"- 1", "error: standard input: must hold a mapping of keys to values, got a list"),
        (b"seed: -1", "  standard input: seed: must be >= 0, got -1"),
    ],
)
def test_bad_standard_input_is_told(mist, monkeypatch, content, words):
    read_from(monkeypatch, content)
    code, out, err = mist("run", "-", "--out", "a")
    assert (code, out) == (2, "")
    assert words in err
    assert listing() == ["s.yaml"]


def test_force_replaces_earlier_results_and_leaves_what_others_wrote(mist):
    more = ["--set", "workload.lengths.num_requests=20"]
    assert mist("run", "s.yaml", "--out", "a")[0] == 0
    Path("a/notes.txt").write_text("mine")
    before = Path("a/summary.json").read_bytes()
    code, _, err = mist("run", "s.yaml", "--out", "a", *more)
    assert code == 2
    assert "output folder a: holds earlier results; --force" in err
    assert Path("a/summary.json").read_bytes() == before
    code, _, err = mist("run", "s.yaml", "--out", "a", *more, "--force")
    assert code == 0
    assert f"Written to a: {', '.join(FILES)}\n" in err
    assert json.loads(Path("a/summary.json").read_text())["completed"] == 20
    assert sorted(path.name for path in Path("a").iterdir()) == sorted([*FILES, "notes.txt"])
    assert Path("a/notes.txt").read_text() == "mine"
    code, _, err = mist("run", "s.yaml", "--out", ".", "--force")
    assert code == 2
    assert "holds no results that --force could replace" in err


def test_a_failing_run_with_force_keeps_earlier_results(mist):
    mist("run", "s.yaml", "--out", "a")
    before = {path: path.read_bytes() for path in Path("a").iterdir()}
    Path("t.csv").write_text(HEADER + ROW + ROW + ROW.replace("374", "many"))
    trace = "workload={trace: {type: azure, path: t.csv}}"
    assert mist("run", "s.yaml", "--out", "a", "--force", "--set", trace)[0] == 2
    assert {path: path.read_bytes() for path in Path("a").iterdir()} == before


def test_set_reads_values_as_yaml(mist):
    code, out, _ = mist(
        "run", "s.yaml", "--set", "clients.0.count=3", "--set", "slo={ttft: 2 s, tpot: 1 s}"
    )
    assert code == 0
    assert "3 x llm" in out
    assert "TTFT <= 2 s and TPOT <= 1 s" in out


def test_rejections_are_grouped(mist):
    small = "clients.0.kv_cache.num_gpu_blocks_override=41"
    code, out, _ = mist("run", "s.yaml", "--set", small, "--set", "clients.0.count=2")
    text = " ".join(out.split())
    assert code == 0
    assert text.count("Failed: ") == 1
    assert "requests, such as llm-0:" in text
    assert "exceed the KV cache of 640 tokens" in text


def test_an_overload_is_called_unstable(mist):
    settings = ["workload.arrivals.rate=500 /s", "workload.lengths.num_requests=1000"]
    _, out, _ = mist("run", "s.yaml", *(f"--set={setting}" for setting in settings))
    assert "Unstable: more work arrives than the clients can do" in out


# --- demo -------------------------------------------------------------------------------------


@pytest.fixture
def short_demo(monkeypatch, working_directory):
    monkeypatch.setattr(
        "mist_sim.scenario.loading.preset_path", lambda name: working_directory / "s.yaml"
    )


def test_demo_makes_a_folder_and_another(mist, short_demo):
    code, _, err = mist("demo")
    assert code == 0
    assert "Next, more load: mist run demo --set workload.arrivals.rate='40 /s'" in err
    code, _, err = mist("demo")
    assert code == 0
    assert "mist-demo is taken; the results go to mist-demo-2" in err
    for folder in ("mist-demo", "mist-demo-2"):
        assert sorted(path.name for path in Path(folder).iterdir()) == DEMO_FILES


def test_demo_may_replace_its_results(mist, short_demo):
    assert mist("demo")[0] == 0
    assert mist("demo", "--force")[0] == 0
    assert listing() == ["mist-demo", *(f"mist-demo/{name}" for name in DEMO_FILES), "s.yaml"]


def test_a_quiet_demo_prints_its_results_alone(mist, short_demo):
    assert mist("demo")[0] == 0
    code, out, err = mist("demo", "-q")  # mist-demo is taken, which it does not say
    assert (code, err) == (0, "")
    assert "requests finished" in out
    assert Path("mist-demo-2/summary.json").exists()


# --- bad input --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("setting", "expected"),
    [
        ("clients.0.cuont=3", "clients.0.cuont: unknown key for type llm; did you mean 'count'?"),
        ("workload.arrivals.rate=5 s", "'s' is not a unit of rate"),
        ("workload={trace: {type: azure, path: t.csv}}", "t.csv:3: ContextTokens must be"),
        ("model=llama-3.1-405b", "clients.0: llama-3.1-405b does not fit on 1 x h100-sxm"),
        ("clients.0.count", "must be KEY=VALUE"),
        ("clients.0.count=[", "--set clients.0.count:1:2: not valid YAML"),
    ],
)
def test_bad_input_gives_one_message_and_leaves_nothing(mist, setting, expected):
    Path("t.csv").write_text(HEADER + ROW + ROW.replace("374", "many"))
    before = listing()
    code, out, err = mist("run", "s.yaml", "--out", "results/new", "--set", setting)
    assert (code, out) == (2, "")
    assert err.startswith("error: ")
    assert err.count("\n") == 1
    assert expected in err
    assert listing() == before


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        ("a: [1\nb: 2\n", "error: bad.yaml:2:2: not valid YAML"),
        ("seed: -1\n", "errors:\n  bad.yaml: seed: must be >= 0, got -1\n  bad.yaml: workload: is"),
    ],
)
def test_a_bad_file_is_refused(mist, content, expected):
    Path("bad.yaml").write_text(content)
    before = listing()
    code, out, err = mist("run", "bad.yaml", "--out", "results")
    assert (code, out) == (2, "")
    assert err.startswith(expected)
    assert listing() == before


@pytest.mark.parametrize(
    ("folder", "expected"),
    [(".", "is not empty"), ("s.yaml", "is a file"), ("s.yaml/below", "cannot be written")],
)
def test_the_folder_is_checked_before_the_run(mist, monkeypatch, folder, expected):
    monkeypatch.setattr("mist_sim.scenario.simulate", lambda *_, **__: pytest.fail("it ran"))
    before = listing()
    code, out, err = mist("run", "s.yaml", "--out", folder)
    assert (code, out) == (2, "")
    assert err.startswith(f"error: output folder {Path(folder)}: {expected}")
    assert listing() == before


def test_a_disk_that_fills_up_leaves_nothing(mist, monkeypatch):
    def write(self: Result, folder: Path, tables: object = None) -> None:
        (folder / "summary.json").write_text("half a su")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Result, "write_files", write)
    code, out, err = mist("run", "s.yaml", "--out", "results/new")
    assert (code, out) == (2, "")
    assert "output folder results/new: cannot be written: No space left on device" in err
    assert listing() == ["s.yaml"]


def test_empty_folder_of_user_stays_when_run_fails(mist):
    Path("mine").mkdir()
    assert mist("run", "s.yaml", "--out", "mine", "--set", "model=llama-3.1-405b")[0] == 2
    assert listing() == ["mine", "s.yaml"]


@pytest.mark.parametrize(
    ("error", "code", "said"),
    [
        (InvariantError("requests were lost at 3.0 s"), 70, "error: requests were lost at 3.0 s"),
        (RuntimeError("a plugin fell over"), 70, "unexpected RuntimeError: a plugin fell over"),
        (KeyboardInterrupt(), 130, "interrupted; no results were written\n"),
    ],
)
def test_bug_and_interrupt_are_told_and_leave_nothing(mist, monkeypatch, error, code, said):
    def broken(*_: object, **__: object) -> None:
        raise error

    monkeypatch.setattr("mist_sim.scenario.simulate", broken)
    found, _, err = mist("run", "s.yaml", "--out", "results")
    assert (found, "This is a bug in mist-sim" in err) == (code, code == 70)
    assert said in err
    assert listing() == ["s.yaml"]


# --- list, schema, version --------------------------------------------------------------------


@pytest.mark.parametrize(
    ("family", "expected"),
    [
        ("models", "320 KiB"),
        ("gpus", "989 TFLOP/s"),
        ("clients", "async_scheduling ="),
        ("schedulers", "max_num_seqs = 256"),
        ("predictors", "composition = running_clocks"),
        ("trace_readers", "num_requests = null"),
        ("lengths", "tokens (required)"),
        ("stages", "duration (required, in s)"),
        (
            "prices",
            "a100-40gb-sxm   Google Cloud     1       3.67  1.29    2.31     1.29  2025-03-06",
        ),
        ("options", "--max-num-batched-tokens"),
        ("presets", "BestServe"),
    ],
)
def test_list_describes_a_family(mist, family, expected):
    code, out, _ = mist("list", family)
    assert code == 0
    assert expected in out


def test_list_helps_with_names(mist):
    code, _, err = mist("list", "router")
    assert code == 2
    assert "no family named 'router'; did you mean 'routers'? Known: models, gpus" in err
    code, _, err = mist("list", "sharegpt")
    assert code == 2
    assert "no family named 'sharegpt'; it is one of trace_readers: mist list trace_readers." in err
    for alias, homes in (
        ("nvl72", "topologies: mist list topologies"),
        ("gb200-nvl72", "gpus and topologies: mist list gpus"),
        ("H100", "gpus: mist list gpus"),
        ("qwen/qwen3-8b", "models: mist list models"),
    ):
        _, _, err = mist("list", alias)
        assert f"no family named '{alias}'; it is one of {homes}." in err
    code, out, _ = mist("list", "profiles")
    assert code == 0
    assert "sharegpt-2048" in out


def test_a_key_of_scenarios_is_explained(mist):
    code, out, _ = mist("help", "scenario", "clients.0.scheduler.max_num_seqs")
    assert code == 0
    assert "max_num_seqs of chunked: whole number; default: 256" in out
    assert mist("help", "scenario")[1].count("\n## ") > 30
    assert "as of" not in mist("help", "scenario", "skip")[1]
    code, _, err = mist("help", "scenario", "gpuu")
    assert (code, "did you mean 'gpu'" in err) == (2, True)


def test_help_takes_a_key_without_the_word_scenario(mist):
    for key in ("lifecycle", "clients.0.scheduler.max_num_seqs"):
        assert mist("help", key) == mist("help", "scenario", key)
    assert mist("help", "lifecycle", "failures") == mist("help", "lifecycle.failures")
    code, _, err = mist("help", "run")
    assert (code, "mist VERB --help the options of a verb" in err) == (2, True)


@pytest.mark.parametrize(
    ("key", "keys", "others"),
    [
        ("workload.trace.csv", ["time_column", "path", "session_history"], ["chars_per_token"]),
        ("workload.arrivals.closed_loop", ["concurrency", "think_time"], ["rates"]),
        ("workload.arrivals.schedule", ["rates"], ["clients"]),
        ("policy.schedule", ["clients"], ["rates"]),
        ("workload.lengths.synthetic", ["prompt", "output", "num_requests"], ["prefix_len"]),
        ("slo", ["ttft", "attainment", "priority"], ["pue"]),
        ("router.session_affinity", ["max_sessions"], ["cache_threshold"]),
        ("lifecycle.failures", ["mtbf"], ["policy"]),
        ("network", ["bandwidth", "topology"], ["transfer"]),
        ("clients.rag", ["embedder"], ["max_num_seqs"]),
    ],
)
def test_mapping_and_plugin_are_explained_with_their_keys(mist, key, keys, others):
    code, out, _ = mist("help", "scenario", key)
    assert code == 0
    for name in keys:
        assert re.search(rf"^{name}: .*; default: ", out, re.MULTILINE), (name, out)
    for name in others:
        assert not re.search(rf"^{name}: ", out, re.MULTILINE), name


def test_schema_goes_to_the_terminal_or_a_file(mist):
    code, out, _ = mist("schema")
    assert code == 0
    assert mist("schema", "--out", "schema.json") == (0, "", "")
    assert json.loads(out) == json.loads(Path("schema.json").read_text())
    code, _, err = mist("schema", "--out", "schema.json")
    assert code == 2
    assert "schema.json: is there already; --force replaces it, or name another file" in err
    assert mist("schema", "--out", "schema.json", "--force") == (0, "", "")
    code, _, err = mist("schema", "--out", "nowhere/schema.json")
    assert code == 2
    assert "nowhere/schema.json: cannot be written" in err


def test_version_says_how_new_the_catalogs_are(mist):
    first, core, *catalogs = mist("--version")[1].splitlines()
    assert core == f"engine core: {compiled.state()}"
    assert first == f"mist-sim {mist_sim.__version__}"
    assert [line.split()[0] for line in catalogs] == ["models", "GPUs", "prices", "vLLM"]
    assert all(re.search(r"20\d\d", line) for line in catalogs)


@pytest.mark.parametrize("option", ["--help", "--version"])
def test_help_and_version_import_nothing_heavy(option):
    """Run as a module."""
    heavy = {"numpy", "pandas", "simpy", "pydantic", "pyarrow", "ruamel"}
    code = (
        "import sys\n"
        "from mist_sim.cli import main\n"
        f"try:\n    main(['{option}'])\n"
        f"except SystemExit:\n    print('loaded', sorted({heavy!r} & set(sys.modules)))\n"
    )
    out = subprocess.check_output([sys.executable, "-c", code], text=True)
    assert out.splitlines()[-1] == "loaded []"


@pytest.mark.parametrize("command", [["schema"], ["list"], ["run", "demo", "-q"]], ids=str)
def test_reader_who_has_seen_enough_is_no_error(command):
    read, write = os.pipe()
    os.close(read)
    with subprocess.Popen(
        [sys.executable, "-m", "mist_sim", *command],
        stdout=write,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        os.close(write)
        _, err = process.communicate()
    assert err == ""


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["mist", "ru"], ["run"]),
        (["mist", "run", "d"], ["demo"]),
        (["mist", "run", "demo", "--rep"], ["--replications", "--report"]),
        (["mist", "list", "s"], ["schedulers", "samplers", "stages", "slos"]),
        (["mist", "calibrate", ""], ["splitwise", "closed_loop", "text", "rag", "run"]),
    ],
    ids=str,
)
def test_a_shell_completes(words, expected):
    asked = {
        "_MIST_COMPLETE": "complete_bash",
        "COMP_WORDS": " ".join(words),
        "COMP_CWORD": str(len(words) - 1),
    }
    code = "from mist_sim.cli import main; main()"
    out = subprocess.check_output(
        [sys.executable, "-c", code], env={**os.environ, **asked}, text=True
    )
    assert out.split() == expected


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (["calibrate", "splitwise", "m.csv", "--model", "qwen3-32b"], "--model has no effect"),
        (["calibrate", "text", ".", "--gpu", "a100"], "--gpu has no effect with text"),
        (["calibrate", "splitwise", "m.csv", "--out", "no/x.toml"], "there is no folder no"),
        (["fit", "m.csv", "--out", "no/x.json"], "no/x.json: cannot be written"),
        (["fit", "m.csv", "--out", "."], ".: cannot be written: is a folder"),
        (["fit", "m.csv", "--out", "x.json", "--subset", "a/b"], "subset has no effect"),
        (["fit", "m.csv", "--out", "x.json", "--tensor-parallel-size", "-1"], "must be >= 1"),
    ],
)
def test_options_without_effect_and_files_without_a_place_are_refused_before_work(
    mist, args, words
):
    Path("m.csv").write_text("a,b\n1,2\n")
    code, out, err = mist(*args)
    assert code == 2
    assert words in err
    assert out == ""
    assert listing() == ["m.csv", "s.yaml"]


def test_a_file_that_cannot_be_written_whole_is_not_written(mist, monkeypatch):
    def full(path, *args, **kwargs):
        path.touch()
        raise OSError(28, "No space left on device")

    Path("schema.json").write_text("before")
    monkeypatch.setattr(Path, "write_text", full)
    code, _, err = mist("schema", "--out", "schema.json", "--force")
    assert code == 2
    assert "schema.json: cannot be written: No space left on device" in err
    assert listing() == ["s.yaml", "schema.json"]
    assert Path("schema.json").read_text() == "before"


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="this system has no named pipes")
def test_a_scenario_may_come_through_a_pipe(mist):
    os.mkfifo("pipe")
    writer = threading.Thread(target=lambda: Path("pipe").write_text(SCENARIO))
    writer.start()
    code, out, _ = mist("run", "pipe")
    writer.join()
    assert code == 0
    assert "requests finished" in out
