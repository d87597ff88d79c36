"""Measured engine steps: one a row, in the form of our own, and as Splitwise publishes them.

Our own has the columns num_new_tokens, num_context_tokens (of the step's prompt; 0, 0 without one),
num_decodes, context_sum (tokens that the cache holds for the decodes, in all), seconds. A CSV file
may begin with lines "# key: value" about the measurement; model, gpu and tensor_parallel_size among
them are checked. A Parquet file has the same pairs as metadata of its schema.

Splitwise publishes prompt and token times, one CSV file of many settings, with the columns model,
hardware, tensor_parallel, prompt_size, batch_size, prompt_time, token_time (milliseconds; others
are not used). `subset` is MODEL/HARDWARE, such as llama2-70b/h100-80gb. Prompt times depend on the
tokens of the batch, token times on the batch alone: at batch 1, where the file has several prompt
sizes, they do not differ beyond noise.
Source of that form: splitwise-sim (Patel et al., ISCA 2024).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from io import TextIOWrapper
from itertools import islice, takewhile
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from mist_sim.errors import ScenarioError, brief, did_you_mean, listed
from mist_sim.hardware.cluster import Cluster
from mist_sim.hardware.interpolation import (
    Array,
    Curve,
    Plane,
    Volume,
    carried_on,
    resampled,
    rising,
    rising_plane,
)
from mist_sim.hardware.tables.base import (
    StepTables,
    check_measured,
    checked,
    curve,
    full_grid,
    read_columns,
)
from mist_sim.inputs import lines_of, opened, read_parquet
from mist_sim.models.spec import ModelSpec

if TYPE_CHECKING:
    import pandas as pd

_MOST_NOTES = 1_000
COLUMNS = ("num_new_tokens", "num_context_tokens", "num_decodes", "context_sum", "seconds")
_MS = 1e-3
_SPLITWISE = ("tensor_parallel", "prompt_size", "batch_size", "prompt_time", "token_time")


def read_steps(path: Path, model: ModelSpec, cluster: Cluster, subset: str | None) -> StepTables:
    """Return the tables of a file of steps."""
    where = str(path)
    rows, notes = read_rows(path)
    other_rates = check_measured(notes, model, cluster, where)
    prompts, decodes = rows["num_new_tokens"] > 0, rows["num_decodes"] > 0
    rows = rows.assign(mean=rows["context_sum"] / np.maximum(rows["num_decodes"], 1))
    for kind, chosen in (
        ("prompts alone", prompts & ~decodes),
        ("decodes alone", ~prompts & decodes),
    ):
        if not chosen.any():
            raise ScenarioError(f"{where}: has no steps of {kind}")
    axes = ("num_new_tokens", "num_decodes", "num_context_tokens", "mean")
    mixed = rows[prompts & decodes]
    tables = _whole_steps(
        _Grid(*full_grid(rows[~decodes], (axes[0], axes[2]), "seconds", where)),
        _Grid(*full_grid(rows[~prompts], (axes[1], axes[3]), "seconds", where)),
        _Grid(*full_grid(mixed, axes, "seconds", where)) if len(mixed) else None,
    )
    return replace(tables, other_rates=other_rates)


def read_rows(path: Path) -> tuple[pd.DataFrame, dict[str, str]]:
    """Return the measured steps and the notes of a file.

    Raises ScenarioError for a file that is not of the form.
    """
    return _read_parquet(path) if path.suffix == ".parquet" else _read_csv(path)


def _read_csv(path: Path) -> tuple[pd.DataFrame, dict[str, str]]:
    with opened(path) as file:
        text = TextIOWrapper(file, "utf-8", errors="replace", newline="")
        some = islice(lines_of(text, path), _MOST_NOTES)
        lines = list(takewhile(lambda line: line.startswith("#"), some))
    pairs = (line[1:].partition(":") for line in lines)
    notes = {key.strip(): value.strip() for key, _, value in pairs}
    return read_columns(path, COLUMNS, num_notes=len(lines)), notes


def _read_parquet(path: Path) -> tuple[pd.DataFrame, dict[str, str]]:
    frame, notes = read_parquet(path, COLUMNS)
    return checked(frame, COLUMNS, (), str(path), "row"), notes


def read_splitwise(
    path: Path, model: ModelSpec, cluster: Cluster, subset: str | None
) -> StepTables:
    """Return the tables of one setting of a file."""
    rows = read_columns(path, _SPLITWISE, ["model", "hardware"])
    rows = _setting(rows, cluster, subset, str(path))
    rows = rows.assign(tokens=rows["prompt_size"] * rows["batch_size"])
    sizes, prompts = curve(rows, "tokens", "prompt_time")
    counts, answers = curve(rows, "batch_size", "token_time")
    nothing = np.zeros(1)  # no dependence on context
    return _whole_steps(
        _Grid([sizes, nothing], prompts[:, np.newaxis] * _MS),
        _Grid([counts, nothing], answers[:, np.newaxis] * _MS),
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


@dataclass(frozen=True)
class _Grid:
    """Points of each axis, and values at all of them."""

    points: list[Array]
    values: Array


def _whole_steps(prefill: _Grid, decode: _Grid, mixed: _Grid | None = None) -> StepTables:
    """Return the tables of measured steps, in seconds.

    prefill: by new tokens and context. decode: by decodes and mean context. mixed: by new tokens,
        decodes, context and mean context. Several prompts in a step count as one of all their
        tokens, plus the time of each one's context. Without measured mixed steps, decodes beside
        prompts count as prompt tokens plus the time of their contexts.
    """
    (sizes, contexts), (counts, lengths) = prefill.points, decode.points
    prompts, decodes = rising(prefill.values, 0, 1), rising(decode.values, 0, 1)
    tokens = Curve(sizes, prompts[:, 0])
    nothing = Curve(np.zeros(1), np.zeros(1))
    beside: Plane | Volume
    if mixed is None:
        beside = rising_plane(counts, lengths, decodes - decodes[:, :1], decodes[:, :1])
    else:
        new, counted, context, means = mixed.points
        alone = resampled(resampled(prompts, sizes, new, 0), contexts, context, 1)
        alone = alone[:, np.newaxis, :, np.newaxis]

        def without(new: Array, counted: Array, *_: Array) -> Array:
            """Seconds of prompts alone, and of the tokens that the decodes add to them."""
            more = [[tokens.at(int(c + n)) - tokens.at(int(c)) for n in counted] for c in new]
            return np.asarray(alone + np.array(more)[:, :, np.newaxis, np.newaxis])

        values = rising(mixed.values, 0, 1, 2, 3) - without(new, counted)
        beside = carried_on((new, counted, context, means), values, without)
    return StepTables(
        alone=nothing,
        tokens=tokens,
        sequences=nothing,
        prefill=rising_plane(sizes, contexts, prompts - prompts[:, :1], prompts[:, :1]),
        decode=rising_plane(counts, lengths, decodes),
        beside=beside,
        most_tokens=float(sizes[-1] + (0 if mixed is None else mixed.points[1][-1])),
    )
