"""Reads the tables of recurrences (`gdn_perf`, `kda_perf`) of aisimulate."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Literal

import numpy as np

from mist_sim.hardware import GpuSpec
from mist_sim.models import load_model
from mist_sim.models.layers import LayerSpec
from mist_sim.models.mixers import LinearMixer
from mist_sim.models.operators import StateWork, states
from tools.mixers.mixer_rows import Array, MixerRows, Part, joined

if TYPE_CHECKING:
    import pandas as pd

StateKind = Literal["gdn", "kda"]
_SIZES = ["num_k_heads", "num_v_heads", "head_k_dim", "head_v_dim"]
_PHASES = {True: "context", False: "generation"}
_CONVOLUTION = "conv1d"  # kernels of the convolution beside, which the roofline has as an operator
# of a prompt of one token, which takes the kernel of decodes, and of kernels that lost the choice
_RECURRENT = "recurrent"


def read_states(table: pd.DataFrame, gpu: GpuSpec, kind: StateKind, prefill: bool) -> MixerRows:
    """Return the recurrences of a table, without the convolutions before them."""
    table = table[table["phase"].eq(_PHASES[prefill])]
    table = table[~table["kernel_source"].str.contains(_CONVOLUTION)]
    if prefill:
        table = table[~table["kernel_source"].str.contains(_RECURRENT)]
    return joined(list(_rows(table, gpu, kind, prefill)))


def _rows(table: pd.DataFrame, gpu: GpuSpec, kind: StateKind, prefill: bool) -> Iterator[MixerRows]:
    for sizes, part in table.groupby(_SIZES, sort=False):
        keys, values, key_dim, value_dim = (int(str(size)) for size in sizes)
        work = _work(kind, keys, values, key_dim, value_dim)
        batch, length, ms = (
            part[name].to_numpy(dtype=float) for name in ("batch_size", "seq_len", "latency")
        )
        yield MixerRows(
            prefill=prefill,
            seconds=ms * 1e-3,
            known=np.zeros(len(ms)),
            parts=[_part(kind, work, gpu, batch, length, prefill)],
            model=part["model_name"].to_numpy(dtype=str),
            heads=np.full(len(ms), float(values)),
        )


def _part(
    kind: str, work: StateWork, gpu: GpuSpec, batch: Array, length: Array, prefill: bool
) -> Part:
    bandwidth = gpu.memory_bandwidth
    if not prefill:
        moved = batch * float(work.of_decode.bytes) / bandwidth
        return Part(kind, np.zeros(len(batch)), moved, np.zeros(len(batch)))
    tokens = batch * length
    moved = tokens * float(work.of_token.bytes) + batch * float(work.of_prompt.bytes)
    compute = tokens * float(work.of_token.flops) / gpu.flops["bf16"]
    return Part(kind, compute, moved / bandwidth, length / 1e3)


def _work(kind: StateKind, keys: int, values: int, key_dim: int, value_dim: int) -> StateWork:
    """Return the work of one layer, its state in 32 bits as vLLM keeps it."""
    mixer = LinearMixer(
        kind=kind, key_heads=keys, value_heads=values, key_dim=key_dim, value_dim=value_dim
    )
    model = replace(load_model("llama-3.1-8b"), layers=(LayerSpec(mixer=mixer),), num_layers=1)
    (found,) = states(model, 1)
    return found
