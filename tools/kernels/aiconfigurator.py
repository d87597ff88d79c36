"""Reads the operator tables of aiconfigurator-core: one folder of a system, newest vLLM."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from mist_sim.errors import ScenarioError
from mist_sim.hardware import Cluster, GpuSpec
from mist_sim.hardware.devices import Kernel, kernel_of
from mist_sim.hardware.predictors.analytic.compile import SERIAL_HEAD, phase_time
from mist_sim.inputs import of_a_form
from mist_sim.models import ModelSpec, load_model
from tools.kernels.expert_rows import TABLE, expert_rows
from tools.kernels.kernel_reading import FORMATS, cold, columns, newest, table_of
from tools.kernels.kernel_rows import KernelRows, kernel_rows, shapes_of

if TYPE_CHECKING:
    import pandas as pd

Array = NDArray[np.float64]

_HOST_TIMED = 40e-6  # s: no kernel of so few tokens takes as long, launches by the host do
_FEW = 16  # tokens
_TILES = 1024  # smallest number of inputs and outputs of a product that counts
_SCALES = 4  # scales of FP8 blocks in the 16 bytes that DeepGEMM reads at once


def read_system(folder: Path, gpu: GpuSpec, vector: Kernel) -> list[KernelRows]:
    """Return the kernels of a system (`systems/data/h100_sxm`), kind by kind.

    vector: figures of norms and activations, which run between the products of experts.
    Raises ScenarioError where the folder has no tables.
    """
    readers = {
        "gemm/gemm_perf": _products,
        TABLE: lambda rows, gpu: expert_rows(rows, gpu, vector),
        "attention/context_attention_perf": _prompts,
        "attention/generation_attention_perf": _decodes,
    }
    found: list[KernelRows] = []
    for name, read in readers.items():
        path = newest(folder, name)
        if path is not None:
            with of_a_form(path, "vLLM's kernels"):
                found += read(table_of(path), gpu)
    if not found:
        raise ScenarioError(
            f"{folder}: no tables of vLLM's kernels, such as gemm/vllm/0.24.0/gemm_perf.parquet"
        )
    return found


def read_latent(folder: Path, gpu: GpuSpec) -> list[KernelRows]:
    """Return the attention of DeepSeek-V3 of a system, given the entry's products.

    The tables time the module with its projections; `known` is the entry's time of those.
    """
    found: list[KernelRows] = []
    for name, prefill in (("mla_context", True), ("mla_generation", False)):
        path = newest(folder, f"mla/{name}_module_perf")
        if path is not None:
            with of_a_form(path, "vLLM's kernels"):
                found += _latent(table_of(path), gpu, prefill)
    return found


def _products(table: pd.DataFrame, gpu: GpuSpec) -> Iterator[KernelRows]:
    table = table[table["m"].le(16384) & table["n"].between(256, 32768)]
    table = table[table["k"].between(256, 32768) & (table["n"] * table["k"] >= _TILES**2)]
    table = table.drop_duplicates(["gemm_dtype", "m", "n", "k"])
    for name, part in table.groupby("gemm_dtype"):
        if name not in FORMATS or is_host_timed(part):
            continue
        kind, width, dtype = FORMATS[str(name)]
        m, n, k, ms = columns(part, "m", "n", "k", "latency")
        yield cold(
            kernel_rows(
                kind,
                ms * 1e-3,
                gpu,
                dtype,
                2 * m * n * k,
                n * k * width + 2 * m * (n + k),
                shape=shapes_of(n, k),
                depth=k,
                inputs=m * k,
            )
        )


def is_host_timed(products: pd.DataFrame) -> bool:
    """Whether products of any size take the time of their launch on the host.

    So are those in FP8 with scales of blocks in some tables: 60 to 300 us for a single token.
    """
    small = products.loc[products["m"].le(_FEW), "latency"]
    return bool(len(small) and np.quantile(small, 0.1) > _HOST_TIMED * 1e3)


def read_products(folder: Path, version: str, kind: str, gpu: GpuSpec) -> list[KernelRows]:
    """Return a system's products of one kind, as one version has them; none without a table.

    Only those of 1 token or a multiple of 4, as captured graphs and chunks have them. With other
    numbers a further kernel lays out the scales of FP8 blocks (DeepGEMM's come in 16 bytes): on
    B200 17.1 us for 33 tokens, 10.9 us for 32 (2,560 x 2,048).
    """
    path = folder / "gemm" / "vllm" / version / "gemm_perf.parquet"
    if not path.is_file():
        return []
    table = table_of(path)
    table = table[table["m"].mod(_SCALES).eq(0) | table["m"].eq(1)]
    return [rows for rows in _products(table, gpu) if rows.kind == kind]


def _attention(table: pd.DataFrame, keys: list[str]) -> Iterator[tuple[str, float, pd.DataFrame]]:
    if "window_size" in table:
        table = table[table["window_size"].eq(0)]
    table = table.drop_duplicates(
        [*keys, "num_heads", "num_key_value_heads", "head_dim", "kv_cache_dtype"]
    )
    for name, part in table.groupby("kv_cache_dtype"):
        yield ("_fp8", 1.0, part) if name == "fp8" else ("", 2.0, part)


def _prompts(table: pd.DataFrame, gpu: GpuSpec) -> Iterator[KernelRows]:
    table = table[table["isl"].ge(128) & table["batch_size"].eq(1)]
    table = table[table["head_dim"].le(256) & table["num_heads"].ge(4)]
    for suffix, _, part in _attention(table, ["isl"]):
        n, heads, kv, dim, ms = columns(
            part, "isl", "num_heads", "num_key_value_heads", "head_dim", "latency"
        )
        pairs = heads * n * (n + 1) / 2
        yield kernel_rows(
            f"prefill_attention{suffix}",
            ms * 1e-3,
            gpu,
            "bf16",
            4 * dim * pairs,
            2 * n * dim * (2 * heads + 2 * kv),
            shape=shapes_of(heads, kv, dim),
            depth=n,
            pairs=pairs,
            combined="sum",
        )


def _decodes(table: pd.DataFrame, gpu: GpuSpec) -> Iterator[KernelRows]:
    table = table[table["step"].between(127, 40000) & table["batch_size"].le(512)]
    table = table[table["head_dim"].le(256) & table["num_key_value_heads"].le(8)]
    for suffix, width, part in _attention(table, ["step", "batch_size"]):
        batch, step, heads, kv, dim, ms = columns(
            part, "batch_size", "step", "num_heads", "num_key_value_heads", "head_dim", "latency"
        )
        keys = batch * (step + 1)
        # FlashAttention 2 shares out contexts of grouped heads alone, in steps without prompts
        splits = kernel_of(gpu.kernels, "decode_attention").beside_prompts == 1
        in_one_block = np.where(heads == kv, (step + 1) * dim / SERIAL_HEAD, 0.0)
        rows = kernel_rows(
            f"decode_attention{suffix}",
            ms * 1e-3,
            gpu,
            "bf16",
            np.zeros(len(part)),
            2 * kv * dim * keys * width + 4 * batch * heads * dim,
            shape=shapes_of(heads, kv, dim),
            depth=0.0 if splits or suffix else in_one_block,
            combined="longer",
        )
        yield _out_of_cache(rows)


def _out_of_cache(rows: KernelRows) -> KernelRows:
    """Leave out decodes whose keys were read again from the chip's cache.

    In an engine the other operators of a layer pass through it before they are read again. Rows
    of a microsecond of traffic or less tell the least time of the kernel and stay.
    """
    small = rows.memory < 1e-6
    least = np.quantile(rows.seconds[small], 0.1) if small.any() else 0.0
    return rows.only(small | (rows.memory < rows.seconds - least))


def _latent(table: pd.DataFrame, gpu: GpuSpec, prefill: bool) -> Iterator[KernelRows]:
    table = table[table["gemm_type"].eq("bfloat16") & table["kv_cache_dtype"].eq("bfloat16")]
    table = table[table["num_heads"].ge(8) & table["batch_size"].le(1 if prefill else 256)]
    table = table[table["isl"].ge(128)] if prefill else table[table["step"].between(128, 40000)]
    if table.empty:
        return
    heads, batch, ms = columns(table, "num_heads", "batch_size", "latency")
    length = table["isl" if prefill else "step"].to_numpy(dtype=float)
    model = load_model("deepseek-v3").with_dtypes(weights="bf16")
    mla = model.mla
    if mla is None:
        raise TypeError("deepseek-v3 has no latent attention")
    tokens = batch * length if prefill else batch
    known = _projections(model, gpu, heads, tokens, prefill)
    phase = "prefill" if prefill else "decode"
    if prefill:
        sizes = mla.qk_head_dim + mla.v_head_dim
        kept = 2 * mla.qk_head_dim + mla.qk_nope_head_dim + mla.v_head_dim
        pairs, moved = batch * length * (length + 1) / 2, heads * (kept + sizes) * tokens * 2
    else:
        sizes = mla.latent_size + mla.kv_lora_rank
        pairs = batch * (length + 1)
        moved = 2 * mla.latent_size * pairs + 2 * heads * sizes * batch
    rows = kernel_rows(
        f"latent_{phase}_attention",
        ms * 1e-3,
        gpu,
        "bf16",
        2 * heads * sizes * pairs,
        moved,
        shape=np.array(["deepseek-v3"] * len(ms)),
        depth=length,
        known=known,
        combined="sum" if prefill else "longer",
    )
    yield rows.only(rows.seconds > rows.known)


def _projections(
    model: ModelSpec, gpu: GpuSpec, heads: Array, tokens: Array, prefill: bool
) -> Array:
    """Seconds of a layer's projections as the GPU's entry has them, for so many heads."""
    from dataclasses import replace

    one = replace(model, num_layers=1, moe=None, intermediate_size=1, vocab_size=1)
    seconds: dict[Any, float] = {}
    for number in np.unique(heads).astype(int).tolist():
        ranks = model.num_attention_heads // number
        timed = phase_time(one, Cluster(gpu, 1), prefill) if ranks == 1 else None
        part = replace(one, num_attention_heads=number, num_key_value_heads=number)
        timed = timed or phase_time(part, Cluster(gpu, 1), prefill)
        for count in np.unique(tokens[heads == number]).astype(int).tolist():
            seconds[number, count] = timed.time(count, 0)
    keys = zip(heads.astype(int).tolist(), tokens.astype(int).tolist(), strict=True)
    return np.array([seconds[key] for key in keys])
