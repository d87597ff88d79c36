"""Fits a GPU's figures to Splitwise's prompt and token times.

That engine, vLLM of 2023, used no CUDA graphs: launching a layer sets a floor under the step
(`dispatch`), and scheduling and sampling add to it (`overhead`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from mist_sim.calibration.fitted_figures import Array, Calibration, Figure, Observations, calibrate
from mist_sim.calibration.regression import MeasuredSteps, read_splitwise
from mist_sim.core.batch import StepBatch
from mist_sim.errors import ScenarioError
from mist_sim.hardware import Cluster, GpuSpec
from mist_sim.hardware.predictors import RooflinePredictor
from mist_sim.models import load_model

SETTINGS = (("llama2-70b", "llama-2-70b", (2, 4, 8)), ("bloom-176b", "bloom-176b", (8,)))
HARDWARE = {"a100-80gb-sxm": "a100-80gb", "h100-sxm": "h100-80gb"}
FIGURES = (
    Figure("prefill.mfu", 0.5, 0.05, 1.0),
    Figure("prefill.mbu", 0.8, 0.3, 1.0),
    Figure("decode.mbu", 0.8, 0.3, 1.0),
    # Three sizes of messages, of 64, 2,048 and 4,096 tokens with 8,192 values: prompts on four and
    # eight GPUs get slower from 4,096 tokens on. In these ranges larger messages take longer.
    Figure("interconnect.bus_bandwidth.1 MiB", 2e10, 8e9, 2e11),
    Figure("interconnect.bus_bandwidth.32 MiB", 1.5e11, 6.4e10, 2.56e11),
    Figure("interconnect.bus_bandwidth.64 MiB", 8e10, 1e10, 1.28e11),
    Figure("dispatch.attention", 2e-4, 0.0, 5e-3),
    Figure("overhead.step", 1e-2, 0.0, 0.1),
    Figure("overhead.sequence", 3e-4, 0.0, 1e-2),
)


def calibrate_splitwise(path: Path, gpu: GpuSpec) -> Calibration:
    """Fit to every second row of all models and ranks of a GPU in the file.

    Raises ScenarioError for a file of another form or without rows of the GPU.
    """
    if gpu.name not in HARDWARE:
        raise ScenarioError(f"{path}: has no {gpu.name}. Known: {', '.join(HARDWARE)}")
    settings = []
    for theirs, ours, ranks in SETTINGS:
        for size in ranks:
            steps, _ = read_splitwise(path, f"{theirs}/{HARDWARE[gpu.name]}", size, medians=True)
            settings.append((load_model(ours), size, list(_batches(steps)), steps))
    prompts = np.concatenate([steps.with_prompts for *_, steps in settings])

    def predict(spec: GpuSpec, chosen: NDArray[np.bool_]) -> Array:
        """Return the seconds of the chosen steps: a roofline's, and the engine's own."""
        overhead = spec.overhead
        seconds: list[float] = []
        for model, size, batches, _ in settings:
            roofline = RooflinePredictor(model, Cluster(spec, size), enforce_eager=True)
            for batch in batches:
                host = overhead["step"] + overhead["sequence"] * _num_sequences(batch)
                seconds.append(roofline.step_time(batch) + host)
        return np.array(seconds)[chosen]

    return calibrate(
        gpu,
        FIGURES,
        Observations(
            predict,
            measured=np.concatenate([steps.seconds for *_, steps in settings]),
            quantity=["prompt time" if prompt else "token time" for prompt in prompts],
            weight=np.ones(len(prompts)),
            held_out=np.arange(len(prompts)) % 2 == 1,
        ),
        source=f"{path.name}, vLLM of 2023 (predictor: enforce_eager true)",
    )


def _num_sequences(batch: StepBatch) -> int:
    return batch.num_decodes + len(batch.chunks)


def _batches(steps: MeasuredSteps) -> Iterator[StepBatch]:
    columns: Sequence[Array] = (
        steps.num_new_tokens, steps.num_pairs, steps.num_decodes, steps.context_sum
    )  # fmt: skip
    for new, pairs, decodes, context_sum in zip(*columns, strict=True):
        if new:  # equal prompts
            size = round(2 * pairs / new - 1)
            yield StepBatch(((size, 0),) * round(new / size))
        else:
            yield StepBatch((), int(decodes), int(context_sum))
