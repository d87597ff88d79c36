"""Reads layer timings of LLMServingSim and Vidur as kernels: products, small kernels, attention."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from mist_sim.bounds import NUMBER
from mist_sim.errors import ScenarioError, brief
from mist_sim.hardware import GpuSpec
from mist_sim.inputs import as_numbers, of_a_form, read_csv
from mist_sim.models import ModelSpec
from tools.kernels.kernel_rows import KernelRows, kernel_rows, shapes_of

if TYPE_CHECKING:
    import pandas as pd

Rows = list[KernelRows]

_VIDUR_PRODUCTS = {
    "attn_pre_proj": "qkv_proj",
    "attn_post_proj": "o_proj",
    "mlp_up_proj": "gate_up_proj",
    "mlp_down_proj": "down_proj",
}


def read_layers(path: Path, gpu: GpuSpec, model: ModelSpec | None) -> Rows:
    """Return the kernels of a table in any of these forms.

    LLMServingSim 1: `layer_name`, `input`, `tp_size`, `latency(ns)`. LLMServingSim 2: `layer`,
    `tokens`, `time_us`, of one rank. Vidur: `time_stats.*.median` by `num_tokens`, or of attention
    by `batch_size`, `prefill_chunk_size` and `kv_cache_size`.

    model: what was measured; Vidur's tables hold its sizes.
    Raises ScenarioError for other tables, and where a model is needed.
    """
    table = read_csv(path, {name for columns in _FORMS for name in columns})
    for columns, read in _FORMS.items():
        if set(columns) <= set(table.columns):
            table = _checked(table, columns, path)
            with of_a_form(path, "kernels"):
                found = read(table, gpu, _Sizes(path, model))
                return [rows.only(rows.seconds > 0) for rows in found]
    forms = "; ".join(", ".join(columns) for columns in _FORMS)
    raise ScenarioError(f"{path}: no table of kernels. Columns of one have: {forms}")


def _checked(table: pd.DataFrame, columns: tuple[str, ...], path: Path) -> pd.DataFrame:
    """Return a table with numeric columns; an empty or zero time counts as not measured.

    Raises ScenarioError with the line of a value that is not a number.
    """
    for name in columns:
        if name in _WORDS:
            continue
        least = 1 if name in _DIVISORS else 0
        values = as_numbers(table[name])
        right = values.between(least, NUMBER[1]) & ((values == 0) | (values >= NUMBER[0]))
        if "time" in name or "latency" in name:
            right |= table[name].isna()
        if not right.all():
            row = int(np.argmin(right.to_numpy()))
            beyond = 0 < values.iloc[row] < NUMBER[0] or NUMBER[1] < values.iloc[row] < np.inf
            rule = f"from {NUMBER[0]:g} to {NUMBER[1]:g}" if beyond else f">= {least}"
            raise ScenarioError(
                f"{path}: line {table.index[row]}: {name} must be a number {rule}, "
                f"got {brief(str(table[name].iloc[row]))}"
            )
        table = table.assign(**{name: values})
    return table


class _Sizes:
    """Sizes of the matrices of a dense layer, by the names that tables give them."""

    def __init__(self, path: Path, model: ModelSpec | None) -> None:
        self._path, self._model = path, model

    @property
    def model(self) -> ModelSpec:
        """The measured model; raises ScenarioError if neither the file nor `--model` names it."""
        if self._model is None:
            raise ScenarioError(f"{self._path} does not name the measured model: give --model")
        return self._model

    def matrices(self, ranks: int) -> Mapping[str, tuple[int, int]]:
        """Return (inputs, outputs) on one of so many ranks."""
        model = self.model
        a, kv = model.num_attention_heads // ranks, model.kv_heads_per_rank(ranks)
        return _matrices(
            model.hidden_size, a * model.head_dim, kv * model.head_dim,
            model.intermediate_size // ranks,
        )  # fmt: skip


def _matrices(h: int, a: int, kv: int, inner: int) -> dict[str, tuple[int, int]]:
    return {
        "q_proj": (h, a),
        "k_proj": (h, kv),
        "v_proj": (h, kv),
        "qkv_proj": (h, a + 2 * kv),
        "o_proj": (a, h),
        "gate_proj": (h, inner),
        "up_proj": (h, inner),
        "gate_up_proj": (h, 2 * inner),
        "down_proj": (inner, h),
    }


def _products(
    tokens: pd.Series, seconds: pd.Series, gpu: GpuSpec, inputs: int, outputs: int
) -> KernelRows:
    m = tokens.to_numpy(dtype=float)
    return kernel_rows(
        "bf16",
        seconds.to_numpy(dtype=float),
        gpu,
        "bf16",
        2 * m * inputs * outputs,
        2.0 * inputs * outputs + 2 * m * (inputs + outputs),
        shape=shapes_of(np.full(len(m), outputs), np.full(len(m), inputs)),
        depth=float(inputs),
        inputs=m * inputs,
    )


def _by_layer(
    table: pd.DataFrame, names: str, matrices: Mapping[str, tuple[int, int]], gpu: GpuSpec,
    columns: tuple[str, str, float],
) -> Iterator[KernelRows]:  # fmt: skip
    tokens, time, unit = columns
    for name, rows in table.groupby(names):
        if name in matrices:
            yield _products(rows[tokens], rows[time] * unit, gpu, *matrices[str(name)])


def _first(table: pd.DataFrame, gpu: GpuSpec, sizes: _Sizes) -> Iterator[KernelRows]:
    table = table[table["latency(ns)"] > 0]
    for ranks, rows in table.groupby("tp_size"):
        matrices = sizes.matrices(int(float(str(ranks))))
        plain = {name: sides for name, sides in matrices.items() if "_up" not in name}
        yield from _by_layer(rows, "layer_name", plain, gpu, ("input", "latency(ns)", 1e-9))


def _second(table: pd.DataFrame, gpu: GpuSpec, sizes: _Sizes) -> Iterator[KernelRows]:
    yield from _by_layer(table, "layer", sizes.matrices(1), gpu, ("tokens", "time_us", 1e-6))


def _vidur(table: pd.DataFrame, gpu: GpuSpec, sizes: _Sizes) -> Iterator[KernelRows]:
    keys = ["n_head", "n_kv_head", "n_embd", "n_expanded_embd", "num_tensor_parallel_workers"]
    for values, rows in table.groupby(keys):
        heads, kv, h, inner, ranks = (int(float(str(value))) for value in values)
        width = h // heads
        matrices = _matrices(h, h // ranks, max(1, kv // ranks) * width, inner // ranks)
        for theirs, name in _VIDUR_PRODUCTS.items():
            time = rows[f"time_stats.{theirs}.median"] * 1e-3
            yield _products(rows["num_tokens"], time, gpu, *matrices[name])


def _attention(table: pd.DataFrame, gpu: GpuSpec, sizes: _Sizes) -> Iterator[KernelRows]:
    """Prompts alone: the decodes of such tables ran in a kernel that does not split contexts."""
    table = table[table["is_prefill"].eq(True) & table["batch_size"].eq(1)]
    ranks, heads, kv, width, new, context = (
        table[name].to_numpy(dtype=float)
        for name in (
            "num_tensor_parallel_workers",
            "n_q_head",
            "n_kv_head",
            "n_embd",
            "prefill_chunk_size",
            "kv_cache_size",
        )
    )
    seconds = table["time_stats.attn_prefill.median"].to_numpy(dtype=float) * 1e-3
    sides = (heads / ranks, np.maximum(1, kv / ranks), width / heads)
    yield _attention_rows("prefill", seconds, gpu, sides, new, context)


def _attention_rows(
    phase: str, seconds: np.ndarray, gpu: GpuSpec, heads: tuple[np.ndarray, ...],
    tokens: np.ndarray, context: np.ndarray,
) -> KernelRows:  # fmt: skip
    """Rows of one prompt of so many tokens, or of so many decodes, after a context of each."""
    h, kv, dim = heads
    prefill = phase == "prefill"
    keys = context + tokens if prefill else tokens * (context + 1)
    pairs = h * tokens * (context + (tokens + 1) / 2)
    return kernel_rows(
        f"{phase}_attention",
        seconds,
        gpu,
        "bf16",
        4 * dim * pairs if prefill else np.zeros(len(seconds)),
        4 * kv * dim * keys + 4 * tokens * h * dim,
        shape=shapes_of(h, kv, dim),
        depth=keys if prefill else 0.0,
        pairs=pairs if prefill else 0.0,
        combined="sum" if prefill else "longer",
    )


def _profile(table: pd.DataFrame, gpu: GpuSpec, sizes: _Sizes) -> Iterator[KernelRows]:
    model = sizes.model
    one = (model.num_attention_heads, model.num_key_value_heads, model.head_dim)
    names = ("prefill_chunk", "kv_prefill", "n_decode", "kv_decode")
    new, context, decodes, length = (table[name].to_numpy(dtype=float) for name in names)
    seconds = table["time_us"].to_numpy(dtype=float) * 1e-6
    for phase, here in (
        ("prefill", (decodes == 0) & (new >= 128)),
        ("decode", (new == 0) & (length >= 128)),
    ):
        heads = tuple(np.full(int(here.sum()), float(size)) for size in one)
        tokens = new[here] if phase == "prefill" else decodes[here]
        lengths = context[here] if phase == "prefill" else length[here]
        yield _attention_rows(phase, seconds[here], gpu, heads, tokens, lengths)


_WORDS = {"layer", "layer_name", "is_prefill"}
_DIVISORS = {"tp_size", "num_tensor_parallel_workers", "n_head", "n_q_head", "n_kv_head"}
_VIDUR_SIZES = ("n_kv_head", "n_embd", "num_tensor_parallel_workers")
# all columns that a form needs
_FORMS: Mapping[
    tuple[str, ...], Callable[[pd.DataFrame, GpuSpec, _Sizes], Iterator[KernelRows]]
] = {
    ("layer_name", "input", "tp_size", "latency(ns)"): _first,
    ("layer", "tokens", "time_us"): _second,
    (
        "num_tokens",
        "n_head",
        "n_expanded_embd",
        *_VIDUR_SIZES,
        *(f"time_stats.{name}.median" for name in _VIDUR_PRODUCTS),
    ): _vidur,
    (
        "is_prefill",
        "batch_size",
        "prefill_chunk_size",
        "kv_cache_size",
        "n_q_head",
        *_VIDUR_SIZES,
        "time_stats.attn_prefill.median",
    ): _attention,
    ("prefill_chunk", "kv_prefill", "n_decode", "kv_decode", "time_us"): _profile,
}
