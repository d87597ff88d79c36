"""Fits of states and sparse attention: the law is the roofline's, and known figures come back."""

import itertools
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest

from mist_sim.core.batch import StepBatch
from mist_sim.errors import ScenarioError
from mist_sim.hardware import Cluster, load_gpu
from mist_sim.hardware.devices import kernel_of
from mist_sim.hardware.predictors.analytic.roofline import differing_times
from mist_sim.models import load_model
from mist_sim.models.layers import LayerSpec
from mist_sim.models.mixers import LinearMixer
from tools.mixers.mixer_calibration import calibrations
from tools.mixers.mixer_fit import fit_mixer, left_out
from tools.mixers.mixer_rows import MixerRows, Part
from tools.mixers.mixer_sources import Tables
from tools.mixers.modules import Module, _layer, read_modules
from tools.mixers.recurrences import read_states

H200 = load_gpu("h200")
MODULES = {
    "DSA": Module("zai-org/GLM-5.2", 16, "bfloat16", "bfloat16"),
    "DSA without indexer": Module("zai-org/GLM-5.2", 64, "bfloat16", "fp8", has_indexer=False),
    "DeepSeek-V3.2": Module("deepseek-ai/DeepSeek-V3.2", 128, "fp8_block", "bfloat16"),
    "HCA": Module("sgl-project/DeepSeek-V4-Flash-FP8", 16, "fp8_block", "fp8", 128),
    "CSA": Module("sgl-project/DeepSeek-V4-Pro-FP8", 128, "fp8_block", "fp8", 4),
    "MiniMax-M3": Module("MiniMaxAI/MiniMax-M3", 32, "bfloat16", "fp8"),
}


def measured(module: Module, prefill: bool) -> pd.DataFrame:
    """Return a table of a module, its timings not yet made."""
    lengths = (1, 700, 5_000) if prefill else (1,)
    rows = [
        (batch, length, step)
        for batch, length, step in itertools.product((1, 3), lengths, (1, 3_000, 60_000))
    ]
    table = pd.DataFrame(rows, columns=["batch_size", "isl", "step"])
    skip = "" if module.has_indexer else "_skip_indexer"
    return table.assign(
        model=module.model,
        num_heads=module.heads,
        gemm_type=module.gemm,
        kv_cache_dtype=module.kv_cache,
        compress_ratio=module.ratio,
        op_name=f"module{skip}",
        latency=1.0,
    )


def figures_of(rows: MixerRows, phase: str, end: str = "_attention"):
    """Return the catalog's figures of the kernels of some rows."""
    found = {}
    for name in rows.kernels:
        kernel = kernel_of(H200.kernels, f"{name}_{phase}{end}")
        figures = {"floor": kernel.floor, "serial": kernel.serial, "mbu": kernel.mbu}
        found[name] = figures | ({} if kernel.mfu is None else {"mfu": kernel.mfu})
    return found


@pytest.mark.parametrize("prefill", [True, False])
@pytest.mark.parametrize("name", MODULES)
def test_rows_of_modules_take_what_the_roofline_says(name, prefill):
    module, table = MODULES[name], measured(MODULES[name], prefill)
    rows = read_modules(table, H200, prefill)
    phase = "prefill" if prefill else "decode"
    ours = rows.times(figures_of(rows, phase)) - rows.known
    timed = differing_times(_layer(module), Cluster(H200, 1))
    for seconds, (_, row) in zip(ours, in_order(table, prefill).iterrows(), strict=True):
        batch, length, step = int(row["batch_size"]), int(row["isl"]), int(row["step"])
        chunks = ((length, step),) * batch if prefill else ()
        step_batch = StepBatch(chunks, 0 if prefill else batch, 0 if prefill else batch * step)
        assert seconds == pytest.approx(timed.add(0.0, step_batch), rel=1e-9)


def in_order(table: pd.DataFrame, prefill: bool) -> pd.DataFrame:
    """Return the rows as they are read: prompts by length."""
    if not prefill:
        return table
    return pd.concat([part for _, part in table.groupby("isl", sort=False)])


SIZES = {"num_k_heads": 16, "num_v_heads": 32, "head_k_dim": 128, "head_v_dim": 128}


def recurrences(phase: str, model: str = "one", heads: int = 32) -> pd.DataFrame:
    """Return a table of Gated DeltaNet with its convolutions, its timings not yet made."""
    sizes = itertools.product((1, 8, 64), (1, 100, 2_000, 9_000) if phase == "context" else (1,))
    table = pd.DataFrame(sizes, columns=["batch_size", "seq_len"])
    table = table.assign(**SIZES | {"num_v_heads": heads}, phase=phase, latency=1.0)
    table = table.assign(model_name=model, kernel_source="chunk_gated_delta_rule")
    return pd.concat([table, table.assign(kernel_source="causal_conv1d_fn", latency=9.0)])


@pytest.mark.parametrize("phase", ["context", "generation"])
def test_rows_of_states_take_what_the_roofline_says(phase):
    prefill = phase == "context"
    rows = read_states(recurrences(phase), H200, "gdn", prefill)
    ours = rows.times(figures_of(rows, "prefill" if prefill else "decode", ""))
    mixer = LinearMixer(kind="gdn", key_heads=16, value_heads=32, key_dim=128, value_dim=128)
    model = replace(load_model("llama-3.1-8b"), layers=(LayerSpec(mixer=mixer),), num_layers=1)
    timed = differing_times(model, Cluster(H200, 1))
    kept = recurrences(phase)[lambda table: table["latency"].eq(1.0)]
    assert len(ours) == len(kept)
    for seconds, row in zip(ours, kept.itertuples(), strict=True):
        chunks = ((row.seq_len, 0),) * row.batch_size if prefill else ()
        number = 0 if prefill else row.batch_size
        step = StepBatch(chunks, number, 500 * number)
        assert seconds == pytest.approx(timed.add(0.0, step), rel=1e-9)


def rows_of_states(prefill: bool, figures: dict[str, float]) -> MixerRows:
    """Return recurrences of three models, which take what figures say."""
    phase = "context" if prefill else "generation"
    tables = [recurrences(phase, f"model-{heads}", heads) for heads in (16, 32, 64)]
    rows = read_states(pd.concat(tables * 9), H200, "gdn", prefill)
    return replace(rows, seconds=rows.times({"gdn": figures}))


def test_a_fit_finds_the_figures_that_made_rows():
    figures = {"floor": 1.2e-5, "serial": 4e-5, "mfu": 0.3, "mbu": 0.6}
    found = fit_mixer(rows_of_states(True, figures), {"gdn": tuple(figures)})
    assert found.figures["gdn"] == pytest.approx(figures, rel=0.01)
    assert found.score.median < 2e-3
    assert not found.undetermined
    figures = {"floor": 3e-6, "mbu": 0.9}
    found = fit_mixer(rows_of_states(False, figures), {"gdn": tuple(figures)})
    assert found.figures["gdn"] == pytest.approx(figures, rel=0.01)


def test_figures_that_no_row_shows_are_named():
    """Rows that memory bounds do not tell the share of the compute rate."""
    rows = rows_of_states(False, {"floor": 3e-6, "mbu": 0.9})
    free = {"gdn": ("floor", "mfu", "mbu")}
    assert fit_mixer(rows, free).undetermined == ["gdn.mfu"]


def test_a_model_left_out_is_scored_by_figures_of_the_others():
    rows = rows_of_states(False, {"floor": 3e-6, "mbu": 0.9})
    odd = rows.model == "model-64"
    rows = replace(rows, seconds=np.where(odd, 2, 1) * rows.seconds)
    even = left_out(rows.only(~odd), {"gdn": ("floor", "mbu")}, rows.model[~odd])
    assert even is not None
    assert even.ninth < 0.02
    scored = left_out(rows, {"gdn": ("floor", "mbu")}, rows.model)
    assert scored is not None
    assert scored.ninth > 0.4
    assert left_out(rows.only(odd), {"gdn": ("floor", "mbu")}, rows.model[odd]) is None


def test_floors_count_once_a_kernel():
    column = np.ones(2)
    part = Part("compressed", column, column, 0 * column)
    rows = MixerRows(
        prefill=False,
        seconds=column,
        known=5 * column,
        parts=[part, part],
        model=np.array(["a", "b"]),
        heads=column,
    )
    figures = {"compressed": {"floor": 100.0, "mfu": 0.5, "mbu": 1.0}}
    assert rows.times(figures).tolist() == [109.0, 109.0]


def test_what_cannot_be_fitted_is_said(tmp_path):
    with pytest.raises(ScenarioError, match="no such tables"):
        list(calibrations(Tables(tmp_path, "hopper")))
    rows = rows_of_states(False, {"floor": 3e-6, "mbu": 0.9})
    with pytest.raises(ScenarioError, match="at least 20 needed"):
        fit_mixer(rows.only(np.arange(len(rows)) < 5), {"gdn": ("floor", "mbu")})
    unknown = measured(MODULES["DSA"], False).assign(model="who/Knows")
    with pytest.raises(ScenarioError, match="no entry of the catalog .* who/Knows"):
        read_modules(unknown, H200, False)
    path = tmp_path / "h200_sxm/linear_attention/vllm/0.25.0/gdn_perf.parquet"
    path.parent.mkdir(parents=True)
    pd.DataFrame({"latency": [1.0]}).to_parquet(path)
    with pytest.raises(ScenarioError, match=r"gdn_perf\.parquet"):
        list(calibrations(Tables(tmp_path, "hopper")))
