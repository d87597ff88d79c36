"""Seconds of a model's layers for the tokens of a step, attention apart."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from mist_sim.errors import ScenarioError
from mist_sim.hardware.cluster import Cluster
from mist_sim.hardware.interpolation import Curve, rising
from mist_sim.hardware.tables.expert_tables import ExpertTimes
from mist_sim.models.spec import ModelSpec

if TYPE_CHECKING:
    import pandas as pd

_ONCE = ("embedding", "final_layernorm")  # in a step; every other kind is once in a layer
_TWICE = ("layernorm",)  # in a layer, where both norms have one row
_DENSE = ("gate_up_proj", "act_fn", "down_proj")  # in layers that have an MLP instead of experts


def layers_curve(
    rows: pd.DataFrame,
    model: ModelSpec,
    cluster: Cluster,
    unit: float,
    where: str,
    experts: ExpertTimes | None = None,
) -> Curve:
    """Return the seconds of a step by its tokens, from the time of one layer of each kind.

    rows: layer, tokens, time (in `unit` seconds), of one rank. The two all-reduces of a layer,
    which a profile of one rank's kernels does not have, come from the cluster's figures.
    experts: additional time of the layers with experts.
    Raises ScenarioError if a kind lacks a number of tokens that others have, and for a model with
    layers of other kinds.
    """
    _check_kinds(model, experts, where)
    times = rows.pivot_table(index="tokens", columns="layer", values="time", aggfunc="median")
    holes = times.isna()
    if holes.to_numpy().any():
        kind = times.columns[holes.any()][0]
        tokens = times.index[holes[kind]][0]
        raise ScenarioError(f"{where}: layer {kind} has no row of {tokens:g} tokens, others have")
    counts = np.array([_num_times(kind, model) for kind in times.columns], float)
    points = times.index.to_numpy(float)
    seconds = rising(times.to_numpy() @ counts * unit, 0)
    if experts:
        layers = Curve(points, seconds)
        points = np.unique(np.rint(np.concatenate([points, experts.points])))
        points = points[points >= 1]
        seconds = np.array([layers.at(int(tokens)) for tokens in points])
        seconds = rising(seconds + experts.times(points), 0)
    token_bytes = model.hidden_size * model.dtype_bytes
    summed = [cluster.all_reduce_time(tokens * token_bytes) for tokens in points.tolist()]
    seconds = seconds + 2 * model.num_layers * np.array(summed)
    return Curve(points, seconds)


def _num_times(kind: str, model: ModelSpec) -> int:
    if kind in _ONCE:
        return 1
    if kind in _TWICE:
        return 2 * model.num_layers
    return model.num_dense_layers if kind in _DENSE else model.num_layers


def _check_kinds(model: ModelSpec, experts: ExpertTimes | None, where: str) -> None:
    parts = {
        "sliding windows": bool(model.sliding_window),
        "layers that differ": bool(model.layers),
        "shared experts": bool(model.moe and model.moe.shared_intermediate_size),
        "experts, which no moe.csv times": bool(model.moe) and experts is None,
    }
    if found := [part for part, is_there in parts.items() if is_there]:
        raise ScenarioError(
            f"{where}: a profile of layers has no times for what {model.name} has, "
            f"{' and '.join(found)}; measure whole steps (format: steps)"
        )
