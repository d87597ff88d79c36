"""Profiles of a model's layers: kernel times in microseconds, one layer of each kind.

A folder with `dense.csv` (layer, tokens, time_us), `per_sequence.csv` (layer, sequences, time_us),
`attention.csv` (prefill_chunk, kv_prefill, n_decode, kv_decode, time_us), for a model with experts
`moe.csv` (ep, tokens, activated_experts, time_us) and, where uneven decodes were measured,
`skew.csv`; perhaps `meta.yaml`, whose model, gpu (or hardware) and tp_degrees are
checked, and which may say `enabled: false` of `skew_profile` or `skew_fit`: uneven decodes take as
long as equal ones then. Source of the form: the profiles that LLMServingSim 2.0 publishes.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from mist_sim.errors import ScenarioError
from mist_sim.hardware.cluster import Cluster
from mist_sim.hardware.interpolation import Curve, carried_on, resampled, rising, rising_plane
from mist_sim.hardware.tables.base import (
    StepTables,
    check_measured,
    checked,
    curve,
    full_grid,
    is_on,
    profiled_ranks,
    read_columns,
    read_meta,
)
from mist_sim.hardware.tables.expert_tables import AXES, RANKS, ExpertTimes, check_reached
from mist_sim.hardware.tables.layer_times import layers_curve
from mist_sim.hardware.tables.uneven import UnsplitDecodes, weights_plane
from mist_sim.models.spec import ModelSpec

if TYPE_CHECKING:
    import pandas as pd

_US = 1e-6
_AXES = ("prefill_chunk", "n_decode", "kv_prefill", "kv_decode")
_KEYS, _DECODED = "prefill_key", "decode_q_len"
_UNEVEN = ("skew_profile", "skew_fit")  # of meta.yaml: were uneven decodes measured, and fitted
_SKEW = ("n", "pc", "kv_big", "kv_mean", "t_mean_us", "t_max_us", "t_skew_us")


def read_layer_profile(
    path: Path, model: ModelSpec, cluster: Cluster, subset: str | None
) -> StepTables:
    """Return the tables of a profile folder; its kernels are those of one rank."""
    if not path.is_dir():
        raise ScenarioError(f"{path}: must be a folder with dense.csv, attention.csv, ...")
    notes, other_rates = _checked_notes(path, model, cluster)
    dense = read_columns(path / "dense.csv", ["tokens", "time_us"], ["layer"])
    ends = read_columns(path / "per_sequence.csv", ["sequences", "time_us"], ["layer"])
    rows = _attention_rows(path / "attention.csv")
    attention = _Attention(rows, str(path / "attention.csv"), model.num_layers * _US)
    experts = _experts(path / "moe.csv", model, cluster, _US)
    tokens = layers_curve(
        dense.rename(columns={"time_us": "time"}),
        model,
        cluster,
        _US,
        str(path / "dense.csv"),
        experts,
    )
    most_tokens = tokens.axis.top
    if experts:
        most_tokens = min(float(dense["tokens"].max()), experts.most_tokens)
    samples = ends.groupby("sequences", as_index=False)[["time_us"]].sum()
    counts, seconds = curve(samples, "sequences", "time_us")
    tables = StepTables(
        alone=tokens,
        tokens=tokens,
        most_tokens=most_tokens,
        sequences=Curve(counts, rising(seconds * _US, 0)),
        prefill=attention.prefill,
        next_prefill=float(attention.prefill.values.min()),
        decode=attention.decode,
        beside=attention.beside,
        moved=tuple(experts.moved) if experts else (),
        other_rates=other_rates,
    )
    if not (path / "skew.csv").exists() or not all(is_on(notes, key, path) for key in _UNEVEN):
        return tables
    rows = read_columns(path / "skew.csv", _SKEW)
    return _with_uneven(tables, rows, _unsplit(model, cluster))


def _checked_notes(path: Path, model: ModelSpec, cluster: Cluster) -> tuple[dict[str, str], str]:
    """Return the content of meta.yaml, and what `check_measured` says of the GPU's rates.

    Refuses a profile of another model, GPU or number of ranks than the client's.
    """
    notes, where = read_meta(path)
    other_rates = check_measured(
        {key: value for key, value in notes.items() if key in ("model", "gpu", "hardware")},
        model,
        cluster,
        where,
    )
    measured, ranks = profiled_ranks(path, notes), cluster.tensor_parallel_size
    if measured != ranks:
        raise ScenarioError(
            f"{path}: holds kernels of tensor_parallel_size {measured}, the client has {ranks}; "
            f"name a folder tp{ranks} with those of {ranks}, or give the measured ranks in "
            f"meta.yaml "
            f"(tp_degrees: [{ranks}])"
        )
    return notes, other_rates


def _experts(file: Path, model: ModelSpec, cluster: Cluster, unit: float) -> ExpertTimes | None:
    """Return the times of a model's experts; None without them, or without a file of them."""
    if model.moe is None or not file.exists():
        return None
    rows = read_columns(file, [*AXES, "time_us"], optional=[RANKS])
    check_reached(rows, model.moe, str(file))
    return ExpertTimes(rows, model.moe, model, cluster, unit, str(file))


def _attention_rows(file: Path) -> pd.DataFrame:
    """Return the rows of attention, converted to the older of the two forms of profiles.

    The newer form says, in place of the tokens before a prompt (kv_prefill), how many keys its
    tokens have in the mean (prefill_key: those before it and half of its own), and how many tokens
    each decode has (decode_q_len); decodes of several tokens, which check drafts, are left out.
    """
    numbers = [name for name in _AXES if name != "kv_prefill"]
    rows = read_columns(file, [*numbers, "time_us"], optional=["kv_prefill", _KEYS, _DECODED])
    if _DECODED in rows:
        rows = rows[rows[_DECODED] <= 1]
    if _KEYS in rows:
        return rows.assign(kv_prefill=(rows[_KEYS] - rows["prefill_chunk"] / 2).clip(lower=0.0))
    return checked(rows, [*_AXES, "time_us"], [], str(file), "line")


class _Attention:
    """Seconds of all layers' attention: of decodes, of one chunk, and of decodes beside one."""

    def __init__(self, rows: pd.DataFrame, where: str, scale: float) -> None:
        chunk, decodes = rows["prefill_chunk"] > 0, rows["n_decode"] > 0
        for kind, chosen in (
            ("decodes alone", ~chunk & decodes),
            ("prompts alone", chunk & ~decodes),
            ("prompts with decodes", chunk & decodes),
        ):
            if not chosen.any():
                raise ScenarioError(f"{where}: has no rows of {kind}")
        (counts, lengths), pure = full_grid(
            rows[~chunk], ("n_decode", "kv_decode"), "time_us", where
        )
        (sizes, contexts), prefill = full_grid(
            rows[~decodes], ("prefill_chunk", "kv_prefill"), "time_us", where
        )
        (new, counted, before, means), mixed = full_grid(
            rows[chunk & decodes], _AXES, "time_us", where
        )
        self.scale = scale
        pure, prefill = rising(pure, 0, 1) * scale, rising(prefill, 0, 1) * scale
        mixed = rising(mixed, 0, 1, 2, 3) * scale
        alone = resampled(resampled(prefill, sizes, new, 0), contexts, before, 1)
        alone = alone[:, np.newaxis, :, np.newaxis]
        self.decode = rising_plane(counts, lengths, pure)
        self.prefill = rising_plane(sizes, contexts, prefill)
        self.beside = carried_on((new, counted, before, means), mixed - alone, lambda *_: alone)


def _unsplit(model: ModelSpec, cluster: Cluster) -> UnsplitDecodes | None:
    """Return how decodes are read where CUDA graphs keep kernels from splitting contexts."""
    slots = cluster.gpu.attention_slots
    if slots is None:
        return None
    return UnsplitDecodes(slots, model.kv_heads_per_rank(cluster.tensor_parallel_size))


def _with_uneven(
    tables: StepTables, rows: pd.DataFrame, unsplit: UnsplitDecodes | None
) -> StepTables:
    """Return the tables with how much the longest context counts, alone and beside prompts.

    Rows are compared with one another only, whatever their unit: the profiler 1.0.0 of
    LLMServingSim writes sums of its three iterations here, and means into `attention.csv`.
    """
    ratio = rows["kv_mean"] / rows["kv_big"]
    beside = rows["pc"] > 0
    return replace(
        tables,
        uneven=weights_plane(rows[~beside], unsplit),
        uneven_beside=weights_plane(rows[beside]),
        least_even=float(ratio[~beside].min()) if not beside.all() else 0.0,
        least_even_beside=float(ratio[beside].min()) if beside.any() else 0.0,
    )
