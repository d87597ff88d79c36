"""The roofline beside layers of PyTorch that ran on an H100.

`python -m benchmarks.executed_layers` prints the errors by class of step. The measured steps are
`examples/gpus/*-layers.csv`, written by `mist profile`.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from mist_sim.core.batch import StepBatch
from mist_sim.hardware import Cluster, load_gpu
from mist_sim.hardware.predictors import RooflinePredictor
from mist_sim.hardware.tables.steps import COLUMNS, read_rows
from mist_sim.models import load_model

TABLES = sorted((Path(__file__).parents[1] / "examples/gpus").glob("*-layers.csv"))
FAR = 1024  # tokens of a prompt, or of its context, from which attention over a context counts


def kind_of(batch: StepBatch) -> str:
    """Return the class of a step."""
    if batch.num_decodes:
        return "both" if batch.chunks else "decodes"
    ((new, context),) = batch.chunks
    if new < FAR:
        return "prompts below 1,024 tokens"
    return "longer prompts, with a context" if context else "longer prompts, without"


def ratios(path: Path) -> Iterator[tuple[StepBatch, float]]:
    """Yield every step with the roofline's seconds over those measured."""
    rows, notes = read_rows(path)
    cluster = Cluster(load_gpu(notes["gpu"]), int(notes["tensor_parallel_size"]))
    roofline = RooflinePredictor(load_model(notes["model"]), cluster)
    for *step, seconds in rows[list(COLUMNS)].itertuples(index=False):
        new, context, decodes, context_sum = map(int, step)
        batch = StepBatch(((new, context),) if new else (), decodes, context_sum)
        yield batch, roofline.step_time(batch) / seconds


def by_kind(path: Path) -> dict[str, NDArray[np.float64]]:
    """Return the ratios of a table by class of step."""
    found: dict[str, list[float]] = {}
    for batch, ratio in ratios(path):
        found.setdefault(kind_of(batch), []).append(ratio)
    return {kind: np.array(values) for kind, values in sorted(found.items())}


def main() -> None:
    for path in TABLES:
        print(f"\n{path.stem}\n{'':32} steps  median ratio  mean error  worst ratio")
        for kind, ratio in by_kind(path).items():
            worst = ratio[np.argmax(np.abs(np.log(ratio)))]
            error = np.abs(ratio - 1).mean()
            print(f"{kind:32} {len(ratio):5} {np.median(ratio):13.2f} {error:11.1%} {worst:12.2f}")


if __name__ == "__main__":
    main()
