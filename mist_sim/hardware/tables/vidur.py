"""Layer timings with Vidur's attention columns: `attention.csv` beside `layers.csv`.

attention.csv has medians in milliseconds: prefill by chunk and context (`is_prefill` True), decode
by batch and context. layers.csv has nanoseconds of every other kind of layer by input tokens, and
of a prompt's own attention (`attn`). Mixed steps were not measured: prompts and decodes add up.
Source of the form: Vidur's profiles, and those of LLMServingSim 1.x that build on them.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from mist_sim.errors import ScenarioError, listed
from mist_sim.hardware.cluster import Cluster
from mist_sim.hardware.interpolation import Curve, Plane, rising, rising_plane
from mist_sim.hardware.tables.base import (
    StepTables,
    checked,
    curve,
    full_grid,
    read_columns,
)
from mist_sim.hardware.tables.layer_times import layers_curve
from mist_sim.models.spec import ModelSpec

if TYPE_CHECKING:
    import pandas as pd

_NS, _MS = 1e-9, 1e-3
_PREFILL, _DECODE = "time_stats.attn_prefill.median", "time_stats.attn_decode.median"
_AXES = ("batch_size", "prefill_chunk_size", "kv_cache_size")
_RANKS = "num_tensor_parallel_workers"


def read_vidur(path: Path, model: ModelSpec, cluster: Cluster, subset: str | None) -> StepTables:
    """Return the tables of a folder; its kernels are those of one rank."""
    if not path.is_dir():
        raise ScenarioError(f"{path}: must be a folder with attention.csv and layers.csv")
    file = path / "layers.csv"
    layers = read_columns(file, ["input", "tp_size", "latency(ns)"], ["layer_name"])
    layers = _of_ranks(layers, "tp_size", cluster, str(file))
    layers = layers.set_axis(["tokens", "ranks", "time", "layer"], axis=1)
    kinds = layers["layer"]
    for kind in ("attn", "lm_head"):
        if not (kinds == kind).any():
            raise ScenarioError(f"{file}: has no rows of layer {kind}")
    tokens = layers_curve(layers[~kinds.isin(["attn", "lm_head"])], model, cluster, _NS, str(file))
    counts, logits = curve(layers[kinds == "lm_head"], "tokens", "time")
    own = layers[kinds == "attn"]
    prefill, decode = _attention(path / "attention.csv", own, model, cluster)
    return StepTables(
        alone=tokens,
        tokens=tokens,
        most_tokens=tokens.axis.top,
        sequences=Curve(counts, rising(logits * _NS, 0)),
        prefill=prefill,
        decode=decode,
        beside=decode,
    )


def _attention(
    file: Path, own: pd.DataFrame, model: ModelSpec, cluster: Cluster
) -> tuple[Plane, Plane]:
    """Return the seconds of all layers' attention: of a chunk, and of decodes.

    own: attention of prompts without context, in nanoseconds by tokens.
    """
    import pandas as pd

    where = str(file)
    rows = read_columns(file, [*_AXES, _RANKS], ["is_prefill"], sparse=[_PREFILL, _DECODE])
    rows = _of_ranks(rows, _RANKS, cluster, where)
    prefill = rows["is_prefill"].str.lower() == "true"
    chunks = _timed(
        rows[prefill & (rows["batch_size"] == 1)], _PREFILL, "prompts (batch_size 1)", where
    )
    sizes, alone = curve(own, "tokens", "time")
    alone = alone * (_NS / _MS)
    first = pd.DataFrame({"prefill_chunk_size": sizes, "kv_cache_size": 0.0, "time": alone})
    first = first[first["prefill_chunk_size"].isin(chunks["prefill_chunk_size"])]
    (lengths, contexts), seconds = full_grid(
        pd.concat([chunks, first]),
        ("prefill_chunk_size", "kv_cache_size"),
        "time",
        where,
    )
    if sizes[-1] > lengths[-1]:  # the cost of a context goes with the tokens that read it
        read = (seconds[-1] - seconds[-1, 0]) * (sizes[-1] / lengths[-1])
        lengths, seconds = np.append(lengths, sizes[-1]), np.vstack([seconds, alone[-1] + read])
    decodes = _timed(rows[~prefill], _DECODE, "decodes", where)
    counts, times = full_grid(decodes, ("batch_size", "kv_cache_size"), "time", where)
    scale = model.num_layers * _MS
    return (
        rising_plane(lengths, contexts, rising(seconds, 0, 1) * scale),
        rising_plane(counts[0], counts[1], rising(times, 0, 1) * scale),
    )


def _timed(rows: pd.DataFrame, column: str, what: str, where: str) -> pd.DataFrame:
    """Return rows of prompts or decodes with their `time`. Raises ScenarioError without any."""
    if rows.empty:
        raise ScenarioError(f"{where}: has no rows of {what}, by is_prefill")
    return checked(rows.rename(columns={column: "time"}), [*_AXES, "time"], [], where, "line")


def _of_ranks(rows: pd.DataFrame, column: str, cluster: Cluster, where: str) -> pd.DataFrame:
    ranks = cluster.tensor_parallel_size
    chosen = rows[rows[column] == ranks]
    if chosen.empty:
        found = listed(f"{value:g}" for value in np.unique(rows[column]))
        raise ScenarioError(
            f"{where}: has no rows of tensor_parallel_size {ranks}; {column} has {found}"
        )
    return chosen
