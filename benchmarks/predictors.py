"""What a predictor's answer costs: one step, and a run of 32."""

from __future__ import annotations

import shlex
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

from mist_sim import (
    Cluster,
    Predictor,
    RooflinePredictor,
    StepBatch,
    TablePredictor,
    load_gpu,
    load_model,
)
from mist_sim.core.batch import StepGrowth
from mist_sim.errors import ScenarioError
from mist_sim.hardware.predictors import (
    GenzPredictor,
    ProgramPredictor,
    RegressionPredictor,
    SiliconPredictor,
)
from tests.reference.measured import write_layer_profile
from tests.reference.regression_files import written

_BATCHES = {
    "decodes": StepBatch((), 64, 64 * 1_000, None, 4_000),
    "a prompt beside decodes": StepBatch(((512, 0),), 64, 64 * 1_000, None, 4_000),
}


def step_times() -> Iterator[tuple[str, str, str]]:
    """Yield (work, budget, measured) for each predictor and kind of step."""
    model, cluster = load_model("llama-3.1-8b"), Cluster(load_gpu("rtx-pro-6000"))
    with tempfile.TemporaryDirectory() as folder:
        path = str(write_layer_profile(Path(folder), model.num_layers))
        table = TablePredictor(model, cluster, path, "layer_profile")
        learned = written(Path(folder) / "regression.json", gpu=cluster.gpu.name)
        regression = RegressionPredictor(model, cluster, learned)
    predictors: dict[str, Predictor] = {
        "roofline": RooflinePredictor(model, cluster),
        "layer table": table,
        "regression": regression,
    }
    program = shlex.join(
        [sys.executable, str(Path(__file__).parents[1] / "examples/step_times.py")]
    )
    predictors["program"] = ProgramPredictor(model, cluster, program)
    for name, outside in (("silicon", SiliconPredictor), ("genz", GenzPredictor)):
        with suppress(ScenarioError):  # its package is not installed
            predictors[name] = outside(model, cluster)
    for name, predictor in predictors.items():
        for kind, batch in _BATCHES.items():
            growth = StepGrowth(batch.num_decodes, longest_context=1)
            one = _us(lambda p=predictor, b=batch: p.step_time(b))
            run = _us(lambda p=predictor, b=batch, g=growth: p.run(b, g, 32))
            yield f"step time, {name}: {kind}", "<= 3 us", f"{one:.1f} us; 32 steps {run:.0f} us"


def _us(work: Callable[[], object], repeats: int = 2_000) -> float:
    """Return the CPU time of a call in microseconds, the best of five."""
    best = float("inf")
    for _ in range(5):
        start = time.process_time()
        for _ in range(repeats):
            work()
        best = min(best, time.process_time() - start)
    return best / repeats * 1e6
