"""The storage study of MIST's section V-B (docs/background/mist.md), in small."""

import importlib.util
import re
import runpy
import subprocess
import sys

import pytest

import mist_sim as mist
from tests.conftest import ROOT

FOLDER = ROOT / "examples" / "mist_storage"
OPTIONS = {
    "trace": None,
    "requests": 8_000,
    "mfu": None,
    "zipf": 1.22,
    "corpus": 1e10,
    "fp8": False,
}


@pytest.fixture(scope="module")
def study():
    spec = importlib.util.spec_from_file_location("storage_cases", FOLDER / "storage_cases.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def p90(study, context, access, case, rate, **options):
    simulation = study.serve((context, access, case, rate, 8), OPTIONS | options)
    return simulation.run().summary["p90_e2el_ms"]


def test_what_is_found_follows_from_room_and_popularity(study):
    """Contexts of a corpus of 1e10 tokens, the most popular ones kept; by a plain sum."""
    shares = [1 / rank**1.22 for rank in range(1, int(1e10 / 24_576) + 1)]
    found = {
        case: study.found_share(24_576, "shared", case, OPTIONS) for case in ("A", "B", "C", "D")
    }
    kept = {"A": 124, "B": 496, "C": 3_973, "D": 4 * 3_973}
    for case, number in kept.items():
        assert found[case] == pytest.approx(sum(shares[:number]) / sum(shares), rel=1e-9)
    assert study.found_share(24_576, "private", "C", OPTIONS) == 1
    assert study.found_share(24_576, "shared", "E", OPTIONS) == 0


def test_the_papers_order_of_shared_contexts_needs_a_popularity_between_two_values(study):
    """P90s are those of finds from nine in ten on: C has as many, and B has not."""
    for exponent, case, nine_in_ten in ((1.20, "C", False), (1.22, "C", True), (1.31, "B", False)):
        found = study.found_share(24_576, "shared", case, OPTIONS | {"zipf": exponent})
        assert (found >= 0.9) == nine_in_ten
    assert study.found_share(24_576, "shared", "B", OPTIONS | {"zipf": 1.35}) >= 0.9


def test_private_contexts_are_best_kept_at_a_platform(study):
    """One client has luck of its own; four share it, and lose little by the slower store."""
    found = {case: p90(study, 24_576, "private", case, 9.0) for case in ("A", "B", "C")}
    assert min(found, key=found.get) == "B"


def test_computing_again_beats_the_rack_for_short_contexts(study):
    """The rack takes 671 ms, and prompts of 4,096 tokens are computed in less."""
    assert p90(study, 4_096, "private", "E", 8.0) < p90(study, 4_096, "private", "C", 8.0)


@pytest.mark.deep
def test_the_rack_is_best_for_shared_contexts_with_a_small_corpus_and_slow_engines(study):
    """What the paper's order needs: C finds nine in ten, B hardly any, and half of the peak."""
    options = OPTIONS | {"requests": 6_000, "corpus": 1.05e8, "zipf": 0.0}
    for mfu, is_best in ((0.5, True), (None, False)):
        found = {}
        for case in ("A", "B", "C", "E"):
            point = (24_576, "shared", case, 4.0, 32)
            summary = study.serve(point, options | {"mfu": mfu}).run().summary
            found[case] = summary["p90_e2el_ms"]
        assert (min(found, key=found.get) == "C") == is_best


def test_an_engine_as_fast_as_asked_for(study):
    """24,576 tokens at half of the peak: NUMBERS of the paper's model, 2 P N and attention."""
    llm = study.engines(1, 0.5, False)[0]
    work = mist.Workload.from_lists([24_576], [1])
    ttft = mist.Simulation(clients=[llm], workload=work).run().summary["mean_ttft_ms"] / 1e3
    assert ttft == pytest.approx(4.309, rel=0.05)


@pytest.mark.page
def test_the_whole_study_in_small(tmp_path):
    """All cases, with and without what is kept; drawn lengths are named as such."""
    few = [str(FOLDER), "--requests", "640", "--jobs", "2", "--plot", "cdf.png"]
    command = [sys.executable, *few]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "drawn from the quantiles of Azure" in done.stdout
    assert done.stdout.count("by P90: ") == 4
    assert len(re.findall(r"^  [A-E] .* unstable$", done.stdout, re.MULTILINE)) > 10
    assert (tmp_path / "cdf.png").stat().st_size > 10_000


@pytest.mark.parametrize(
    ("option", "value", "problem"),
    [
        ("--requests", "5", "must be a whole number >= 640, got '5'"),
        ("--jobs", "0", "must be a whole number >= 1, got '0'"),
        ("--rate", "0", "must be a number >= 0.001, got '0'"),
        ("--mfu", "nan", "must be a number >= 0.01 and <= 1, got 'nan'"),
        ("--zipf", "x", "must be a number >= 0 and <= 10, got 'x'"),
        ("--corpus", "10", "must be a number >= 24576, got '10'"),
    ],
)
def test_numbers_that_cannot_be_are_refused(option, value, problem, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["mist_storage", option, value])
    with pytest.raises(SystemExit) as left:
        runpy.run_path(str(FOLDER), run_name="__main__")
    assert left.value.code == 2
    assert f"{option}: {problem}" in capsys.readouterr().err


def test_a_trace_that_is_not_there_is_named_with_its_source(tmp_path):
    command = [sys.executable, str(FOLDER), "nothing.csv"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "nothing.csv" in done.stderr
    assert "AzurePublicDataset" in done.stderr
    assert "Traceback" not in done.stderr
