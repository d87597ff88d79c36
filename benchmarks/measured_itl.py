"""The roofline beside ML.ENERGY's inter-token latencies of vLLM 0.11: `python -m benchmarks.measured_itl`.

Runs at a full batch, H100 and B200. Lengths of prompts are not in the data; we assume those of
`PROMPTS`. A decode stands half way through its answer, and long answers decode longer: its mean
place is E[L²] / 2 E[L] of the answers' lengths L. A step is kernels, sampling as its client asks
(top-p, which that version sorts for) and the host time that the version does not hide. A run is
bound by the host where the default host time is longer than the kernels.
"""  # noqa: E501 - the command belongs into the first line

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import cache
from pathlib import Path

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from scipy.optimize import least_squares

from mist_sim.core.batch import StepBatch
from mist_sim.hardware import Cluster, load_gpu
from mist_sim.hardware.predictors import RooflinePredictor
from mist_sim.hardware.predictors.around import WithSampling
from mist_sim.hardware.predictors.base import sustained_rates
from mist_sim.hardware.predictors.overhead import EngineOverhead
from mist_sim.hardware.sampling import SamplingTimes
from mist_sim.hardware.setting import setting_of
from mist_sim.metrics.load import load_of
from mist_sim.models import ModelSpec
from mist_sim.scenario.engines.versions import HIDES, Hidden, version_of
from tools.power.power_runs import (
    MLENERGY_MODELS,
    mlenergy_kernels,
    mlenergy_model,
)
from tools.power.token_energy import ASKED

Array = NDArray[np.float64]
FILE = Path("../shared/measurements/ml-energy-vllm-0.11/mlenergy_calibration.csv")
PROMPTS: Mapping[str, int] = {"lm-arena-chat": 100, "gpqa": 250, "sourcegraph-fim": 1500}
GPUS = {"H100": "h100-sxm", "B200": "b200"}
RELEASE = "vllm-0.11"  # from its second patch on: that of the runs is 0.11.1
_EVEN = 1.25


def compared(file: Path = FILE) -> pd.DataFrame:
    """Return a row a run: model, gpu, batch, load, measured and computed seconds, and host_bound.

    series: runs that differ in their batch alone. even: whether the median gap is one of steps with
    decodes alone, and nothing else held them up: nine in ten are at most `_EVEN` times as long.
    """
    runs = pd.read_csv(file)
    runs = runs[runs["model_id"].isin(MLENERGY_MODELS)]
    lengths = file.parent / "output_length_hist.json"
    return pd.DataFrame([_row(run, lengths) for run in runs.to_dict("records")])


@cache
def _spread(lengths: Path) -> Mapping[str, float]:
    """Return E[L²] / E[L]² of the answers, by task and model. lengths: the file of histograms."""
    found = {}
    for of, histogram in json.loads(lengths.read_text("utf-8")).items():
        edges, counts = np.array(histogram["bins"]), np.array(histogram["counts"])
        low, high = edges[:-1], edges[1:]
        mean = np.average((low + high) / 2, weights=counts)
        square = np.average((low**2 + low * high + high**2) / 3, weights=counts)
        found[of] = float(square / mean**2)
    return found


def _row(run: Mapping[str, object], lengths: Path) -> dict[str, object]:
    model = mlenergy_model(str(run["model_id"]))
    replicas, spread = int(str(run["dp"])), model.moe is not None and int(str(run["ep"])) > 1
    ranks = int(str(run["num_gpus"])) // replicas
    plain = Cluster(load_gpu(GPUS[str(run["gpu_model"])]), ranks, replicas, spread)
    kernels_of = mlenergy_kernels(model, plain)
    cluster = kernels_of.timed(model, plain)
    number = max(1, round(float(str(run["avg_batch_size"])) / replicas))
    prompt, answer = PROMPTS[str(run["task"])], float(str(run["avg_output_len"]))
    spread = _spread(lengths)[f"{run['task']}|{run['model_id']}"]
    batch = _decodes(model, number, prompt + spread * answer / 2)
    roofline = RooflinePredictor(model, cluster)
    kernels = roofline.step_time(batch)
    _, bytes_per_s = sustained_rates(cluster.gpu, cluster.gpu.decode)
    sampling = SamplingTimes(ASKED, model.vocab_size, "pytorch", bytes_per_s)
    step, sequence = EngineOverhead().of_a_step(roofline)
    hidden: Hidden = version_of(RELEASE).default(HIDES)
    left = EngineOverhead(
        exposed_step=step - hidden.step, exposed_sequence=sequence - hidden.sequence
    )
    whole = left.around(WithSampling(roofline, sampling), overlapped=True)
    return {
        "model": model.name,
        "format": str(run["weight_precision"]),
        "gpu": cluster.gpu.name,
        "experts": model.moe is not None,
        "batch": number,
        "load": load_of(prompt, answer, number),
        "measured": float(str(run["median_itl_ms"])) / 1e3,
        "kernels": kernels,
        "sampling": sampling[number],
        "host": step + sequence * number,
        "computed": whole.step_time(batch),
        "host_bound": step + sequence * number > kernels,
        "setting": setting_of("roofline", model, plain),
        "kernels_of": kernels_of.named.get("experts", ""),
        "untimed": kernels_of.untimed(model, plain),
        "series": f"{model.name} on {run['num_gpus']} {cluster.gpu.name}, {run['task']}",
        "even": float(str(run["p90_itl_ms"])) <= _EVEN * float(str(run["median_itl_ms"])),
    }


def _decodes(model: ModelSpec, number: int, context: float) -> StepBatch:
    window = model.sliding_window
    seen = round(number * min(context, window - 1)) if window else None
    return StepBatch((), number, round(number * context), window_sum=seen)


def exposed_time(runs: pd.DataFrame) -> tuple[float, float]:
    """Return the seconds of a step, and of each sequence, that the host adds in spite of async.

    Beyond the longer of kernels and default host time, in dense runs on H100 that the host does
    not bound: their kernels are the ones known best. Least squares of logarithms, soft L1 loss.
    """
    known = runs[~runs["host_bound"] & ~runs["experts"] & (runs["gpu"] == "h100-sxm")]
    longer = np.maximum(known["kernels"] + known["sampling"], known["host"])

    def errors(times: Array) -> Array:
        computed = longer + times[0] + times[1] * known["batch"]
        return np.log(computed / known["measured"]).to_numpy()

    start, scale = (1e-3, 5e-5), (1e-3, 1e-5)
    found = least_squares(errors, start, loss="soft_l1", f_scale=0.1, x_scale=scale)
    return float(found.x[0]), float(found.x[1])


def main() -> None:
    """Print the errors by GPU and kind of model, and those of runs that the host bounds."""
    runs = compared()
    step, sequence = exposed_time(runs)
    print(f"host time that async does not hide: {step:.2e} s, {sequence:.2e} s a sequence")
    runs["error"] = runs["computed"] / runs["measured"] - 1
    for keys in (["host_bound"], ["host_bound", "gpu", "experts", "format"], ["model", "gpu"]):
        found = runs.groupby(keys)["error"].agg(
            number="size",
            middle="median",
            median=lambda errors: errors.abs().median(),
            ninth=lambda errors: errors.abs().quantile(0.9),
        )
        print(found.round(3).to_string(), end="\n\n")


if __name__ == "__main__":
    main()
