"""What a predictor's answer costs: one step, and a run of 32."""

from __future__ import annotations

import shlex
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import ClassVar

from mist_sim import (
    Cluster,
    Predictor,
    RooflinePredictor,
    StepBatch,
    TablePredictor,
    load_gpu,
    load_model,
)
from mist_sim.core.batch import StepGrowth, grown
from mist_sim.errors import ScenarioError
from mist_sim.hardware.predictors import (
    PREDICTORS,
    BestServePredictor,
    ProgramPredictor,
    RegressionPredictor,
)
from mist_sim.hardware.predictors.measured.profiling import ProfileRange
from mist_sim.hardware.predictors.measured.sampled import SampledSteps
from mist_sim.hardware.predictors.measured.timing_store import TimingStore
from tests.reference import measured
from tests.reference.regression_files import written

MEASUREMENTS = Path(__file__).parents[2] / "shared/measurements"
_PROFILE = MEASUREMENTS / "vllm-0.19-rtxpro6000-llama3.1-8b/profile"
_VIDUR = MEASUREMENTS / "vllm-h100-llama3.1-70b-tp4-layers"
_SPLITWISE = MEASUREMENTS / "splitwise_perf_model.csv"

_DECODES = (64, 64 * 1_000, None, 4_000)
_BATCHES = {
    "decodes": StepBatch((), *_DECODES),
    "a prompt beside decodes": StepBatch(((512, 0),), *_DECODES),
    "one with context": StepBatch(((500, 700),), *_DECODES),
    "16 with context": StepBatch(tuple((60 + i, 100 * i) for i in range(16)), *_DECODES),
}


def step_times() -> Iterator[tuple[str, str, str]]:
    """Yield (work, budget, measured) for each predictor and kind of step."""
    with tempfile.TemporaryDirectory() as folder:
        predictors = {**_tables(Path(folder)), **_others(Path(folder))}
    for name, predictor in predictors.items():
        for kind, batch in _BATCHES.items():
            growth = StepGrowth(batch.num_decodes, longest_context=1)
            one = _us(predictor.step_time, batch, growth, 2_000)
            run = _us(lambda b, p=predictor, g=growth: p.run(b, g, 32), batch, growth, 200)
            yield f"step time, {name}: {kind}", "<= 3 us", f"{one:.1f} us; 32 steps {run:.0f} us"


def _tables(folder: Path) -> dict[str, Predictor]:
    """Return tables of every form: of real measurements where they are there, else of made ones."""
    model, large = load_model("llama-3.1-8b"), load_model("llama-3.1-70b")
    rtx, h100 = Cluster(load_gpu("rtx-pro-6000")), Cluster(load_gpu("h100-sxm"))
    found: dict[str, Predictor] = {}
    if _PROFILE.exists():
        found["layer table"] = TablePredictor(model, rtx, str(_PROFILE), "layer_profile")
    else:
        made = measured.write_layer_profile(folder, model.num_layers)
        found["made layer table"] = TablePredictor(model, rtx, str(made), "layer_profile")
    if _VIDUR.exists():
        four = Cluster(load_gpu("h100-sxm"), 4)
        found["vidur table"] = TablePredictor(large, four, str(_VIDUR), "vidur")
    else:
        made = measured.write_vidur(folder, model.num_layers)
        found["made vidur table"] = TablePredictor(model, h100, str(made), "vidur")
    path, subset = str(measured.write_splitwise(folder)), "m/a"
    found["made splitwise table"] = TablePredictor(model, h100, path, "splitwise", subset)
    path = str(measured.write_steps(folder))
    found["made table of steps"] = TablePredictor(model, h100, path, "steps")
    return found


def _others(folder: Path) -> dict[str, Predictor]:
    """Return the other sources; those whose package is not installed are left out."""
    model, cluster = load_model("llama-3.1-8b"), Cluster(load_gpu("rtx-pro-6000"))
    learned = written(folder / "regression.json", gpu=cluster.gpu.name)
    program = shlex.join(
        [sys.executable, str(Path(__file__).parents[1] / "examples/step_times.py")]
    )
    found: dict[str, Predictor] = {
        "roofline": RooflinePredictor(model, cluster),
        "bestserve": BestServePredictor(model, cluster),
        "regression": RegressionPredictor(model, cluster, learned),
        "program": ProgramPredictor(model, cluster, program),
        "execution, made times": SampledSteps(
            _MadeTimes(), ProfileRange().points, TimingStore(None)
        ),
    }
    PREDICTORS.find_entry_points()
    for name in ("silicon", "genz"):
        with suppress(ScenarioError):  # the plugin is not installed
            found[name] = PREDICTORS[name](model, cluster)
    return found


class _MadeTimes:
    """Seconds in place of those that a device would take, for `execution` without one."""

    identity: ClassVar[dict[str, object]] = {"source": "made"}

    def seconds(self, batches: list[StepBatch]) -> list[float]:
        """Return seconds of each batch that grow with its tokens and its context."""
        return [
            1e-2 + 1e-5 * (batch.num_prefill_tokens + batch.num_decodes) + 1e-8 * batch.context_sum
            for batch in batches
        ]


def _us(
    work: Callable[[StepBatch], object], batch: StepBatch, growth: StepGrowth, repeats: int
) -> float:
    """Return the CPU time of a call in microseconds, the best of five; no context comes twice."""
    best = float("inf")
    for go in range(5):
        batches = [grown(batch, growth, go * repeats + step) for step in range(repeats)]
        for new in batches:
            new.chunks = batch.chunks
        start = time.process_time()
        for new in batches:
            work(new)
        best = min(best, time.process_time() - start)
    return best / repeats * 1e6
