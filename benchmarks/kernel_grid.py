"""The roofline beside measured kernels: whole steps of nine GPUs and eight models, term by term.

    python -m benchmarks.kernel_grid            # the score, with the catalog's figures
    python -m benchmarks.kernel_grid --left-out # fitted without the shapes of the scored model

Measured kernels are those of aiconfigurator-core for vLLM (`pip install ./plugins/silicon`); its
norms and activations are estimates. Asking it takes minutes; `--grid FILE` keeps the answers.
"""

from __future__ import annotations

import argparse
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cache
from importlib import resources
from importlib.util import find_spec
from itertools import product
from pathlib import Path
from typing import Any

import pandas as pd

from mist_sim import ScenarioError
from mist_sim.core.batch import StepBatch
from mist_sim.hardware import Cluster, GpuSpec, load_gpu
from mist_sim.hardware.devices import Efficiency, Kernel
from mist_sim.hardware.predictors import RooflinePredictor
from mist_sim.models import ModelSpec, load_model
from mist_sim_silicon import Silicon
from mist_sim_silicon.names import Package
from tools.kernels.aiconfigurator import read_latent, read_products, read_system
from tools.kernels.kernel_fit import KernelFit, fit_kernel
from tools.kernels.kernel_rows import KernelRows, joined

# the cards that were measured, by architecture, and what the package calls them
SYSTEMS: Mapping[str, Mapping[str, str]] = {
    "ampere": {"a100-80gb-sxm": "a100_sxm"},
    "ada": {"l40s": "l40s"},
    "hopper": {"h100-sxm": "h100_sxm", "h200": "h200_sxm"},
    "blackwell": {"b200": "b200_sxm", "gb200": "gb200"},
    "blackwell-ultra": {"b300": "b300_sxm", "gb300": "gb300"},
    "blackwell-rtx": {"rtx-pro-6000": "rtx_pro_6000_server"},
}
MODELS = (
    "llama-3.1-8b",
    "llama-3.1-70b",
    "qwen3-32b",
    "qwen3-30b-a3b",
    "qwen3-235b-a22b",
    "mixtral-8x7b",
    "gpt-oss-120b",
    "deepseek-v3",
)
RANKS = (1, 2, 4, 8)
DECODES = (1, 2, 4, 8, 16, 32, 64, 128, 256)
CONTEXTS = (1024, 2048, 4096, 8192, 16384, 32768)
PROMPTS = (128, 256, 512, 1024, 2048, 4096, 8192)
KEYS = ["gpu", "model", "dtype", "ranks", "step", "number", "length"]
TERMS = ["products", "attention", "experts", "small", "collectives"]

BLOCKS, BLOCKS_OF = "fp8_block", "0.25.0"  # the kind, and the version whose times are kernels'
_STORED = {"gpt-oss-120b": "mxfp4", "deepseek-v3": "fp8"}
_USUAL: Package = "aiconfigurator-core"
# whose products in that are the host's
_PACKAGES: Mapping[str, Package] = {"deepseek-v3": "aisimulate"}
_ROOM = 0.92  # of a GPU's memory, as vLLM takes


def formats(name: str) -> Iterator[tuple[str, ModelSpec]]:
    """Yield the number formats of a model on the grid: as stored, or 16 bits and FP8."""
    model = load_model(name)
    if name in _STORED:
        yield _STORED[name], model
    else:
        yield "bf16", model
        yield "fp8", model.with_dtypes(weights="fp8")


def points(model: ModelSpec, gpu: GpuSpec, ranks: int) -> Iterator[tuple[str, int, int]]:
    """Yield (step, number, length) of the grid, as far as weights and cache fit."""
    room = _ROOM * gpu.memory - model.weight_bytes_per_rank(ranks)
    if room < 0:
        return
    for length in PROMPTS:
        yield "prompt", 1, length
    per_token = model.kv_bytes_per_token_per_rank(ranks)
    for number, length in product(DECODES, CONTEXTS):
        if number * length * per_token <= room:
            yield "decode", number, length


def batch_of(model: ModelSpec, step: str, number: int, length: int) -> StepBatch:
    """Return a prompt of that length, or so many decodes after contexts of it."""
    if step == "prompt":
        return StepBatch(((length, 0),))
    window = model.sliding_window
    seen = number * min(length, window - 1) if window else None
    return StepBatch((), number, number * length, window_sum=seen)


def term_of(operator: str) -> str:
    """Return the term that one of the package's operators belongs to."""
    name = operator.partition("_")[2]
    if name.endswith("gemm"):
        return "products"
    if name in ("attention", "mla_block"):
        return "attention"
    if name in ("moe", "moe_overlap"):
        return "experts"
    small = ("embedding", "add_norm_1", "add_norm_2", "act_gate")
    return "small" if name in small else "collectives"


def measured(
    gpus: Sequence[str], models: Sequence[str] = MODELS, ranks: Sequence[int] = RANKS
) -> pd.DataFrame:
    """Return the seconds of every point of the grid by term; without data, no row."""
    logging.getLogger("aiconfigurator_core").setLevel(logging.CRITICAL)
    rows = []
    for gpu, name, size in product(gpus, models, ranks):
        for dtype, model in formats(name):
            for step, number, length in points(model, load_gpu(gpu), size):
                try:
                    source = _source(name, dtype, gpu, size)
                    found = source.by_operator(batch_of(model, step, number, length))
                except ScenarioError:
                    continue
                terms = dict.fromkeys(TERMS, 0.0)
                for operator, seconds in found.items():
                    terms[term_of(operator)] += seconds
                rows.append((gpu, name, dtype, size, step, number, length, *terms.values()))
    return pd.DataFrame(rows, columns=[*KEYS, *TERMS])


@cache
def _source(name: str, dtype: str, gpu: str, ranks: int) -> Silicon:
    model = dict(formats(name))[dtype]
    return Silicon(model, Cluster(load_gpu(gpu), ranks), "vllm", _PACKAGES.get(name, _USUAL))


def simulated(grid: pd.DataFrame, gpu_of: Callable[[str, str], GpuSpec]) -> pd.DataFrame:
    """Return the roofline's seconds of the same points by term.

    gpu_of: called with the names of model and GPU.
    """
    rows = {}
    for (gpu, name, dtype, ranks), part in grid.groupby(["gpu", "model", "dtype", "ranks"]):
        model = dict(formats(str(name)))[str(dtype)]
        roofline = RooflinePredictor(model, Cluster(gpu_of(str(name), str(gpu)), int(str(ranks))))
        for row in part.itertuples():
            batch = batch_of(model, str(row.step), int(row.number), int(row.length))
            parts = roofline.parts(batch)
            rows[row.Index] = [parts[term] for term in TERMS]
    return pd.DataFrame.from_dict(rows, orient="index", columns=TERMS).loc[grid.index]


def ratios(grid: pd.DataFrame, ours: pd.DataFrame) -> pd.Series:
    """Return computed over measured seconds of all kernels but collectives."""
    kernels = TERMS[:-1]
    return ours[kernels].sum(axis=1) / grid[kernels].sum(axis=1)


def score(ratio: pd.Series) -> dict[str, float]:
    """Return number, median and 90th percentile of |error|, median ratio, share beyond 1.5."""
    errors = (ratio - 1).abs()
    return {
        "points": float(len(ratio)),
        "median": float(errors.median()),
        "ninth": float(errors.quantile(0.9)),
        "ratio": float(ratio.median()),
        "beyond": float(((ratio > 1.5) | (ratio < 1 / 1.5)).mean()),
    }


# --- fits ----------------------------------------------------------------------------------------


def shapes(model: ModelSpec) -> set[str]:
    """Return the sizes of a model's kernels on all ranks of the grid, as tables name them."""
    found = {"deepseek-v3"} if model.mla else set()
    h, dim, moe = model.hidden_size, model.head_dim, model.moe
    for ranks in RANKS:
        a, kv = model.num_attention_heads // ranks, model.kv_heads_per_rank(ranks)
        found |= {f"{(a + 2 * kv) * dim}x{h}", f"{h}x{a * dim}", f"{a}x{kv}x{dim}"}
        found.add(f"{model.vocab_size // ranks}x{h}")
        shared = moe.shared_intermediate_size if moe else 0
        for inner in {model.intermediate_size, shared} - {0}:
            found |= {f"{2 * inner // ranks}x{h}", f"{h}x{inner // ranks}"}
    if moe:
        found |= {f"{moe.num_experts}x{h}", f"{h}x{moe.intermediate_size}x{moe.num_experts}"}
    return found


@cache
def table_rows(architecture: str) -> dict[str, KernelRows]:
    """Return the package's kernels of all cards of an architecture by kind."""
    found: dict[str, list[KernelRows]] = {}
    for gpu, system in SYSTEMS[architecture].items():
        card = load_gpu(gpu)
        small = replace(card.kernels["vector"], mbu=0.8)
        for rows in read_system(_folder(system), card, small):
            found.setdefault(rows.kind, []).append(rows)
    blocks = [rows for part in block_rows(architecture) for rows in part]
    if blocks:
        found[BLOCKS] = blocks
    return {kind: joined(parts) for kind, parts in sorted(found.items())}


def block_rows(architecture: str, folder: Path | None = None) -> Iterator[list[KernelRows]]:
    """Yield the FP8 products with scales of blocks of each card, from aisimulate's tables.

    Those of aiconfigurator-core are the host's. folder: of the tables; by default that of the
    installed package, and nothing without it.
    """
    if folder is None:
        if find_spec("aisimulate_core") is None:
            return
        folder = Path(str(resources.files("aisimulate_core") / "systems" / "data"))
    for gpu, system in SYSTEMS[architecture].items():
        yield read_products(folder / system, BLOCKS_OF, BLOCKS, load_gpu(gpu))


def _folder(system: str) -> Path:
    return Path(str(resources.files("aiconfigurator_core") / "systems" / "data" / system))


def fits_of(architecture: str, leave_out: frozenset[str] = frozenset()) -> list[KernelFit]:
    """Return the figures of an architecture; latent attention comes around its products."""
    rows = table_rows(architecture)
    fits = [fit for each in rows.values() if (fit := fit_kernel(each, leave_out))]
    latent: dict[str, list[KernelRows]] = {}
    for gpu, system in SYSTEMS[architecture].items():
        for part in read_latent(_folder(system), with_fits(load_gpu(gpu), fits)):
            latent.setdefault(part.kind, []).append(part)
    more = (fit_kernel(joined(parts), leave_out) for parts in latent.values())
    return fits + [fit for fit in more if fit]


def with_fits(gpu: GpuSpec, fits: Sequence[KernelFit]) -> GpuSpec:
    """Return a GPU with fitted kernels alone, and the small ones that it has."""
    values = {fit.kind: dict(fit.values) for fit in fits}
    plain = Efficiency(mfu=values["bf16"].pop("mfu"), mbu=values["bf16"].pop("mbu"))
    kernels = {"vector": gpu.kernels["vector"]}
    for kind, figures in values.items():
        said = gpu.kernels.get(kind, Kernel())
        kernels[kind] = Kernel(**figures, beside_prompts=said.beside_prompts)
    return replace(gpu, prefill=plain, decode=plain, kernels=kernels)


@cache
def left_out(name: str, gpu: str) -> GpuSpec:
    """Return a GPU whose kernels were fitted without the shapes of a model."""
    card = load_gpu(gpu)
    return with_fits(card, _fits_without(name, card.architecture))


@cache
def _fits_without(name: str, architecture: str) -> tuple[KernelFit, ...]:
    return tuple(fits_of(architecture, frozenset(shapes(load_model(name)))))


# --- the command ---------------------------------------------------------------------------------


def cards() -> list[str]:
    """Return the names of all cards that were measured."""
    return [gpu for systems in SYSTEMS.values() for gpu in systems]


def grid_of(file: Path | None) -> pd.DataFrame:
    """Return the measured grid, from a file where it is there, and kept in it."""
    if file and file.exists():
        return pd.read_parquet(file)
    grid = measured(cards())
    if file:
        grid.to_parquet(file)
    return grid


def main() -> None:
    """Print the score by step, GPU and model, and by term."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--grid", type=Path, help="where the measured grid is kept (.parquet)")
    parser.add_argument("--left-out", action="store_true")
    options = parser.parse_args()
    grid = grid_of(options.grid)
    gpu_of: Any = left_out if options.left_out else (lambda _, gpu: load_gpu(gpu))
    ours = simulated(grid, gpu_of)
    ratio = ratios(grid, ours)
    show("all", ratio)
    for keys in (["step"], ["gpu"], ["model", "dtype"]):
        for name, part in grid.groupby(keys):
            show(" ".join(map(str, name)), ratio[part.index])
    for term in TERMS:
        there = grid[grid[term] > 0].index
        show(term, ours[term][there] / grid[term][there])


def show(name: str, ratio: pd.Series) -> None:
    """Print the score of some points."""
    found = score(ratio)
    print(
        f"{name:28} {found['points']:7.0f} points  median {found['median']:6.1%}  nine in ten "
        f"{found['ninth']:6.1%}  ratio {found['ratio']:5.2f}  beyond 1.5 {found['beyond']:6.1%}"
    )


if __name__ == "__main__":
    main()
