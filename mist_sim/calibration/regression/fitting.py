"""From measured steps to the file that `predictor: {type: regression}` reads."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from mist_sim.calibration.regression.ensemble import (
    NUM_MEMBERS,
    HeldOut,
    compiled,
    decode_data,
    fit_ensemble,
    held_out,
    pooled,
    prefill_data,
)
from mist_sim.calibration.regression.measured_steps import MeasuredSteps, read_splitwise, read_steps
from mist_sim.errors import ScenarioError, brief, did_you_mean
from mist_sim.hardware import load_gpu
from mist_sim.hardware.predictors.measured.regression import FORMAT, VERSION
from mist_sim.models import load_model
from mist_sim.output import write_whole

FORMS = ("steps", "splitwise")


def fit_file(
    path: Path,
    *,
    form: str = "steps",
    subset: str = "",
    model: str = "",
    gpu: str = "",
    tensor_parallel_size: int = 0,
) -> Regression:
    """Learn step times from a file of measurements.

    form: "steps", our own form, or "splitwise"; `subset` names a part of that file.
    model, gpu, tensor_parallel_size: of the measurement, if the file lacks them.
    Raises ScenarioError for a file of another form, and if one of them is unknown.
    """
    if form not in FORMS:
        raise ScenarioError(
            f"format has no {brief(form)}{did_you_mean(form, FORMS)} Known: {', '.join(FORMS)}"
        )
    remarks: list[str] = []
    notes: dict[str, str] = {}
    if tensor_parallel_size < 0:
        raise ScenarioError(f"tensor_parallel_size must be >= 1, got {tensor_parallel_size}")
    if form == "steps":
        if subset:
            raise ScenarioError("subset has no effect with format steps; leave it out")
        steps, notes = read_steps(path)
    else:
        _required({"subset": subset, "tensor_parallel_size": tensor_parallel_size})
        steps, remarks = read_splitwise(path, subset, tensor_parallel_size)
    ranks = tensor_parallel_size or _ranks(path, notes)
    named = {"model": model or notes.get("model", ""), "gpu": gpu or notes.get("gpu", "")}
    _required({**named, "tensor_parallel_size": ranks})
    setting = Setting(
        model=load_model(named["model"]).name,
        gpu=load_gpu(named["gpu"]).name,
        tensor_parallel_size=ranks,
        source=f"{path.name} {subset}".strip(),
    )
    return fit_regression(steps, setting, remarks)


def _ranks(path: Path, notes: Mapping[str, str]) -> int:
    """Return the number of ranks that a file gives; 0 if it gives none."""
    said = notes.get("tensor_parallel_size", "0")
    if not said.isdecimal():
        raise ScenarioError(f"{path}: tensor_parallel_size must be a number, got {brief(said)}")
    return int(said)


def _required(options: dict[str, object]) -> None:
    missing = [name for name, value in options.items() if not value]
    if missing:
        names = ", ".join(f"--{name.replace('_', '-')}" for name in missing)
        raise ScenarioError(f"the file does not give {', '.join(missing)}: give {names}")


@dataclass(frozen=True, kw_only=True)
class Setting:
    """The measured machine: model and GPU, by catalog name or path, ranks, and the source."""

    model: str
    gpu: str
    tensor_parallel_size: int
    source: str


@dataclass(frozen=True)
class Regression:
    """The content of a regression file, and the errors of points held out, by stage."""

    content: dict[str, Any]
    errors: dict[str, HeldOut]

    @property
    def text(self) -> str:
        """The content of the file."""
        return json.dumps(self.content, indent=1) + "\n"

    def save(self, path: Path) -> None:
        """Write the file. Raises ScenarioError when that cannot be done."""
        write_whole(path, self.text)


def fit_regression(
    steps: MeasuredSteps, setting: Setting, remarks: Sequence[str] = ()
) -> Regression:
    """Learn the step times of one setting, and hold out every point in turn to score it.

    Raises ScenarioError when there are no steps of prompts or of decodes alone.
    """
    for name, chosen in (("prompts", steps.with_prompts), ("decodes alone", ~steps.with_prompts)):
        if not chosen.any():
            raise ScenarioError(f"{setting.source}: has no steps of {name}")
    decodes = decode_data(steps)
    predict_decodes = fit_ensemble(decodes)
    prompts = prefill_data(steps, predict_decodes)
    errors = {"prefill": held_out(prompts), "decode": held_out(decodes)}
    stages = {
        "prefill": compiled(prompts, fit_ensemble(prompts)),
        "decode": compiled(decodes, predict_decodes),
    }
    for stage, table in stages.items():
        table["held_out"] = _shares(errors[stage])
    content = {
        "format": FORMAT,
        "version": VERSION,
        "model": setting.model,
        "gpu": setting.gpu,
        "tensor_parallel_size": setting.tensor_parallel_size,
        "source": setting.source,
        "remarks": list(remarks),
        "num_members": NUM_MEMBERS,
        "stages": stages,
    }
    return Regression(content, errors)


def _shares(found: HeldOut) -> dict[str, dict[str, float | None]]:
    """Mean and median of absolute relative errors, inside and at the edge of the measurements."""
    parts = {"inside": found.errors[found.inside], "edge": found.errors[~found.inside]}
    return {
        place: {key: None if np.isnan(value) else value for key, value in pooled([part]).items()}
        for place, part in parts.items()
    }
