"""Measured engine steps in one form, whatever file they came from."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from mist_sim.errors import ScenarioError, brief, did_you_mean, listed
from mist_sim.hardware.tables.reading import read_columns
from mist_sim.hardware.tables.steps import COLUMNS, read_rows

if TYPE_CHECKING:
    import pandas as pd

Array = NDArray[np.float64]

_AGREES = 0.2  # end to end against its parts; more means that a batch did not run at once
_SPLITWISE_TOKENS = 128  # with longer answers the file does not say how many were generated
_POINT = ["prompt_size", "batch_size"]
_TIMES = ["prompt_time", "token_time", "e2e_time"]  # milliseconds


@dataclass(frozen=True, kw_only=True)
class MeasuredSteps:
    """Steps of one model on so many GPUs of one kind; arrays of shape (number of steps,).

    num_new_tokens: prompt tokens of each step. num_pairs: pairs of query and key in the attention
    of those. num_decodes, context_sum: as in `StepBatch`. seconds: how long each step took.
    """

    num_new_tokens: Array
    num_pairs: Array
    num_decodes: Array
    context_sum: Array
    seconds: Array

    def of(self, chosen: NDArray[np.bool_]) -> MeasuredSteps:
        """Return some of the steps."""
        return MeasuredSteps(**{name: getattr(self, name)[chosen] for name in self.__annotations__})

    @property
    def with_prompts(self) -> NDArray[np.bool_]:
        """The steps that have prompts, as booleans."""
        return self.num_new_tokens > 0


def read_splitwise(
    path: Path, subset: str, tensor_parallel_size: int, *, medians: bool = False
) -> tuple[MeasuredSteps, list[str]]:
    """Return the steps of one setting of Splitwise's file, and remarks on omitted rows.

    A row gives a step of `batch_size` prompts, and one of as many decodes halfway through 128
    answers. Rows are left out if their median end-to-end time is far from prompt plus tokens: their
    batch did not fit in memory and ran in parts.

    medians: combine all rows of a point into one step with their median time.
    subset: MODEL/HARDWARE as in the file.
    Raises ScenarioError for files of another form.
    """
    rows, remarks = _run_at_once(_rows_of(path, subset, tensor_parallel_size))
    if medians:
        rows = rows.groupby(_POINT)[_TIMES].median().reset_index()
    size, batch = (rows[name].to_numpy(float) for name in _POINT)
    none = np.zeros(len(rows))
    prefill, decode = (rows[name].to_numpy(float) * 1e-3 for name in ("prompt_time", "token_time"))
    steps = MeasuredSteps(
        num_new_tokens=np.append(size * batch, none),
        num_pairs=np.append(batch * size * (size + 1) / 2, none),
        num_decodes=np.append(none, batch),
        context_sum=np.append(none, batch * (size + _SPLITWISE_TOKENS / 2)),
        seconds=np.append(prefill, decode),
    )
    return steps, remarks


def _rows_of(path: Path, subset: str, tensor_parallel_size: int) -> pd.DataFrame:
    """Return the rows of one setting. Raises ScenarioError if the file has none."""
    numbers = ["tensor_parallel", *_POINT, "token_size", *_TIMES]
    rows = read_columns(path, numbers, ["model", "hardware"])
    names = rows["model"] + "/" + rows["hardware"]
    known = sorted(set(names))
    if subset not in known:
        hint = did_you_mean(subset, known)
        raise ScenarioError(f"{path}: has no {brief(subset)}{hint} Known: {listed(known)}")
    rows = rows[(names == subset) & (rows["token_size"] == _SPLITWISE_TOKENS)]
    ranks = sorted(set(rows["tensor_parallel"]))
    if tensor_parallel_size not in ranks:
        raise ScenarioError(
            f"{path}: {subset} has no rows of tensor_parallel_size {tensor_parallel_size}, only of "
            f"{listed(f'{size:g}' for size in ranks)}"
        )
    return rows[rows["tensor_parallel"] == tensor_parallel_size]


def _run_at_once(rows: pd.DataFrame) -> tuple[pd.DataFrame, list[str]]:
    """Return the rows whose batch ran in one part, and remarks on the others."""
    usual = rows.groupby(_POINT)[_TIMES].transform("median")
    parts = usual["prompt_time"] + (_SPLITWISE_TOKENS - 1) * usual["token_time"]
    at_once = (usual["e2e_time"] / parts - 1).abs() <= _AGREES
    left_out = rows[~at_once].drop_duplicates(_POINT)
    remarks = [
        f"left out {row.batch_size:g} prompts of {row.prompt_size:g} tokens, "
        "which did not run at once"
        for row in left_out.sort_values(_POINT).itertuples()
    ]
    return rows[at_once], remarks


def read_steps(path: Path) -> tuple[MeasuredSteps, dict[str, str]]:
    """Return the steps of a file in the form of our own (see `tables.steps`), and its notes.

    Raises ScenarioError for files that are not of the form.
    """
    rows, notes = read_rows(path)
    new, context, decodes, context_sum, seconds = (rows[name].to_numpy(float) for name in COLUMNS)
    wrong = (seconds <= 0) | (new + decodes == 0)
    if wrong.any():
        raise ScenarioError(f"{path}: row {int(np.argmax(wrong)) + 1} is no measured step")
    steps = MeasuredSteps(
        num_new_tokens=new,
        num_pairs=new * (context + (new + 1) / 2),
        num_decodes=decodes,
        context_sum=context_sum,
        seconds=seconds,
    )
    return steps, notes
