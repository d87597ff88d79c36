"""What stood in the way of newcomers: GPUs based on files, points of a sweep that fail, hints."""

from dataclasses import replace

import pytest
from typer.testing import CliRunner

from mist_sim import ScenarioError, load_gpu
from mist_sim.cli.app import app
from mist_sim.studies.decided_question import named_files

OWN = """
memory = "288 GB"
memory_bandwidth = "12 TB/s"
flops.bf16 = "2000 TFLOP/s"
interconnect = {kind = "nvlink", bandwidth = "900 GB/s"}
host_bandwidth = "128 GB/s"
power = "1400 W"
"""


@pytest.fixture
def gpus(tmp_path, monkeypatch):
    """Two files: a GPU of its own, and one that changes its memory; read from elsewhere."""
    folder = tmp_path / "gpus"
    folder.mkdir()
    (folder / "own.toml").write_text(OWN, "utf-8")
    (folder / "half.toml").write_text('based_on = "own.toml"\nmemory = "144 GB"\n', "utf-8")
    monkeypatch.chdir(tmp_path)
    return folder


def mist(*words):
    return CliRunner().invoke(app, [*words])


def test_a_file_based_on_a_file_differs_in_what_it_changes(gpus):
    own, half = load_gpu(str(gpus / "own.toml")), load_gpu(str(gpus / "half.toml"))
    assert half.memory == 144e9
    assert replace(half, name=own.name, memory=own.memory, sources=own.sources) == own
    assert half.sources["memory"].endswith("half.toml")
    assert half.sources["power"].endswith("own.toml")


def test_a_chain_of_files_equals_one_file(gpus):
    base = 'based_on = "h100-sxm"\nmemory_bandwidth = "4 TB/s"\n'
    (gpus / "first.toml").write_text(base, "utf-8")
    (gpus / "second.toml").write_text('based_on = "first.toml"\npower = "500 W"\n', "utf-8")
    (gpus / "one.toml").write_text(base + 'power = "500 W"\n', "utf-8")
    second, one = (load_gpu(str(gpus / name)) for name in ("second.toml", "one.toml"))
    assert replace(second, name=one.name, sources=one.sources) == one
    assert second.based_on == "h100-sxm"


def test_results_kept_by_a_journal_depend_on_the_base_of_a_file(gpus):
    before = named_files({"gpu": "gpus/half.toml"})
    (gpus / "own.toml").write_text(OWN.replace("12 TB/s", "13 TB/s"), "utf-8")
    after = named_files({"gpu": "gpus/half.toml"})
    assert before.keys() == after.keys()
    assert [name for name in before if before[name] != after[name]] == [
        name for name in before if name.endswith("own.toml")
    ]
    assert len(before) == 2


@pytest.mark.parametrize(
    ("base", "problem"),
    [
        ("half.toml", "based_on must not lead back to"),
        ("none.toml", "based_on: no accelerator and no file is named 'none.toml'"),
        ("bad.toml", "bad.toml: "),
    ],
)
def test_a_base_that_cannot_be_is_one_message(gpus, base, problem):
    (gpus / "bad.toml").write_text(f'{OWN}\nspeed = "1 m"\n', "utf-8")
    (gpus / "half.toml").write_text(f'based_on = "{base}"\n', "utf-8")
    with pytest.raises(ScenarioError, match=problem):
        load_gpu(str(gpus / "half.toml"))


def test_a_sweep_of_goodputs_says_why_point_failed():
    said = mist(
        *("sweep", "demo", "clients.0.gpu=h100-sxm,nothing.toml", "--goodput", "--jobs", "1"),
        *("--set", "workload.lengths.num_requests=50", "--most-requests", "1000", "-q"),
    )
    assert said.exit_code == 0
    assert "failed: override clients.0.gpu: no file nothing.toml" in " ".join(said.stdout.split())


def test_half_of_a_scenario_says_what_to_add():
    server = "vllm serve meta-llama/Llama-3.1-8B"
    said = mist("run", "--from-vllm", server, "--set", "clients.0.gpu=l40s")
    assert said.exit_code == 2
    assert 'workload is required: add --from-vllm "vllm bench serve ..."' in said.stderr
    said = mist("run", "--from-vllm", "vllm bench serve --random-input-len 9 --num-prompts 5")
    assert 'clients is required: add --from-vllm "vllm serve ..."' in said.stderr


def test_server_is_compared_in_cases_of_one_scenario():
    few = ("--set", "workload.lengths.num_requests=20", "--set", "clients.0.gpu=h100-sxm")
    server = "vllm serve meta-llama/Llama-3.1-8B --max-num-seqs 64"
    case = "one: clients.0.count=1", "two: clients.0.count=2"
    words = ("--case", case[0], "--case", case[1], "--jobs", "1", "-q")
    said = mist("compare", "demo", "--from-vllm", server, *few, *words)
    assert said.exit_code == 0, said.stderr
    assert "two" in said.stdout


def test_a_step_too_large_names_the_option():
    said = mist("explain", "demo", "--decodes", "257", "--context", "9")
    assert "got 257; raise scheduler.max_num_seqs" in said.stderr


def test_a_roofline_that_was_not_drawn_is_named(tmp_path, monkeypatch):
    monkeypatch.setattr("mist_sim.report.pictures.style.find_spec", lambda name: None)
    words = ("explain", "demo", "--decodes", "8", "--context", "100", "--out", str(tmp_path / "a"))
    said = mist(*words)
    assert said.exit_code == 0
    assert "roofline.png was not drawn" in said.stderr
    assert not (tmp_path / "a" / "roofline.png").exists()


def test_log_of_ones_own_is_told_its_columns(tmp_path):
    (tmp_path / "log.csv").write_text("timestamp,prompt_tokens,answer_tokens\n0,5,5\n", "utf-8")
    said = mist("trace", "inspect", str(tmp_path / "log.csv"))
    assert said.exit_code == 2
    assert (
        "A log of your own, CSV or JSON lines: --format csv --set time_column=NAME" in said.stderr
    )
