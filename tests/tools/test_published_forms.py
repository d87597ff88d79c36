"""Measurements in published forms: read, fitted and compared, on small files made from laws.

The files themselves lie beside the repository, and are not there on every machine.
"""

import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from mist_sim import Cluster, RooflinePredictor, ScenarioError, load_gpu, load_model
from mist_sim.calibration.fitted_figures import OF_STEPS, calibrate_splitwise, with_figures
from mist_sim.calibration.regression import read_splitwise
from mist_sim.core.batch import StepBatch
from mist_sim.hardware.power import PowerDraw
from tests.reference import measured, published
from tests.reference.published import ANSWER, BATCHES, SIZES, splitwise_rows, write_rows
from tools.catalog import catalog_figures
from tools.power.power_fit import fit_draw, left_out_errors, of_kernels, of_runs
from tools.power.power_runs import argonne_runs, kernel_power, mlenergy_runs, splitwise_runs
from tools.power.token_energy import modelled_step, token_energy
from tools.validation import known
from tools.validation.closed_loop import measured_points
from tools.validation.open_loop import _bench_requests, vllm_019

H100 = load_gpu("h100-sxm")
OURS = {"llama2-70b": "llama-2-70b", "bloom-176b": "bloom-176b"}


# --- Splitwise --------------------------------------------------------------------------------


def roofline_ms(spec, **options):
    """Return what the prompts and the tokens of a batch take, in milliseconds."""
    step, sequence = spec.overhead["step"], spec.overhead["sequence"]

    def timed(model, ranks, batch):
        roofline = RooflinePredictor(load_model(OURS[model]), Cluster(spec, ranks), **options)
        number = batch.num_decodes + len(batch.chunks)
        return 1e3 * (roofline.step_time(batch) + step + sequence * number)

    def prompt(model, ranks, size, batch):
        return timed(model, ranks, StepBatch(((size, 0),) * batch))

    def token(model, ranks, size, batch):
        context = batch * (size + ANSWER // 2)
        return timed(model, ranks, StepBatch((), batch, context))

    return prompt, token


def test_figures_that_made_a_file_of_splitwise_are_found_in_it(tmp_path):
    """Every second row is fitted, and the others are met as well."""
    chosen = {"decode.mbu": 0.7, "overhead.step": 8e-3, "overhead.sequence": 2e-4}
    chosen = {figure.name: figure.start for figure in OF_STEPS} | chosen
    spec = with_figures(H100, chosen)
    file = tmp_path / "perf.csv"
    write_rows(file, splitwise_rows("h100-80gb", *roofline_ms(spec, enforce_eager=True)))
    found = calibrate_splitwise(file, H100)
    for name in ("prefill.mfu", "decode.mbu", "overhead.step", "overhead.sequence"):
        assert found.values[name] == pytest.approx(chosen[name], rel=0.01), name
    num_points = 4 * (len(SIZES) + len(BATCHES) - 1)
    for quantity in ("prompt time", "token time"):
        errors = [np.abs(found.error_of(quantity, held_out=out)) for out in (False, True)]
        assert len(errors[0]) + len(errors[1]) == num_points
        assert min(map(len, errors)) >= num_points // 2 - 2
        assert max(each.mean() for each in errors) < 0.002
    with pytest.raises(ScenarioError, match="perf.csv: has no 'llama2-70b/a100-80gb'"):
        calibrate_splitwise(file, load_gpu("a100-80gb-sxm"))


def test_batches_of_splitwise_that_ran_in_parts_are_left_out(tmp_path):
    file = tmp_path / "perf.csv"
    rows = splitwise_rows("h100-80gb", lambda *_: 50.0, lambda *_: 20.0, in_parts=(512, 32))
    write_rows(file, rows)
    steps, remarks = read_splitwise(file, "llama2-70b/h100-80gb", 2)
    assert remarks == ["left out 32 prompts of 512 tokens, which did not run at once"]
    num_points = len(SIZES) + len(BATCHES) - 2
    assert len(steps.seconds) == 2 * 3 * num_points
    medians, _ = read_splitwise(file, "llama2-70b/h100-80gb", 2, medians=True)
    assert len(medians.seconds) == 2 * num_points
    prompts = medians.of(medians.with_prompts)
    assert sorted(prompts.num_new_tokens) == [128, 512, 1024, 1024, 2048, 4096]
    assert set(prompts.seconds) == {0.05}
    two = prompts.num_new_tokens[prompts.num_pairs == 2 * 512 * 513 / 2]
    assert two.tolist() == [1024]
    decodes = medians.of(~medians.with_prompts)
    assert set(decodes.seconds) == {0.02}
    assert max(zip(decodes.num_decodes, decodes.context_sum, strict=True)) == (8, 8 * 576)


def test_single_prompts_and_tokens_of_a_roofline_are_met_by_it(tmp_path):
    """The engine's own time is not in these rows, and batches do not count."""
    file = tmp_path / known.SPLITWISE
    spec = with_figures(H100, {"overhead.step": 0.0, "overhead.sequence": 0.0})

    def token(model, ranks, size, batch):
        roofline = RooflinePredictor(load_model(OURS[model]), Cluster(spec, ranks))
        return 1e3 * roofline.step_time(StepBatch((), batch, batch * size))

    prompt, _ = roofline_ms(spec)
    write_rows(file, splitwise_rows("h100-80gb", prompt, lambda *point: 1.25 * token(*point)))
    found = known.splitwise_steps(file, "h100-sxm", "h100-80gb")
    assert len(found) == 4 * len(SIZES)
    assert found["prompt_error"].to_numpy() == pytest.approx(0.0)
    assert found["token_error"].to_numpy() == pytest.approx(0.8 - 1)
    (_, run) = known.known_runs(tmp_path)
    rows = {row.metric: row for row in run.rows()}
    assert rows["token, batch 1"].error == pytest.approx(-0.2)
    assert rows["prompt, batch 1"].spread == pytest.approx(0.0)


# --- layers -----------------------------------------------------------------------------------


def test_figures_that_made_tables_of_layers_are_found_in_them(tmp_path):
    chosen = {"rtx-a6000": (0.7, 0.8, 6e-6), "rtx-3090": (0.5, 0.9, 9e-6)}
    for name, folder in (("rtx-a6000", "A6000"), ("rtx-3090", "RTX3090")):
        file = tmp_path / f"layer-profiles/v0/{folder}/meta-llama/Llama-3.1-8B/tp1/layers.csv.gz"
        write_rows(file, published.layer_rows(load_gpu(name), *chosen[name]))
    found = catalog_figures(tmp_path)
    assert found.keys() == chosen.keys()
    for name, (mfu, mbu, floor) in chosen.items():
        for phase in ("prefill", "decode"):
            assert found[name][f"{phase}.mfu"] == pytest.approx(mfu, rel=0.02)
            assert found[name][f"{phase}.mbu"] == pytest.approx(mbu, rel=0.02)
        assert found[name]["kernels.bf16.floor"] == pytest.approx(floor, rel=0.02)


# --- power ------------------------------------------------------------------------------------


def mlenergy_row(**changes):
    return {
        "task": "lm-arena-chat",
        "model_id": "Qwen/Qwen3-8B",
        "gpu_model": "H100",
        "num_gpus": 1,
        "tp": 1,
        "ep": 1,
        "dp": 1,
        "avg_batch_size": 32.0,
        "avg_output_len": 800.0,
        "output_throughput_tok_s": 3200.0,
        "avg_power_w": 500.0,
        **changes,
    }


def test_runs_of_ml_energy_are_what_their_rows_say(tmp_path):
    split = {"model_id": "Qwen/Qwen3-Coder-30B-A3B-Instruct", "num_gpus": 4, "tp": 2, "ep": 2}
    rows = [
        mlenergy_row(),
        mlenergy_row(model_id="somebody/else"),
        mlenergy_row(**split, dp=2, gpu_model="B200", task="gpqa"),
        mlenergy_row(model_id="openai/gpt-oss-20b", avg_batch_size=8.0),
    ]
    plain, experts, _ = mlenergy_runs(write_rows(tmp_path / "m.csv", rows))
    assert (plain.model, plain.cluster.gpu.name, plain.watts) == ("qwen3-8b", "h100-sxm", 500.0)
    assert (plain.batch, plain.prompt, plain.joining) == (32.0, 150.0, 32.0 / 800.0)
    assert plain.context == 150.0 + 400.0
    assert plain.seconds.tolist() == [0.01]
    weights = 2 * 8.19e9 * (32 + 150 * 0.04)  # FLOPs of a step: its decodes, and prompts that join
    assert plain.demand.compute[0] * H100.flops["bf16"] == pytest.approx(weights, rel=0.1)
    assert plain.demand.memory[0] * H100.memory_bandwidth == pytest.approx(1.9e10, rel=0.1)
    assert experts.cluster.tensor_parallel_size == experts.cluster.data_parallel_size == 2
    assert experts.cluster.enable_expert_parallel
    assert (experts.watts, experts.joining, experts.batch) == (125.0, 16.0 / 800.0, 32.0)
    found = token_energy(plain)
    assert found.step == pytest.approx(modelled_step(plain) / 0.01 - 1)
    assert 1 + found.joules == pytest.approx((1 + found.step) * (1 + found.watts))


def test_a_draw_that_made_runs_is_found_in_them(tmp_path):
    """Its watts are put into rows that were read once, and the fit has to find it again."""
    sizes = [
        mlenergy_row(model_id=model, avg_batch_size=batch, output_throughput_tok_s=30 * batch + 500)
        for model in ("Qwen/Qwen3-8B", "Qwen/Qwen3-14B", "meta-llama/Llama-3.1-8B-Instruct")
        for batch in (4.0, 16.0, 64.0, 256.0)
    ]
    draw = PowerDraw(idle=0.15, active=0.12, memory=0.6, compute=1.5, confidence="fitted")
    runs = mlenergy_runs(write_rows(tmp_path / "m.csv", sizes))
    watts = of_runs(runs, "setting").predicted(draw)
    rows = [{**row, "avg_power_w": power} for row, power in zip(sizes, watts, strict=True)]
    samples = of_runs(mlenergy_runs(write_rows(tmp_path / "m.csv", rows)), "model")
    fitted = fit_draw(samples, draw.idle)
    for name in ("active", "memory", "compute"):
        assert getattr(fitted, name) == pytest.approx(getattr(draw, name), abs=0.02), name
    assert (fitted.experts, fitted.peers) == (0.0, 0.0)
    assert set(samples.groups) == {"qwen3-8b", "qwen3-14b", "llama-3.1-8b"}
    assert np.abs(left_out_errors(samples, draw.idle)).max() < 0.02


def test_runs_of_splitwise_and_argonne_are_what_their_rows_say(tmp_path):
    rows = splitwise_rows("a100-80gb", lambda *_: 50.0, lambda *_: 20.0)
    runs = splitwise_runs(write_rows(tmp_path / "s.csv", rows))
    assert len(runs) == 4 * (len(SIZES) + len(BATCHES) - 1)  # that of little power is left out
    first = next(run for run in runs if run.batch == 8 and run.model == "llama-2-70b")
    assert first.cluster.tensor_parallel_size == 2
    assert first.seconds.tolist() == pytest.approx([0.05, 127 * 0.02])
    assert first.watts == pytest.approx(0.7 * 400.0)
    assert (first.prompt, first.context) == (512, 512 + 64)
    row = {
        "Hardware": "Nvidia A100 GPU",
        "Framework": "vLLM",
        "Model": "meta-llama/Llama-2-7b-hf",
        "Input Output Length": 256,
        "Batch Size": 16,
        "Latency": 5.0,
        "avg_power": 300_000,
    }
    others = [{**row, "Hardware": "TPU"}, {**row, "Framework": "x"}, {**row, "Latency": 7.0}]
    one, other = argonne_runs(write_rows(tmp_path / "a.csv", [row, *others]))
    assert (one.watts, one.model, one.cluster.gpu.name) == (300.0, "llama-2-7b", "a100-40gb-sxm")
    assert (one.seconds.tolist(), other.seconds.tolist()) == ([5.0], [7.0])
    assert (one.prompt, one.batch, one.context) == (256, 16, 256 + 128)


def test_power_of_kernels_is_what_their_rows_say(tmp_path):
    row = {"gemm_dtype": "bfloat16", "m": 512, "n": 4096, "k": 1024, "latency": 0.5, "power": 600.0}
    rows = [row, {**row, "latency": 0.01}, {**row, "gemm_dtype": "fp8"}, {**row, "k": 2048}]
    pd.DataFrame(rows).to_parquet(tmp_path / "h200_sxm__vllm0.22__gemm_perf.parquet")
    found = kernel_power(tmp_path, "h200")
    assert found.seconds.tolist() == [5e-4, 5e-4]
    assert found.weights.tolist() == [4096 * 1024, 4096 * 2048]
    gpu = load_gpu("h200")
    assert found.demand.compute[0] * gpu.flops["bf16"] == pytest.approx(2 * 512 * 4096 * 1024)
    moved = 2 * (512 * 1024 + 4096 * 1024 + 512 * 4096)
    assert found.demand.memory[0] * gpu.memory_bandwidth == pytest.approx(moved)
    samples = of_kernels(found)
    assert samples.watts.tolist() == [600.0, 600.0]
    assert samples.groups.tolist() == ["0", "1"]


# --- runs of vLLM -----------------------------------------------------------------------------


@pytest.fixture
def folder(tmp_path) -> Path:
    """A folder in the form of the run of vLLM 0.19: eight requests, 50 ms apart."""
    profile = tmp_path / "profile"
    profile.mkdir()
    measured.write_layer_profile(profile, 32)
    times = [{"timestamp": 50 * k, "input_length": 64, "output_length": 9} for k in range(8)]
    ids = [[4 * k + i for i in range(4)] for k in range(8)]
    lines = [json.dumps({**row, "hash_ids": own}) for row, own in zip(times, ids, strict=True)]
    (tmp_path / "workload_block16.jsonl").write_text("\n".join(lines) + "\n")
    stamps = [
        published.stamped(k, queued=k / 20, first=k / 20 + 0.02, last=k / 20 + 0.1, tokens=9)
        for k in range(8)
    ]
    (tmp_path / "requests.jsonl").write_text("\n".join(reversed(stamps)) + "\n")
    return tmp_path


def test_times_of_requests_are_from_the_stamps_of_the_core(folder):
    rows = _bench_requests(folder / "requests.jsonl")
    assert rows.index.tolist() == list(range(8))
    assert rows["ttft"].to_numpy() == pytest.approx(0.02)
    assert rows["tpot"].to_numpy() == pytest.approx(0.01)
    assert rows["e2el"].to_numpy() == pytest.approx(0.1)


def test_a_run_of_vllm_is_simulated_as_it_ran_and_with_parts_left_out(folder, monkeypatch):
    monkeypatch.setattr("tools.validation.open_loop._FIT_ON", 3)
    runs = {run.name.partition("requests: ")[2]: list(run.rows()) for run in vllm_019(folder)}
    assert list(runs) == [
        "layer profile",
        "layer profile, prefill_step 4 ms, all requests",
        "layer profile, prefill_step 4 ms, requests 3 to 299",
        "roofline, with async scheduling as it ran",
        "roofline, without async scheduling",
        "layer profile, requests 0 to 2 with several times of prefill_step",
        "layer profile, one part left out",
    ]
    means = {
        name: {row.metric: row for row in rows if ", mean" in row.metric}
        for name, rows in runs.items()
    }
    ttft = means["layer profile"]["TTFT, mean"]
    assert ttft.measured == pytest.approx(20.0)  # ms
    later = means["layer profile, prefill_step 4 ms, all requests"]["TTFT, mean"]
    assert later.simulated - ttft.simulated == pytest.approx(1.0, abs=1e-3)  # 3 ms is the default
    tried = means["layer profile, requests 0 to 2 with several times of prefill_step"]
    assert np.diff([row.simulated for row in tried.values()]) == pytest.approx(1.0, abs=0.3)
    left_out = {
        metric.partition(", no ")[2]: row.simulated
        for metric, row in means["layer profile, one part left out"].items()
        if metric.startswith("TPOT")
    }
    assert list(left_out) == ["prefill_step", "async scheduling", "prefix caching", "skew.csv"]
    whole = means["layer profile"]["TPOT, mean"].simulated
    assert left_out["prefill_step"] < whole
    assert left_out["async scheduling"] != whole
    assert left_out["skew.csv"] != whole
    assert left_out["prefix caching"] == whole  # no two of these prompts are alike


def test_points_of_closed_loops_are_in_two_halves(tmp_path):
    file = tmp_path / "points.csv"
    header = "isl,osl,concurrency,tp_size,silicon_ttft_ms,silicon_tpot_ms"
    file.write_text("\n".join([header, *(f"1024,{8 * k},2,8,60,12" for k in range(1, 7))]))
    points = measured_points(file)
    assert points["half"].tolist() == ["fitted"] * 2 + ["held out"] * 2 + ["fitted"] * 2
    assert points["osl"].tolist() == [8, 16, 24, 32, 40, 48]
    file.write_text(f"{header}\n1024,8,2,4,60,12\n")
    with pytest.raises(ScenarioError, match="points.csv: tp_size must be one of 2, 8"):
        measured_points(file)
