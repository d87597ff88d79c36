"""Files of measurements, by the form that a user names."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from mist_sim.calibration.regression.fitting import Regression, Setting, fit_regression
from mist_sim.calibration.regression.measured_steps import read_splitwise, read_steps
from mist_sim.errors import ScenarioError, brief, did_you_mean
from mist_sim.hardware import load_gpu
from mist_sim.models import load_model

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
