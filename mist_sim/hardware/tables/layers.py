"""What the layers of a model take for the tokens of a step, attention apart."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from mist_sim.errors import ScenarioError
from mist_sim.hardware.cluster import Cluster
from mist_sim.hardware.grids import Curve, rising
from mist_sim.models.spec import ModelSpec

if TYPE_CHECKING:
    import pandas as pd

_ONCE = ("embedding", "final_layernorm")  # in a step; every other kind is once in a layer
_TWICE = ("layernorm",)  # in a layer, where both norms have one row


def layers_curve(
    rows: pd.DataFrame, model: ModelSpec, cluster: Cluster, unit: float, where: str
) -> Curve:
    """Return the seconds of a step by its tokens, from the time of one layer of each kind.

    rows: layer, tokens, time (in `unit` seconds), of one rank. The two all-reduces of a layer,
    which a profile of one rank's kernels does not have, come from the cluster's figures.
    Raises ScenarioError where a kind lacks a number of tokens that others have, and for a model
    whose layers are not all of these kinds.
    """
    if model.moe or model.kv_groups.num_window_groups:
        raise ScenarioError(
            f"{where}: a profile of layers times dense models with full attention only, "
            f"{model.name} has experts or sliding windows; measure whole steps (format: steps)"
        )
    times = rows.pivot_table(index="tokens", columns="layer", values="time", aggfunc="median")
    holes = times.isna()
    if holes.to_numpy().any():
        kind = times.columns[holes.any()][0]
        tokens = times.index[holes[kind]][0]
        raise ScenarioError(f"{where}: layer {kind} has no row of {tokens:g} tokens, others have")
    counts = [
        1 if kind in _ONCE else model.num_layers * (2 if kind in _TWICE else 1)
        for kind in times.columns
    ]
    points = times.index.to_numpy(float)
    seconds = rising(times.to_numpy() @ np.array(counts, float) * unit, 0)
    token_bytes = model.hidden_size * model.dtype_bytes
    summed = [cluster.all_reduce_time(tokens * token_bytes) for tokens in points.tolist()]
    seconds = seconds + 2 * model.num_layers * np.array(summed)
    return Curve(points, seconds)
