"""Attention of vision towers: the roofline beside measured kernels of vLLM 0.24.

    python -m benchmarks.encoder_attention .../aisimulate_core/systems/data

The folder is in the wheel of aisimulate (Apache-2.0; see `benchmarks/family_steps.py`). Every
`EVERY`th row counts, of sequences of 64 patches and more, in heads of 64, 72 and 80 values as
Qwen3-VL, SigLIP and others have them.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import pandas as pd
import typer

from mist_sim.core.batch import StepBatch
from mist_sim.hardware import Cluster, load_gpu
from mist_sim.hardware.predictors import RooflinePredictor
from mist_sim.models import ModelSpec

GPUS = {
    "h100_sxm": "h100-sxm",
    "h200_sxm": "h200",
    "b200_sxm": "b200",
    "b300_sxm": "b300",
    "l40s": "l40s",
    "rtx_pro_6000_server": "rtx-pro-6000",
}
EVERY, SHORTEST = 5, 64
_TABLE = "encoder_attention/vllm/0.24.0/encoder_attention_perf.parquet"


def layer(heads: int, head_dim: int) -> ModelSpec:
    """Return a tower of one layer."""
    size = heads * head_dim
    return ModelSpec(
        name="a tower's layer",
        num_layers=1,
        hidden_size=size,
        intermediate_size=size,
        num_attention_heads=heads,
        num_key_value_heads=heads,
        head_dim=head_dim,
        vocab_size=1,
        max_position_embeddings=1,
        has_embedding=False,
        has_head=False,
        is_encoder=True,
    )


def ratios(table: pd.DataFrame, gpu: str) -> pd.DataFrame:
    """Return computed over measured of a GPU's rows, with their sizes."""
    rows = table[table["isl"].ge(SHORTEST)].iloc[::EVERY]
    heads_and_sizes = rows[["num_heads", "head_dim"]].drop_duplicates().to_numpy(dtype=int)
    found = []
    for heads, head_dim in heads_and_sizes.tolist():
        part = rows[rows["num_heads"].eq(heads) & rows["head_dim"].eq(head_dim)]
        cluster = Cluster(load_gpu(gpu))
        timed = RooflinePredictor(layer(heads, head_dim), cluster, enforce_eager=True)
        sizes = part[["batch_size", "isl"]].to_numpy(dtype=int)
        measured = part["latency"].to_numpy(dtype=float) / 1e3
        for (batch, patches), theirs in zip(sizes.tolist(), measured.tolist(), strict=True):
            step = StepBatch(((patches, 0),) * batch)
            ours = sum(each.seconds for each in timed.explain(step) if "attention" in each.name)
            found.append((gpu, patches, ours / theirs))
    return pd.DataFrame(found, columns=["gpu", "patches", "ratio"])


def main(data: Annotated[Path, typer.Argument(help="aisimulate_core/systems/data")]) -> None:
    """Print the errors by GPU and by patches of an image."""
    found = pd.concat([ratios(pd.read_parquet(data / f / _TABLE), gpu) for f, gpu in GPUS.items()])
    found["size"] = pd.cut(
        found["patches"], [0, 512, 4096, 10**9], labels=["<=512", "<=4096", ">4096"]
    )
    for keys in (["gpu"], ["gpu", "size"]):
        for name, part in found.groupby(keys, observed=True):
            error = (part["ratio"] - 1).abs()
            print(name, len(part), f"{error.median():.1%} {error.quantile(0.9):.1%}", end=" ")
            print(f"ratio {part['ratio'].median():.2f}")
    error = (found["ratio"] - 1).abs()
    print("all", len(found), f"{error.median():.1%} {error.quantile(0.9):.1%}")


if __name__ == "__main__":
    typer.run(main)
