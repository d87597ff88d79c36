"""Fitting a GPU's figures to measurements, and the spec file that holds them."""

from dataclasses import replace

import numpy as np
import pytest
from typer.testing import CliRunner

from mist_sim.calibration.fitted_figures import OF_LOOPS as CLOSED_LOOP_FIGURES
from mist_sim.calibration.fitted_figures import (
    Calibration,
    Figure,
    LoopProtocol,
    Observations,
    calibrate,
    calibrate_closed_loop,
    calibrate_splitwise,
    closed_loop_observations,
    with_figures,
    write_spec,
)
from mist_sim.cli.app import app
from mist_sim.core.batch import StepBatch
from mist_sim.errors import ScenarioError
from mist_sim.hardware import Cluster, load_gpu
from mist_sim.hardware.predictors import EngineOverhead, RooflinePredictor
from mist_sim.models import load_model
from mist_sim.scenario import Scenario, simulate
from tests.conftest import ROOT
from tests.reference.sources import source_of

GPU, MODEL = load_gpu("h100-sxm"), load_model("llama-3.1-8b")
BATCHES = [StepBatch(((n, 0),)) for n in (512, 1024, 4096)] + [
    StepBatch((), n, n * 500) for n in (1, 8, 64, 200)
]
FIGURES = (
    Figure("prefill.mfu", 0.9, 0.1, 1.0),
    Figure("decode.mbu", 0.9, 0.1, 1.0),
    Figure("overhead.sequence", 1e-4, 0.0, 1e-2),
)


def seconds(gpu):
    """Steps by the roofline, with an engine's own time for every sequence."""
    roofline = RooflinePredictor(MODEL, Cluster(gpu))
    per_sequence = gpu.overhead["sequence"]
    return np.array(
        [roofline.step_time(b) + per_sequence * (b.num_decodes + len(b.chunks)) for b in BATCHES]
    )


@pytest.fixture(scope="module")
def truth():
    return with_figures(GPU, {"prefill.mfu": 0.6, "decode.mbu": 0.7, "overhead.sequence": 2e-5})


@pytest.fixture(scope="module")
def found(truth) -> Calibration:
    observations = Observations(
        lambda gpu, chosen: seconds(gpu)[chosen],
        measured=seconds(truth),
        quantity=["prefill"] * 3 + ["decode"] * 4,
        weight=np.ones(7),
        held_out=np.array([False, True, False, False, True, False, False]),
    )
    return calibrate(GPU, FIGURES, observations, "a test")


def test_figures_are_set_by_their_dotted_names(truth):
    assert truth.prefill == replace(GPU.prefill, mfu=0.6)
    assert truth.decode == replace(GPU.decode, mbu=0.7)
    assert truth.overhead == {"sequence": 2e-5}


def test_what_made_the_measurements_is_found_again(found):
    assert found.values == pytest.approx(
        {"prefill.mfu": 0.6, "decode.mbu": 0.7, "overhead.sequence": 2e-5}, rel=0.02
    )
    assert [row[:3] for row in found.report()] == [
        ("prefill", "fitted", 2), ("prefill", "held out", 1),
        ("decode", "fitted", 3), ("decode", "held out", 1),
    ]  # fmt: skip
    assert all(mean < 0.02 for *_, mean, _ in found.report())
    assert not found.at_bound


def test_the_spec_file_is_a_gpu_of_a_scenario(found, tmp_path):
    write_spec(tmp_path / "mine.toml", found)
    gpu = load_gpu(str(tmp_path / "mine.toml"))
    assert gpu.confidence == "fitted"
    assert gpu.prefill.mfu == pytest.approx(found.values["prefill.mfu"])
    assert gpu.prefill.mbu == GPU.prefill.mbu
    assert gpu.overhead == pytest.approx(dict(found.values) and {"sequence": 2e-5}, rel=0.02)
    assert source_of(gpu, "overhead.sequence") == "mist calibrate: a test"
    assert "held out, 1 rows" in (tmp_path / "mine.toml").read_text()
    overrides = {"workload.lengths.num_requests": 50}
    plain = simulate(Scenario.load("demo", overrides=overrides)).summary
    overrides |= {"clients.0.gpu": str(tmp_path / "mine.toml")}
    calibrated = simulate(Scenario.load("demo", overrides=overrides)).summary
    assert set(calibrated["estimates"].values()) == {"fitted"}
    assert calibrated["mean_ttft_ms"] > plain["mean_ttft_ms"]  # its prefill.mfu is lower
    with pytest.raises(ScenarioError, match="cannot be written"):
        write_spec(tmp_path / "none" / "mine.toml", found)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('overhead.stp = "1 ms"', "overhead has no 'stp'; did you mean 'step'"),
        ('overhead.step = "-1 ms"', "overhead.step must be finite and >= 0"),
    ],
)
def test_overheads_of_a_spec_file_are_checked(tmp_path, text, message):
    (tmp_path / "g.toml").write_text(f'based_on = "h100"\n{text}\n')
    with pytest.raises(ScenarioError, match=message):
        load_gpu(str(tmp_path / "g.toml"))


def test_splitwise_after_calibration(shared):
    """Mean error of all rows held out 5.1 %, of prompts among them 5.3 %."""
    found = calibrate_splitwise(shared("measurements/splitwise_perf_model.csv"), GPU)
    assert np.abs(found.errors).mean() < 0.07
    assert np.abs(found.error_of("prompt time", held_out=True)).mean() < 0.06
    assert np.abs(found.error_of("token time", held_out=True)).mean() < 0.06


SPEC = ROOT / "examples/gpus/h100-sxm-vllm-0.12.toml"
CLOSED_LOOP = "measurements/vllm-0.12-h100-qwen3-32b-closed-loop.csv"
AS_MEASURED = LoopProtocol(think_time=2e-3, tokens_beyond_prompt=1628, engine="vllm-0.12")


def test_the_default_is_what_was_fitted():
    measured = EngineOverhead().or_else(load_gpu(str(SPEC)).overhead)
    model, cluster = load_model("qwen3-32b"), Cluster(GPU, 2)
    for batch in BATCHES:
        default, fitted = (
            overhead.around(RooflinePredictor(model, cluster)).step_time(batch)
            for overhead in (EngineOverhead(), measured)
        )
        assert default == pytest.approx(fitted, rel=1e-14)  # 47.8 us is not quite 47.8e-6


@pytest.mark.parametrize(
    ("overhead", "step", "sequence"),
    [
        (EngineOverhead(), 1.3e-3, 47.8e-6),
        (EngineOverhead(sequence=1e-4), 1.3e-3, 1e-4),
        (EngineOverhead(step=1e-3), 1e-3, 47.8e-6),
        (EngineOverhead(step=1.3e-3), 1.3e-3, 47.8e-6),
        (EngineOverhead(step=0.0, sequence=0.0), 0.0, 0.0),
        (EngineOverhead(step=1e-3, sequence=1e-4), 1e-3, 1e-4),
    ],
)
def test_the_defaults_of_a_step_and_of_a_sequence_are_independent(overhead, step, sequence):
    roofline = RooflinePredictor(MODEL, Cluster(GPU))
    batch = StepBatch(((512, 0), (64, 0)), 8, 4000)
    timed = overhead.around(roofline).step_time(batch)
    assert timed == roofline.step_time(batch) + (step + sequence * 10)


def test_closed_loop_points_held_out(shared):
    """Of points that were not fitted: TPOT 3.3 % off in the mean, TTFT 10.4 % in the median."""
    observations = closed_loop_observations(shared(CLOSED_LOOP), "qwen3-32b", AS_MEASURED)
    held_out = observations.held_out
    found = observations.predict(load_gpu(str(SPEC)), held_out)
    tpot, ttft = np.split(np.abs(found / observations.measured[held_out] - 1), 2)
    assert len(tpot) == len(ttft) == 30
    assert tpot.mean() < 0.04
    assert np.median(ttft) < 0.12


POINTS = "isl,osl,concurrency,tp_size,silicon_ttft_ms,silicon_tpot_ms\n"


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        (["512,1,1,2,100,10"] * 9, "line 2: osl must be >= 2, got 1"),
        (["512,8,1,2,100,10"], "need as many rows to fit and others to score, got 1 to fit and 0"),
        (["512,8,1,2,100,10"] * 4, "3 figures need .* got 2 to fit and 2 to score; measure more"),
        (["512,8,1,2,9,9", "512,8,1,4,9,9", "512,8,1,8,9,9"], "got 3 to fit and 0 to score"),
        (["90000,8,1,2,100,10"] * 6, "isl 90000, osl 8, .* 10 of 10 requests do not fit into qwen"),
    ],
)
def test_points_that_tell_too_little(tmp_path, rows, message):
    (tmp_path / "points.csv").write_text(POINTS + "\n".join(rows) + "\n")
    with pytest.raises(ScenarioError, match=message):
        calibrate_closed_loop(tmp_path / "points.csv", GPU, "qwen3-32b")


def test_a_figure_at_an_end_of_its_range_is_told(truth, tmp_path):
    observations = Observations(
        lambda gpu, chosen: seconds(gpu)[chosen],
        measured=seconds(with_figures(truth, {"overhead.sequence": 0.0})),
        quantity=["step"] * 7,
        weight=np.ones(7),
        held_out=np.array([False, True, False, False, True, False, False]),
    )
    found = calibrate(GPU, FIGURES, observations, "a test")
    assert found.at_bound == ("overhead.sequence",)
    write_spec(tmp_path / "mine.toml", found)
    assert "overhead.sequence is at an end" in (tmp_path / "mine.toml").read_text()


@pytest.mark.parametrize(
    ("plain", "other"),
    [
        ({}, {"max_num_batched_tokens": 128}),
        ({}, {"tokens_beyond_prompt": 2}),
        ({}, {"max_num_seqs": 2}),
        ({"max_num_seqs": 2}, {"max_num_seqs": 2, "think_time": 1.0}),  # two seats suffice
    ],
)
def test_how_the_loop_was_measured(tmp_path, plain, other):
    points = tmp_path / "points.csv"
    points.write_text(POINTS + "512,8,4,2,100,10\n" * 6)
    gpu = with_figures(GPU, {figure.name: figure.start for figure in CLOSED_LOOP_FIGURES})
    every = np.ones(12, dtype=bool)
    before, after = (
        closed_loop_observations(points, "qwen3-32b", LoopProtocol(**said)).predict(gpu, every)
        for said in (plain, other)
    )
    assert (np.abs(after[6:] / before[6:] - 1) > 0.05).all()  # TTFT


def calibrated(folder, options, kind="closed_loop"):
    """Return what `mist calibrate` does with six equal points, and the file that it writes."""
    points, out = folder / "points.csv", folder / "g.toml"
    points.write_text(POINTS + "512,8,4,2,100,10\n" * 6)
    arguments = ["calibrate", kind, str(points), *options.split(","), "--out", str(out)]
    return CliRunner().invoke(app, arguments), out


@pytest.mark.parametrize(
    ("options", "source"),
    [
        (
            "--max-num-batched-tokens,256,--max-num-seqs,8",
            "vllm-0.33, max_num_batched_tokens 256, max_num_seqs 8",
        ),
        (
            "--engine,vllm-0.12,--think-time,2 ms,--tokens-beyond-prompt,9",
            "vllm-0.12, think_time 2 ms, tokens_beyond_prompt 9",
        ),
    ],
)
def test_how_the_loop_was_measured_is_said_with_options(tmp_path, options, source):
    done, out = calibrated(tmp_path, options)
    assert done.exit_code == 0, done.output
    assert f"10 requests a user, engine {source}" in out.read_text()
    assert set(load_gpu(str(out)).overhead) == {"step", "sequence", "request"}  # one prompt length


@pytest.mark.parametrize(
    ("options", "message", "kind"),
    [
        ("--max-num-seqs,8", "--max-num-seqs has no effect with splitwise", "splitwise"),
        ("--engine,vllm", "--engine has no effect with splitwise", "splitwise"),
        ("--engine,vllm-0.9", "vllm-0.10", "closed_loop"),
        ("--think-time,1 s", "--think-time has no effect with splitwise", "splitwise"),
        ("--max-num-batched-tokens,4,--max-num-seqs,8", "(8), got 4", "closed_loop"),
        ("--max-num-batched-tokens,4,--tokens-beyond-prompt,8", "has no effect", "closed_loop"),
        ("--think-time,2", "a duration needs a number and a unit", "closed_loop"),
        ("--think-time,-2 s", "think_time must be finite and >= 0 s, got -2", "closed_loop"),
    ],
)
def test_loops_that_cannot_be(tmp_path, options, message, kind):
    refused, _ = calibrated(tmp_path, options, kind)
    assert refused.exit_code == 2
    assert message in refused.output.replace("\n", " ")


def test_mist_calibrate_says_what_the_points_do_not_tell(tmp_path):
    points = tmp_path / "points.csv"  # faster than the kernels: nothing is left for the engine
    points.write_text(POINTS + "512,8,1,2,1,1\n" * 6)
    done = CliRunner().invoke(app, ["calibrate", "closed_loop", str(points)])
    assert done.exit_code == 0, done.output
    (line,) = (line for line in done.output.splitlines() if line.startswith("overhead.step"))
    assert line.split(maxsplit=3)[1:] == [
        "0",
        "us",
        "at an end of its range: these rows do not determine it",
    ]


@pytest.mark.deep
def test_mist_calibrate_fits_a_closed_loop(shared, tmp_path):
    lines = shared(CLOSED_LOOP).read_text().splitlines()
    chosen = [line for line in lines[1:] if int(line.split(",")[7]) <= 16]  # small and quick
    points, out = tmp_path / "points.csv", tmp_path / "g.toml"
    points.write_text("\n".join([lines[0], *chosen]) + "\n")
    done = CliRunner().invoke(
        app, ["calibrate", "closed_loop", str(points), "--engine", "vllm-0.12", "--out", str(out)]
    )
    assert done.exit_code == 0, done.output
    assert set(load_gpu(str(out)).overhead) == {"step", "sequence", "request", "prompt_token"}
    rows = [line.split() for line in done.output.splitlines() if "held out" in line]
    assert float(rows[0][-2].rstrip("%")) < 10  # mean of TPOT


def test_kinds_that_are_not_known():
    done = CliRunner().invoke(app, ["calibrate", "splitwse", "x.csv"])
    assert done.exit_code == 2
    assert "did you mean 'splitwise'" in done.output


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["splitwise", "x.csv", "--gpu", "a10"], "has no a10. Known: a100-80gb-sxm, h100-sxm"),
        (["splitwise", "x.csv"], "x.csv: no such file"),
        (["closed_loop", "points.csv"], "points.csv: line 2: lengths, users and times must be > 0"),
        (["kernels", "none"], "python -m tools.kernels in a checkout"),
    ],
)
def test_measurements_that_cannot_be_fitted(tmp_path, monkeypatch, arguments, message):
    monkeypatch.chdir(tmp_path)
    names = "isl,osl,concurrency,tp_size,silicon_ttft_ms,silicon_tpot_ms"
    (tmp_path / "points.csv").write_text(f"{names}\n512,8,0,1,100,10\n")
    done = CliRunner().invoke(app, ["calibrate", *arguments])
    assert done.exit_code == 2
    assert message in done.output
