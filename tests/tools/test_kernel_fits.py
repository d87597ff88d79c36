"""Fits of kernels: known figures come back, tables of every form are read, and the files."""

import itertools

import numpy as np
import pandas as pd
import pytest

from mist_sim.errors import ScenarioError
from mist_sim.hardware import load_gpu
from mist_sim.models import load_model
from tools.kernels.__main__ import main
from tools.kernels.kernel_calibration import calibrate_kernels
from tools.kernels.kernel_fit import fit_kernel
from tools.kernels.kernel_rows import kernel_rows, shapes_of
from tools.kernels.layer_tables import read_layers

H100, LLAMA = load_gpu("h100-sxm"), load_model("llama-3.1-8b")
FIGURES = {"floor": 6e-6, "mfu": 0.7, "mbu": 0.85, "serial": 0.4e-6, "per_input": 3e-6}


def products(seconds=None):
    """Return FP8 products of three matrices, which take what `FIGURES` say."""
    sizes = itertools.product((1, 8, 64, 512, 4096), (1024, 4096, 16384), (1024, 4096, 16384))
    m, n, k = np.array(list(sizes), dtype=float).T
    flops, moved = 2 * m * n * k, n * k + 2 * m * (n + k)
    times = FIGURES["floor"] + FIGURES["serial"] * k / 1e3 + FIGURES["per_input"] * m * k / 1e6
    compute = flops / (FIGURES["mfu"] * H100.flops["fp8"])
    times += np.hypot(compute, moved / (FIGURES["mbu"] * H100.memory_bandwidth))
    times = times if seconds is None else seconds(times)
    options = {"shape": shapes_of(n, k), "depth": k, "inputs": m * k}
    return kernel_rows("fp8", times, H100, "fp8", flops, moved, **options)


def test_a_fit_finds_the_figures_that_made_rows():
    found = fit_kernel(products())
    assert found.values == pytest.approx(FIGURES, rel=0.01)
    assert found.num_rows == 45
    assert found.median < 1e-3
    assert not found.at_bound


def test_outliers_do_not_move_a_fit():
    def disturbed(times):
        times = times.copy()
        times[::10] *= 5
        return times

    found = fit_kernel(products(disturbed))
    assert found.values["mfu"] == pytest.approx(0.7, rel=0.1)
    assert found.ninth > 0.4


def test_shapes_can_be_left_out():
    rows = products()
    found = fit_kernel(rows, leave_out={"1024x1024", "4096x4096"})
    assert found.num_rows == 45 - 2 * 5
    assert fit_kernel(rows.only(slice(19))) is None  # too few


def test_figure_that_rows_do_not_determine_is_named():
    few_tokens = products().only(products().compute < 1e-9)
    assert fit_kernel(few_tokens) is None
    small = products()
    waits = small.only(small.compute < 0.2 * small.memory)
    assert "mfu" not in fit_kernel(small).at_bound
    assert fit_kernel(waits) is not None


# ------------------------------------------------------------------ forms of tables


def matrices(names, columns, scale):
    """Return a table of matrices of Llama-3.1-8B that reach half of the bandwidth."""
    sizes = {"o_proj": (4096, 4096), "down_proj": (14336, 4096), "gate_up_proj": (4096, 28672)}
    rows = []
    for name, tokens in itertools.product(names, range(1, 161, 4)):
        inputs, outputs = sizes[name]
        moved = 2 * (inputs * outputs + tokens * (inputs + outputs))
        memory = moved / (0.5 * H100.memory_bandwidth)
        compute = 2 * tokens * inputs * outputs / (0.8 * H100.flops["bf16"])
        rows.append((name, tokens, (5e-6 + np.hypot(memory, compute)) * scale))
    return pd.DataFrame(rows, columns=columns)


def test_tables_of_llmservingsim(tmp_path):
    new = tmp_path / "dense.csv"
    matrices(["o_proj", "gate_up_proj"], ["layer", "tokens", "time_us"], 1e6).to_csv(new)
    old = tmp_path / "layers.csv"
    columns = ["layer_name", "input", "latency(ns)"]
    matrices(["o_proj", "down_proj"], columns, 1e9).assign(tp_size=1).to_csv(old)
    for path, number in ((new, 80), (old, 80)):
        (fit,) = calibrate_kernels(path, H100, LLAMA).fits
        assert (fit.kind, fit.num_rows) == ("bf16", number)
        assert fit.values["mbu"] == pytest.approx(0.5, rel=0.05)


def test_tables_of_vidur_say_what_was_measured(tmp_path):
    sizes = {"n_head": 32, "n_kv_head": 8, "n_embd": 4096, "n_expanded_embd": 14336}
    table = matrices(["o_proj"], ["layer", "num_tokens", "seconds"], 1e3)
    for name in ("attn_pre_proj", "attn_post_proj", "mlp_up_proj", "mlp_down_proj"):
        table[f"time_stats.{name}.median"] = table["seconds"]
    path = tmp_path / "mlp.csv"
    table.assign(**sizes, num_tensor_parallel_workers=1).to_csv(path)
    (rows, *others) = read_layers(path, H100, None)
    assert len(others) == 3
    assert rows.shape[0] == "6144x4096"
    assert rows.seconds[0] == pytest.approx(table["seconds"][0] / 1e3)


def test_attention_of_a_profile(tmp_path):
    path = tmp_path / "attention.csv"
    grid = [(0, 0, n, kv, 10 + n * kv / 1e3) for n in range(1, 7) for kv in (128, 512, 2048, 8192)]
    grid += [(n, kv, 0, 0, 20 + n / 10) for n in (128, 256, 512, 1024) for kv in range(0, 600, 100)]
    columns = ["prefill_chunk", "kv_prefill", "n_decode", "kv_decode", "time_us"]
    pd.DataFrame(grid, columns=columns).to_csv(path)
    prompts, decodes = read_layers(path, H100, LLAMA)
    assert (prompts.kind, len(prompts)) == ("prefill_attention", 24)
    assert (decodes.kind, len(decodes)) == ("decode_attention", 24)
    keys, queries = 3 * (512 + 1), 3
    moved = 4 * 8 * 128 * keys + 4 * 32 * 128 * queries
    assert decodes.memory[9] == pytest.approx(moved / H100.memory_bandwidth)


# ------------------------------------------------------------------ the command


def run(*arguments):
    main([*map(str, arguments)])


def test_the_command_writes_gpu_that_scenarios_can_name(tmp_path, capsys):
    table, out = tmp_path / "dense.csv", tmp_path / "mine.toml"
    matrices(["o_proj", "gate_up_proj"], ["layer", "tokens", "time_us"], 1e6).to_csv(table)
    run(table, "--gpu", "h200", "--model", "llama-3.1-8b", "--out", out)
    assert "bf16" in capsys.readouterr().out
    text, gpu = out.read_text("utf-8"), load_gpu(str(out))
    assert "# bf16: 80 rows, median error" in text
    assert (gpu.based_on, gpu.confidence) == ("h200", "fitted")
    assert gpu.prefill == gpu.decode
    assert gpu.prefill.mbu == pytest.approx(0.5 * 3.35 / 4.8, rel=0.05)
    assert gpu.kernels["fp8"] == load_gpu("h200").kernels["fp8"]
    assert gpu.sources["kernels.bf16"].startswith("tools.kernels: ")


@pytest.mark.parametrize(
    ("content", "options", "message"),
    [
        ("a,b\n1,2\n", [], "no table of kernels. Columns of one have: layer_name, input"),
        ("layer,tokens,time_us\no_proj,1,5\n", [], "the measured model: give --model"),
        (
            "layer,tokens,time_us\no_proj,1,5\n",
            ["--model", "llama-3.1-8b"],
            "fewer than 20 rows of every kind of kernels; measure more",
        ),
        ("", [], "has no header"),
        (None, [], "no such file or folder"),
    ],
)
def test_tables_that_cannot_be(tmp_path, content, options, message):
    path, out = tmp_path / "table.csv", tmp_path / "mine.toml"
    if content is not None:
        path.write_text(content, "utf-8")
    with pytest.raises(ScenarioError) as refused:
        run(path, *options, "--out", out)
    assert message in str(refused.value)
    assert not out.exists()


def test_a_folder_without_tables_is_refused(tmp_path):
    with pytest.raises(ScenarioError, match="no tables of vLLM's kernels"):
        calibrate_kernels(tmp_path, H100)


@pytest.mark.parametrize(
    ("name", "header", "row", "problem"),
    [
        ("dense.csv", "layer,tokens,time_us", "qkv_proj,1,abc", "time_us must be a number >= 0"),
        ("dense.csv", "layer,tokens,time_us", "qkv_proj,few,9", "tokens must be a number >= 0"),
        ("dense.csv", "layer,tokens,time_us", "qkv_proj,,9", "tokens must be a number >= 0"),
        ("dense.csv", "layer,tokens,time_us", "qkv_proj,1,-9", "time_us must be a number >= 0"),
        ("dense.csv", "layer,tokens,time_us", "qkv_proj,inf,9", "tokens must be a number >= 0"),
        (
            "layers.csv",
            "layer_name,input,tp_size,latency(ns)",
            "q_proj,1,0,900",
            "tp_size must be a number >= 1",
        ),
    ],
)
def test_cells_that_are_no_figures_are_named(tmp_path, name, header, row, problem):
    file = tmp_path / name
    file.write_text(f"{header}\n{row}\n")
    with pytest.raises(ScenarioError, match=rf"{name}: line 2: {problem}, got "):
        calibrate_kernels(file, load_gpu("rtx-pro-6000"), load_model("llama-3.1-8b"))


def test_table_without_column_that_is_needed_is_refused(tmp_path):
    file = tmp_path / "mlp.csv"
    file.write_text("num_tokens,n_head,time_stats.attn_pre_proj.median\n1,32,0.1\n")
    with pytest.raises(ScenarioError, match=r"mlp.csv: no table of kernels. .*n_kv_head"):
        calibrate_kernels(file, load_gpu("h100-sxm"), None)


def test_kernels_that_were_not_timed_are_left_out(tmp_path):
    """A time of 0, and a cell that is empty."""
    rows = [f"qkv_proj,{8 * n},{20 + n}" for n in range(1, 41)]
    texts = {"all.csv": rows, "some.csv": [*rows, "qkv_proj,400,0", "qkv_proj,500,"]}
    fits = []
    for name, lines in texts.items():
        (tmp_path / name).write_text("\n".join(["layer,tokens,time_us", *lines]) + "\n")
        found = calibrate_kernels(
            tmp_path / name, load_gpu("rtx-pro-6000"), load_model("llama-3.1-8b")
        )
        fits.append(found.fits)
    assert fits[0] == fits[1]
