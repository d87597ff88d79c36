"""Sums of operators beside whole steps and real runs of Llama-2-70B on four H100s (MIST, Fig. 8a).

The operators are Vidur's linear layers, norms, activations and all-reduces, and LLMServingSim's
attention kernels of Llama-3.1-70B, whose heads are the same. Whole steps and runs are Splitwise's
(vLLM of 2023, no CUDA graphs) and inference-sim's (vLLM 0.15.1, CUDA graphs). Nothing is fitted to
the operators; the regression learns whole steps of all points but the one that it is scored on.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from mist_sim.calibration.regression import (
    StageData,
    decode_data,
    fit_ensemble,
    held_out,
    prefill_data,
    read_splitwise,
)
from mist_sim.models import load_model

MODEL = load_model("llama-2-70b")
RANKS = 4
LAYERS, HIDDEN, BYTES = MODEL.num_layers, MODEL.hidden_size, 2
OF_A_LAYER = (  # Vidur's names; `add` and the two norms are once a layer each
    "input_layernorm", "attn_pre_proj", "attn_rope", "attn_post_proj", "post_attention_layernorm",
    "mlp_up_proj", "mlp_act", "mlp_down_proj", "add",
)  # fmt: skip

Array = NDArray[np.float64]


@dataclass(frozen=True)
class Operators:
    """Seconds of operators by tokens, of all-reduces by bytes, and of attention.

    folder: `measurements`, with `vidur-operators` and `vllm-h100-llama3.1-70b-tp4-layers`.
    """

    folder: Path

    def __post_init__(self) -> None:
        vidur, layers = (
            self.folder / "vidur-operators",
            self.folder / "vllm-h100-llama3.1-70b-tp4-layers",
        )
        linear = pd.read_csv(vidur / "mlp_h100_Llama-2-70b-hf.csv.gz")
        linear = (
            linear[linear["num_tensor_parallel_workers"] == RANKS].groupby("num_tokens").median()
        )
        names = [f"time_stats.{name}.median" for name in OF_A_LAYER]
        reduce = pd.read_csv(vidur / "network_h100_dgx_all_reduce.csv.gz")
        reduce = reduce[reduce["num_workers"] == RANKS].groupby("size")[
            "time_stats.all_reduce.median"
        ]
        own = pd.read_csv(layers / "layers.csv")
        own = own[(own["layer_name"] == "attn") & (own["tp_size"] == RANKS)]
        decodes = pd.read_csv(layers / "attention.csv")
        decodes = decodes[~decodes["is_prefill"]]
        table = decodes.pivot_table(
            values="time_stats.attn_decode.median", index="batch_size", columns="kv_cache_size"
        )
        for name, value in (
            ("linear", linear[names].sum(axis=1)),
            ("reduce", reduce.median()),
            ("prompt", own.groupby("input")["latency(ns)"].median()),
            ("decode", table.dropna(axis=1)),
        ):
            object.__setattr__(self, name, value)

    def seconds(self, new: float, prompts: float, decodes: float, context: float) -> float:
        """Return the sum of a step: equal prompts, or decodes of a mean context each.

        new: tokens of all prompts; 0 for decodes.
        """
        tokens = new or decodes
        layer = _at(self.linear, tokens) + 2 * _at(self.reduce, tokens * HIDDEN * BYTES)
        if new:
            layer += prompts * _at(self.prompt, new / prompts) * 1e-6
        else:
            by_batch = [_at(row, context) for _, row in self.decode.iterrows()]
            layer += float(np.interp(decodes, self.decode.index, by_batch))
        return 1e-3 * LAYERS * layer


def _at(series: pd.Series, where: float) -> float:
    """Return a measured time between two points, and beyond the last one in proportion."""
    x, y = series.index.to_numpy(float), series.to_numpy(float)
    return float(np.interp(where, x, y) * max(1.0, where / x[-1]))


def against_steps(folder: Path) -> pd.DataFrame:
    """Return a row a measured step of Splitwise: the errors of the sum and of the regression."""
    operators = Operators(folder)
    path = folder / "splitwise_perf_model.csv"
    steps, _ = read_splitwise(path, "llama2-70b/h100-80gb", RANKS)
    decodes = decode_data(steps)
    prompts = prefill_data(steps, fit_ensemble(decodes))
    rows = []
    for data in (prompts, decodes):
        whole = held_out(data).errors
        for (first, second), seconds, error in zip(data.points, data.seconds, whole, strict=True):
            total = _of_point(operators, data, first, second)
            rows.append((data.stage, first, second, seconds, total / seconds - 1, error))
    return pd.DataFrame(rows, columns=["stage", "x", "y", "seconds", "operators", "whole"])


def _of_point(operators: Operators, data: StageData, first: float, second: float) -> float:
    if data.stage == "decode":  # decodes, mean context
        return operators.seconds(0, 0, first, second)
    size = 2 * second - 1  # tokens, keys of a query on average: equal prompts
    return operators.seconds(first, first / size, 0, 0)


def against_runs(folder: Path) -> pd.DataFrame:
    """Return a row a load of real runs: TPOT, and the sum's error at the batch of Little's law."""
    operators = Operators(folder)
    runs = pd.read_csv(folder / "vllm-h100-shared-prefix" / "runs.csv")
    runs = runs[runs["model"].str.contains("Llama-2-70b") & (runs["tensor_parallel_size"] == RANKS)]
    batch = runs["rate_per_s"] * (runs["e2e_mean_ms"] - runs["ttft_mean_ms"]) / 1e3
    context = runs["prompt_len_mean"] + runs["output_len"] / 2
    total = [operators.seconds(0, 0, b, c) for b, c in zip(batch, context, strict=True)]
    tpot = runs["tpot_mean_ms"] / 1e3
    return pd.DataFrame({"batch": batch, "seconds": tpot, "operators": total / tpot - 1})
