"""Efficiencies from kernel timings: what the GPU catalog's fitted entries are made from.

Matrix multiplications: MFU = 2 x parameters x tokens / (time x peak), summed over the profiled
token counts; MBU = weight bytes / (time x bandwidth) of a few tokens, where time is all reading.
Splitwise's prompt times are end to end: the all-reduce of the catalog is taken off, and what is
left (host time included) counts as compute.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from mist_sim.hardware import Cluster, load_gpu
from mist_sim.models import ModelSpec, load_model

if TYPE_CHECKING:
    import pandas as pd

RTX = "vllm-0.19-rtxpro6000-llama3.1-8b/profile/dense.csv"
H100 = "vllm-h100-llama3.1-70b-tp4-layers/layers.csv"
LAYERS = "layer-profiles/v0/{}/meta-llama/Llama-3.1-8B/tp1/layers.csv.gz"
SPLITWISE = "splitwise_perf_model.csv"
PREFILL, DECODE, READING = (1024, 2048), (256, 512), (1, 8)  # tokens, both ends included


def catalog_figures(measurements: Path) -> dict[str, dict[str, float]]:
    """Return the fitted figures by catalog name; `measurements` is the folder with all files."""
    splitwise = measurements / SPLITWISE
    return {
        "rtx-pro-6000": _of_matrices("rtx-pro-6000", *_rtx_seconds(measurements / RTX)),
        "h100-sxm": _of_matrices("h100-sxm", *_seconds(measurements / H100, "llama-3.1-70b", 4)),
        "rtx-a6000": _of_matrices(
            "rtx-a6000", *_seconds(measurements / LAYERS.format("A6000"), "llama-3.1-8b", 1)
        ),
        "rtx-3090": _of_matrices(
            "rtx-3090", *_seconds(measurements / LAYERS.format("RTX3090"), "llama-3.1-8b", 1)
        ),
        "a100-80gb-sxm": _of_prompts(splitwise, "a100-80gb-sxm", "a100-80gb", 2),
    }


def _rtx_seconds(path: Path) -> tuple[pd.Series, int]:
    """Seconds of a layer's matrices by tokens, and their parameters."""
    import pandas as pd

    model = load_model("llama-3.1-8b")
    rows = pd.read_csv(path)
    matrices = rows[rows["layer"].isin(["qkv_proj", "o_proj", "gate_up_proj", "down_proj"])]
    params = model.attention_params_per_layer + model.mlp_params_per_layer
    return matrices.groupby("tokens")["time_us"].sum() * 1e-6, params


def _seconds(path: Path, model_name: str, ranks: int) -> tuple[pd.Series, int]:
    """As `_rtx_seconds` for one of so many ranks, without Q, K, V, which engines now fuse."""
    import pandas as pd

    model = load_model(model_name)
    rows = pd.read_csv(path)
    matrices = rows[rows["layer_name"].isin(["o_proj", "gate_proj", "up_proj", "down_proj"])]
    output = model.hidden_size * model.num_attention_heads * model.head_dim
    params = (output + model.mlp_params_per_layer) // ranks
    return matrices.groupby("input")["latency(ns)"].sum() * 1e-9, params


def _of_matrices(gpu_name: str, seconds: pd.Series, params: int) -> dict[str, float]:
    gpu = load_gpu(gpu_name)

    def mfu(tokens: tuple[int, int]) -> float:
        part = seconds.loc[tokens[0] : tokens[1]]
        return float(2 * params * part.index.to_numpy().sum() / (part.sum() * gpu.flops["bf16"]))

    reading = np.median(seconds.loc[READING[0] : READING[1]])
    mbu = float(2 * params / (reading * gpu.memory_bandwidth))
    return {
        "prefill.mfu": mfu(PREFILL),
        "prefill.mbu": mbu,
        "decode.mfu": mfu(DECODE),
        "decode.mbu": mbu,
    }


def _of_prompts(path: Path, gpu_name: str, hardware: str, ranks: int) -> dict[str, float]:
    """Median MFU of single Llama-2-70B prompts of 1024 tokens and more."""
    import pandas as pd

    model, cluster = load_model("llama-2-70b"), Cluster(load_gpu(gpu_name), ranks)
    rows = pd.read_csv(path)
    rows = rows[(rows["model"] == "llama2-70b") & (rows["hardware"] == hardware)]
    rows = rows[(rows["tensor_parallel"] == ranks) & (rows["batch_size"] == 1)]
    prompts = rows[rows["prompt_size"] >= PREFILL[0]].groupby("prompt_size")["prompt_time"].median()
    peak = ranks * cluster.gpu.flops["bf16"]
    mfus = []
    for tokens, milliseconds in zip(prompts.index.to_list(), prompts.to_list(), strict=True):
        width = float(tokens * model.hidden_size * model.dtype_bytes)
        summed = 2 * model.num_layers * cluster.all_reduce_time(width)
        mfus.append(_prompt_flops(model, tokens) / ((milliseconds * 1e-3 - summed) * peak))
    return {"prefill.mfu": float(np.median(mfus))}


def _prompt_flops(model: ModelSpec, tokens: int) -> float:
    attention = 2 * model.num_layers * model.num_attention_heads * model.head_dim * tokens**2
    return 2.0 * model.layer_params * tokens + attention
