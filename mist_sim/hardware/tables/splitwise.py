"""Prompt and token times as Splitwise publishes them, one CSV file of many settings.

Columns: model, hardware, tensor_parallel, prompt_size, batch_size, prompt_time, token_time
(milliseconds; others are not used). `subset` is MODEL/HARDWARE, such as llama2-70b/h100-80gb.
Prompt times depend on the tokens of the batch, token times on the batch alone: at batch 1, where
the file has several prompt sizes, they do not differ beyond noise.
Source of the form: splitwise-sim (Patel et al., ISCA 2024).
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from mist_sim.errors import ScenarioError, brief, did_you_mean, listed
from mist_sim.hardware.cluster import Cluster
from mist_sim.hardware.tables.base import StepTables, curve, read_columns
from mist_sim.hardware.tables.whole_steps import Grid, whole_steps
from mist_sim.models.spec import ModelSpec

if TYPE_CHECKING:
    import pandas as pd

_MS = 1e-3
_NUMBERS = ("tensor_parallel", "prompt_size", "batch_size", "prompt_time", "token_time")


def read_splitwise(
    path: Path, model: ModelSpec, cluster: Cluster, subset: str | None
) -> StepTables:
    """Return the tables of one setting of a file."""
    rows = read_columns(path, _NUMBERS, ["model", "hardware"])
    rows = _setting(rows, cluster, subset, str(path))
    rows = rows.assign(tokens=rows["prompt_size"] * rows["batch_size"])
    sizes, prompts = curve(rows, "tokens", "prompt_time")
    counts, answers = curve(rows, "batch_size", "token_time")
    nothing = np.zeros(1)  # no dependence on context
    return whole_steps(
        Grid([sizes, nothing], prompts[:, np.newaxis] * _MS),
        Grid([counts, nothing], answers[:, np.newaxis] * _MS),
    )


def _setting(rows: pd.DataFrame, cluster: Cluster, subset: str | None, where: str) -> pd.DataFrame:
    names = rows["model"] + "/" + rows["hardware"]
    known = sorted(names.unique())
    name = known[0] if subset is None and len(known) == 1 else subset
    if name not in known:
        problem = "is required" if name is None else f"has no {brief(name)}"
        hint = "; the file has several." if name is None else did_you_mean(name, known)
        raise ScenarioError(f"{where}: subset {problem}{hint} Known: {listed(known)}")
    ranks = cluster.tensor_parallel_size
    chosen = rows[(names == name) & (rows["tensor_parallel"] == ranks)]
    if chosen.empty:
        found = listed(f"{r:g}" for r in np.unique(rows["tensor_parallel"][names == name]))
        raise ScenarioError(
            f"{where}: {name} has no rows of tensor_parallel_size {ranks}, only of {found}"
        )
    return chosen
