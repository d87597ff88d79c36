"""What a run imports, since a short one spends most of its time on that: counted, never timed."""

import subprocess
import sys

import pytest

SCENARIO = """
model: llama-3.1-8b
workload:
  lengths: {type: profile, num_requests: 5}
  arrivals: {type: poisson, rate: 5 /s}
clients: [{name: llm, gpu: h100-sxm}]
"""
UNUSED = {
    "IPython",
    "joblib",
    "loky",
    "matplotlib",
    "networkx",
    "pandas",
    "scipy",
    "sklearn",
    "sqlite3",
    "torch",
}
PARTS_UNUSED = {"numpy.ma", "rich.live", "rich.progress"}
"""Of libraries of which other parts are used: of masked arrays, and of a bar that no one sees."""
OURS_UNUSED = {
    "mist_sim.calibration",
    "mist_sim.clients.afd",
    "mist_sim.hardware.afd",
    "mist_sim.hardware.predictors.external",
    "mist_sim.hardware.predictors.measured",
    "mist_sim.hardware.tables",
    "mist_sim.search",
    "mist_sim.studies",
    "mist_sim.validation",
}


@pytest.fixture(scope="module")
def imported(tmp_path_factory):
    """The modules that `mist run` with its tables and its results on disk has imported."""
    folder = tmp_path_factory.mktemp("plain")
    (folder / "s.yaml").write_text(SCENARIO)
    code = (
        "import sys\n"
        "from mist_sim.cli import main\n"
        "try:\n    main(['run', 's.yaml', '--out', 'results', '--quiet'])\n"
        "except SystemExit:\n    print(*sys.modules)\n"
    )
    out = subprocess.check_output([sys.executable, "-c", code], text=True, cwd=folder)
    assert (folder / "results" / "requests.parquet").exists()
    return set(out.splitlines()[-1].split())


def test_a_plain_run_imports_no_library_that_it_does_not_use(imported):
    assert {"numpy", "pyarrow", "rich", "mist_sim.simulation"} <= imported  # it did run
    assert not {name.partition(".")[0] for name in imported} & UNUSED
    assert not imported & PARTS_UNUSED


def test_a_plain_run_imports_no_part_that_its_scenario_does_not_name(imported):
    assert not imported & OURS_UNUSED
