"""Fits the MFU and MBU of the GPU catalog from measured timings, and prints them as a table.

    python benchmarks/fit_efficiency.py [--measurements ../shared/measurements]

Matrix multiplications: MFU = 2 x parameters x tokens / (time x peak), summed over the profiled
token counts; MBU = weight bytes / (time x bandwidth) of a few tokens, where time is all reading.
Splitwise's prompt times are end to end: the all-reduce of the catalog is taken off, and what is
left (host time included) counts as compute.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
import pandas as pd

from mist_sim.hardware import Cluster, load_gpu
from mist_sim.models import ModelSpec, load_model

RTX = "vllm-0.19-rtxpro6000-llama3.1-8b/profile/dense.csv"
H100 = "vllm-h100-llama3.1-70b-tp4-layers/layers.csv"
SPLITWISE = "splitwise_perf_model.csv"
PREFILL, DECODE, READING = (1024, 2048), (256, 512), (1, 8)  # tokens, both ends included


def rtx_seconds(path: Path) -> tuple[pd.Series, int]:
    """Seconds of a layer's matrices by tokens, and their parameters."""
    model = load_model("llama-3.1-8b")
    rows = pd.read_csv(path)
    matrices = rows[rows["layer"].isin(["qkv_proj", "o_proj", "gate_up_proj", "down_proj"])]
    params = model.attention_params_per_layer + model.mlp_params_per_layer
    return matrices.groupby("tokens")["time_us"].sum() * 1e-6, params


def h100_seconds(path: Path) -> tuple[pd.Series, int]:
    """As `rtx_seconds` for one rank of four, without Q, K, V, which engines now fuse."""
    model = load_model("llama-3.1-70b")
    rows = pd.read_csv(path)
    matrices = rows[rows["layer_name"].isin(["o_proj", "gate_proj", "up_proj", "down_proj"])]
    output = model.hidden_size * model.num_attention_heads * model.head_dim
    params = (output + model.mlp_params_per_layer) // 4
    return matrices.groupby("input")["latency(ns)"].sum() * 1e-9, params


def fit_matrices(gpu_name: str, seconds: pd.Series, params: int) -> dict[str, float]:
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


def fit_prompts(path: Path, gpu_name: str, hardware: str, ranks: int) -> dict[str, float]:
    """Median MFU of single Llama-2-70B prompts of 1024 tokens and more."""
    model, cluster = load_model("llama-2-70b"), Cluster(load_gpu(gpu_name), ranks)
    rows = pd.read_csv(path)
    rows = rows[(rows["model"] == "llama2-70b") & (rows["hardware"] == hardware)]
    rows = rows[(rows["tensor_parallel"] == ranks) & (rows["batch_size"] == 1)]
    prompts = rows[rows["prompt_size"] >= PREFILL[0]].groupby("prompt_size")["prompt_time"].median()
    peak = ranks * cluster.gpu.flops["bf16"]
    mfus = []
    for tokens, milliseconds in zip(prompts.index.to_list(), prompts.to_list(), strict=True):
        summed = cluster.all_reduce_time(2.0 * tokens * model.hidden_size)
        seconds = milliseconds * 1e-3 - 2 * model.num_layers * summed  # twice a layer
        mfus.append(prompt_flops(model, tokens) / (seconds * peak))
    return {"prefill.mfu": float(np.median(mfus))}


def prompt_flops(model: ModelSpec, tokens: int) -> float:
    attention = 2 * model.num_layers * model.num_attention_heads * model.head_dim * tokens**2
    return 2.0 * model.layer_params * tokens + attention


def fit(measurements: Path) -> dict[str, dict[str, float]]:
    """The fitted figures by catalog name."""
    splitwise = measurements / SPLITWISE
    return {
        "rtx-pro-6000": fit_matrices("rtx-pro-6000", *rtx_seconds(measurements / RTX)),
        "h100-sxm": fit_matrices("h100-sxm", *h100_seconds(measurements / H100)),
        "a100-80gb-sxm": fit_prompts(splitwise, "a100-80gb-sxm", "a100-80gb", 2),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--measurements", type=Path, default=Path("../shared/measurements"))
    measurements = parser.parse_args().measurements
    print(pd.DataFrame(fit(measurements)).T.round(3).to_string(na_rep="-"))
    print("\nFor comparison, end-to-end prompts of Splitwise (vLLM of 2023), prefill.mfu:")
    for gpu, hardware in (("a100-80gb-sxm", "a100-80gb"), ("h100-sxm", "h100-80gb")):
        for ranks in (2, 4, 8):
            found = fit_prompts(measurements / SPLITWISE, gpu, hardware, ranks)["prefill.mfu"]
            print(f"{gpu:14} TP {ranks}  {found:.3f}")


if __name__ == "__main__":
    main()
