"""Reads the tables of sparse attention of aisimulate, which time whole modules."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import TYPE_CHECKING

import numpy as np

from mist_sim.errors import ScenarioError
from mist_sim.hardware import GpuSpec
from mist_sim.hardware.predictors.analytic.compile import Phase
from mist_sim.hardware.predictors.analytic.phase_time import Term
from mist_sim.hardware.predictors.analytic.roofline import Reach
from mist_sim.models import ModelSpec, load_model
from mist_sim.models.layers import LayerSpec
from mist_sim.models.mixers import CompressedMixer, HeadsMixer, LatentMixer, Mixer
from mist_sim.models.operators import Attends, attends, mixer_operators
from tools.mixers.mixer_rows import Array, MixerRows, Part, joined

if TYPE_CHECKING:
    import pandas as pd

# their names of models, and the entries of the catalog with the same layers
_MODELS = {
    "deepseek-ai/DeepSeek-V3.2": "deepseek-v3.2",
    "zai-org/GLM-5": "glm-5",
    "zai-org/GLM-5.2": "glm-5.2",
    "deepseek-ai/DeepSeek-V4-Flash": "deepseek-v4-flash",
    "deepseek-ai/DeepSeek-V4-Pro": "deepseek-v4-pro",
    "sgl-project/DeepSeek-V4-Flash-FP8": "deepseek-v4-flash-fp8",
    "sgl-project/DeepSeek-V4-Pro-FP8": "deepseek-v4-pro-fp8",
    "MiniMaxAI/MiniMax-M3": "minimax-m3",
}
_MOST_TOKENS = 32_768  # of a step with prompts; engines have no longer ones


@dataclass(frozen=True, slots=True)
class Module:
    """One layer's mixer alone: of how many heads, in which formats.

    ratio: tokens of an entry (DeepSeek-V4). has_indexer: False where the layer takes the choice of
    an earlier one.
    """

    model: str
    heads: int
    gemm: str
    kv_cache: str
    ratio: int = 0
    has_indexer: bool = True


def read_modules(table: pd.DataFrame, gpu: GpuSpec, prefill: bool) -> MixerRows:
    """Return the modules of a table, all of one kind."""
    if prefill:
        table = table[table["batch_size"] * table["isl"] <= _MOST_TOKENS]
    keys = ["model", "num_heads", "gemm_type", "kv_cache_dtype", "op_name"]
    keys += ["compress_ratio"] if "compress_ratio" in table else []
    keys += ["isl"] if prefill else []  # prompts of one length go as arrays
    return joined(list(_rows(table, keys, gpu, prefill)))


def _rows(table: pd.DataFrame, keys: list[str], gpu: GpuSpec, prefill: bool) -> Iterator[MixerRows]:
    for values, part in table.groupby(keys, sort=False):
        of = dict(zip(keys, values, strict=True))
        module = Module(
            str(of["model"]),
            int(str(of["num_heads"])),
            str(of["gemm_type"]),
            str(of["kv_cache_dtype"]),
            int(str(of.get("compress_ratio", 0))),
            "skip" not in str(of["op_name"]),
        )
        batch, length, step, ms = (
            part[name].to_numpy(dtype=float) for name in ("batch_size", "isl", "step", "latency")
        )
        queries = batch * length if prefill else batch
        parts = [
            _part(each, gpu, batch, queries, (length, step), prefill) for each in _attends(module)
        ]
        yield MixerRows(
            prefill=prefill,
            seconds=ms * 1e-3,
            known=_projections(module, gpu, queries, prefill),
            parts=parts,
            model=np.full(len(ms), module.model),
            heads=np.full(len(ms), float(module.heads)),
        )


def _part(
    of: Attends,
    gpu: GpuSpec,
    batch: Array,
    queries: Array,
    seen: tuple[Array, Array],
    prefill: bool,
) -> Part:
    """Return attention or an indexer of some rows, prompts of one length. seen: length, step."""
    (length, step), reach = seen, Reach(of.reach)
    if prefill:
        keys, pairs = reach.of_prompt(int(length[0]), step)
    else:
        keys = pairs = step + 1 if of.reach is None else np.minimum(step + 1, of.reach)
    keys, pairs = batch * keys / of.per_entry, batch * pairs / of.per_entry
    work = of.work(1, 1, 1, prefill)
    peak = gpu.flops.get(work.dtype, gpu.flops["bf16"])
    each, key, pair = (of.work(*one, prefill) for one in ((1, 0, 0), (0, 1, 0), (0, 0, 1)))
    flops = queries * float(each.flops) + pairs * float(pair.flops)
    moved = queries * float(each.bytes) + keys * float(key.bytes) + pairs * float(pair.bytes)
    return Part(of.kernel, flops / peak, moved / gpu.memory_bandwidth, np.zeros(len(batch)))


@cache
def _attends(module: Module) -> list[Attends]:
    return attends(_layer(module), 1)


def _projections(module: Module, gpu: GpuSpec, queries: Array, prefill: bool) -> Array:
    """Return the seconds of the work linear in tokens, from the GPU's entry."""
    model = _layer(module)
    mixer = model.layers[0].mixer
    if mixer is None:
        raise ScenarioError(f"{module.model}: no mixer")
    none, one = (mixer_operators(model, mixer, n, 1, prefill)[1:] for n in (0, 1))
    terms = list(Phase(gpu, gpu.prefill if prefill else gpu.decode).terms(1, none, one))
    by_number = {number: _sum_of(terms, int(number)) for number in np.unique(queries).tolist()}
    return np.array([by_number[number] for number in queries.tolist()])


def _sum_of(terms: Sequence[Term], number: int) -> float:
    """Return the seconds of operators for so many tokens, as `phase_time` adds them."""
    seconds = 0.0
    for term in terms:
        if term.weights:
            seconds += term.time(number)
        else:
            seconds += term.fixed + number * max(term.work, term.traffic)
    return seconds


@cache
def _layer(module: Module) -> ModelSpec:
    """Return a model of the module's layer alone."""
    if module.model not in _MODELS:
        raise ScenarioError(f"no entry of the catalog has the layers of {module.model}")
    model = load_model(_MODELS[module.model])
    mixer = _mixer(model, module)
    model = replace(model, layers=(LayerSpec(mixer=mixer),), num_layers=1, moe=None)
    if isinstance(mixer, LatentMixer):
        formats = load_model("deepseek-v3.2").quantization
        plain = module.gemm == "bfloat16"
        model = replace(model, quantization=None if plain else formats, more_quantizations=())
    if isinstance(mixer, CompressedMixer):  # entries of one format
        return model
    return model.with_dtypes(kv_cache="fp8" if module.kv_cache == "fp8" else "auto")


def _mixer(model: ModelSpec, module: Module) -> Mixer:
    for layer in model.layers:
        mixer = layer.mixer
        if isinstance(mixer, CompressedMixer) and mixer.ratio == module.ratio:
            return replace(mixer, num_heads=module.heads, o_groups=max(1, module.heads // 8))
        if isinstance(mixer, LatentMixer) and mixer.indexer:
            indexer = mixer.indexer if module.has_indexer else None
            return replace(mixer, num_heads=module.heads, indexer=indexer)
        if isinstance(mixer, HeadsMixer) and mixer.indexer:
            kv = max(1, module.heads // (mixer.num_heads // mixer.num_kv_heads))
            return replace(mixer, num_heads=module.heads, num_kv_heads=kv)
    raise ScenarioError(f"{module.model}: no layer of the kind that was measured")
