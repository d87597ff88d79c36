"""From measured steps to the file that `predictor: {type: regression}` reads."""

from __future__ import annotations

import json
from collections.abc import Sequence
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
from mist_sim.calibration.regression.measured_steps import MeasuredSteps
from mist_sim.errors import ScenarioError
from mist_sim.hardware.predictors.measured.regression import FORMAT, VERSION
from mist_sim.output import write_whole


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
