"""Reads the operator tables of aiconfigurator-core: one folder of a system, newest vLLM."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from mist_sim.bounds import NUMBER
from mist_sim.calibration.kernels.kernel_rows import KernelRows, kernel_rows, shapes_of
from mist_sim.errors import ScenarioError
from mist_sim.hardware import Cluster, GpuSpec
from mist_sim.hardware.devices.kernels import Kernel
from mist_sim.hardware.predictors.analytic.compile import phase_time
from mist_sim.inputs.parquet import read_parquet
from mist_sim.inputs.tables import of_a_form
from mist_sim.models import ModelSpec, load_model

if TYPE_CHECKING:
    import pandas as pd

Array = NDArray[np.float64]

# their names of formats: ours, bytes of a parameter, the type that is multiplied
_FORMATS = {
    "bfloat16": ("bf16", 2.0, "bf16"),
    "fp8": ("fp8", 1.0, "fp8"),
    "fp8_block": ("fp8_block", 1.0 + 4 / 128**2, "fp8"),
    "nvfp4": ("nvfp4", 0.5 + 1 / 16, "fp4"),
    "int4_wo": ("int4", 0.5 + 2 / 128, "bf16"),
    "w4a16_mxfp4": ("mxfp4", 0.5 + 1 / 32, "bf16"),
}
_ALIGNED = 8  # inner sizes that are no multiple take other kernels
_UNGATED = {(1024, 2688), (2048, 5120), (2688, 1856)}  # Nemotron: two matrices an expert, not three
_TILES = 1024  # smallest number of inputs and outputs of a product that counts


def read_system(folder: Path, gpu: GpuSpec, vector: Kernel) -> list[KernelRows]:
    """Return the kernels of a system (`systems/data/h100_sxm`), kind by kind.

    vector: figures of norms and activations, which run between the products of experts.
    Raises ScenarioError where the folder has no tables.
    """
    readers = {
        "gemm/gemm_perf": _products,
        "moe/moe_perf": lambda rows, gpu: _experts(rows, gpu, vector),
        "attention/context_attention_perf": _prompts,
        "attention/generation_attention_perf": _decodes,
    }
    found: list[KernelRows] = []
    for name, read in readers.items():
        path = _newest(folder, name)
        if path is not None:
            with of_a_form(path, "vLLM's kernels"):
                found += read(_table(path), gpu)
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
        path = _newest(folder, f"mla/{name}_module_perf")
        if path is not None:
            with of_a_form(path, "vLLM's kernels"):
                found += _latent(_table(path), gpu, prefill)
    return found


def _newest(folder: Path, name: str) -> Path | None:
    part, _, file = name.partition("/")
    return max(folder.glob(f"{part}/vllm/*/{file}.parquet"), key=_version, default=None)


def _version(path: Path) -> list[int]:
    return [int(number[:9]) for number in re.findall(r"[0-9]+", path.parent.name)]


def _table(path: Path) -> pd.DataFrame:
    table, _ = read_parquet(path)
    numbers = table.select_dtypes("number")
    if (numbers.abs() > NUMBER[1]).any(axis=None):
        raise ScenarioError(f"{path}: numbers must be <= {NUMBER[1]:g}")
    return table[table["latency"] > NUMBER[0]]


def _columns(table: pd.DataFrame, *names: str) -> list[Array]:
    return [table[name].to_numpy(dtype=float) for name in names]


def _cold(rows: KernelRows) -> KernelRows:
    """Leave out times faster than memory allows: their data lay in the chip's cache."""
    return rows.only(rows.memory * rows.launches < rows.seconds)


def _products(table: pd.DataFrame, gpu: GpuSpec) -> Iterator[KernelRows]:
    table = table[table["m"].le(16384) & table["n"].between(256, 32768)]
    table = table[table["k"].between(256, 32768) & (table["n"] * table["k"] >= _TILES**2)]
    table = table.drop_duplicates(["gemm_dtype", "m", "n", "k"])
    for name, part in table.groupby("gemm_dtype"):
        # above this, most times are those of the host
        if name not in _FORMATS or name == "fp8_block":
            continue
        kind, width, dtype = _FORMATS[str(name)]
        m, n, k, ms = _columns(part, "m", "n", "k", "latency")
        yield _cold(
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


def _experts(table: pd.DataFrame, gpu: GpuSpec, vector: Kernel) -> Iterator[KernelRows]:
    table = table[table["moe_ep_size"].eq(1) & table["num_tokens"].le(16384)]
    table = table[(table["inter_size"] // table["moe_tp_size"] % _ALIGNED).eq(0)]
    pairs = zip(table["hidden_size"], table["inter_size"], strict=True)
    table = table[[pair not in _UNGATED for pair in pairs]]
    sizes = ["num_tokens", "hidden_size", "inter_size", "topk", "num_experts", "moe_tp_size"]
    for name, every in table.groupby("moe_dtype"):
        if name not in _FORMATS:
            continue
        usual = every[every["kernel_source"].eq(_usual_kernel(every))]
        part = usual.drop_duplicates([*sizes, "distribution"])
        kind, width, dtype = _FORMATS[str(name)]
        n, h, inner, k, number, ranks, ms = _columns(part, *sizes, "latency")
        even = part["distribution"].eq("balanced").to_numpy()
        uniform = number * (1 - (1 - k / number) ** n)
        reached = np.where(even, np.minimum(number, n * k), uniform)
        rank = inner / ranks
        # the two products are taken as two equal ones: two thirds and one third are 5 % apart
        flops, weights = 3 * n * k * h * rank, 1.5 * reached * h * rank * width
        moved = n * k * (2 * h + 3 * rank)
        between = (n * k * 3 * rank + n * (k + 1) * h) * 2
        known = 2 * vector.floor + between / ((vector.mbu or 0.8) * gpu.memory_bandwidth)
        rows = kernel_rows(
            f"experts_{kind}",
            ms * 1e-3,
            gpu,
            dtype,
            flops,
            weights + moved,
            shape=shapes_of(h, inner, number),
            launches=2.0,
            depth=(h + rank) / 2,
            inputs=n * k * (h + rank) / 2,
            padded_flops=3 * reached * h * rank,
            known=known,
        )
        yield _cold(rows.only(rows.seconds > rows.known))


def _usual_kernel(rows: pd.DataFrame) -> str:
    """Return the kernel that computes most shapes; others cover the rest."""
    shapes = rows[["kernel_source", "hidden_size", "inter_size", "num_experts"]].drop_duplicates()
    return str(shapes["kernel_source"].value_counts().index[0])


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
        n, heads, kv, dim, ms = _columns(
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
        batch, step, heads, kv, dim, ms = _columns(
            part, "batch_size", "step", "num_heads", "num_key_value_heads", "head_dim", "latency"
        )
        keys = batch * (step + 1)
        rows = kernel_rows(
            f"decode_attention{suffix}",
            ms * 1e-3,
            gpu,
            "bf16",
            np.zeros(len(part)),
            2 * kv * dim * keys * width + 4 * batch * heads * dim,
            shape=shapes_of(heads, kv, dim),
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
    heads, batch, ms = _columns(table, "num_heads", "batch_size", "latency")
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
