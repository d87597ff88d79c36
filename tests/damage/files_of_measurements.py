"""Files of measurements and results, by kind, as they should be; and what reads them."""

import io
import json
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

import pandas as pd

from mist_sim import Scenario, load_gpu, load_model
from mist_sim.calibration.afd_latency import fit_afd_coefficients
from mist_sim.calibration.fitted_figures import LoopProtocol, closed_loop_observations
from mist_sim.calibration.regression import read_splitwise, read_steps
from mist_sim.inputs import of_a_form
from mist_sim.metrics.tables import RunFolder
from mist_sim.metrics.timeline import TABLES, timeline
from mist_sim.scenario import build
from mist_sim.scenario.from_vllm.commands import from_vllm
from mist_sim.validation.runs import read_run
from tests.damage.draws import Draw
from tests.damage.files_of_scenarios import PLAIN, Files, Kinds, csv, written
from tests.reference import measured
from tools.kernels.kernel_calibration import calibrate_kernels


def _measured_run(draw: Draw) -> Files:
    kind = draw.choice(["requests: requests.csv", "summary: summary.json"])
    run = "name: n\nengine: e\nprovenance: p\nfitted: nothing\nscenario: scenario.yaml\n" + kind
    rows = "request_id,ttft,tpot,e2el\n0,0.1,0.01,0.2\n1,0.1,,0.2\n2,0.3,0.01,0.4\n"
    summary = {"mean_ttft_ms": 10.0, "p99_tpot_ms": 5, "date": "today"}
    return {
        "run/run.yaml": run.encode(),
        "run/scenario.yaml": json.dumps(PLAIN).encode(),
        "run/requests.csv": rows.encode(),
        "run/summary.json": json.dumps(summary).encode(),
    }


def _measured() -> object:
    return list(read_run(Path("run"), allow_programs=False).rows())


def _commands(draw: Draw) -> Files:
    serve = (
        "vllm serve meta-llama/Llama-3.1-8B -tp 2 --max-num-seqs 64 \\\n  --max-model-len 8k "
        '--speculative-config \'{"method": "ngram", "num_speculative_tokens": 3}\' # all\n'
    )
    bench = "vllm bench serve --dataset-name random --random-input-len 100 --request-rate 5\n"
    return {"command": draw.choice([serve, bench]).encode()}


def _splitwise(folder: Path) -> None:
    frame = pd.read_csv(measured.write_splitwise(folder))
    frame["token_size"] = 128
    frame["e2e_time"] = frame["prompt_time"] + 127 * frame["token_time"]
    frame.to_csv(folder / "splitwise.csv", index=False)


@cache
def _kernel_rows() -> pd.DataFrame:
    sizes = [(m, n) for m in (1, 16, 256, 1024, 4096) for n in (1024, 4096, 8192, 16384, 28672)]
    rows = [(m, n, 4096, 0.005 + 2 * m * n * 4096 / 5e11) for m, n in sizes]
    return pd.DataFrame(rows, columns=["m", "n", "k", "latency"]).assign(gemm_dtype="bfloat16")


def _system(draw: Draw) -> Files:
    out = io.BytesIO()
    _kernel_rows().to_parquet(out)
    version = draw.choice(["0.24.0", "0.24.0rc1", "x", "9" * 60])
    return {f"sys/gemm/vllm/{version}/gemm_perf.parquet": out.getvalue()}


def _layers(draw: Draw) -> Files:
    first = ["layer_name,input,kv_cache,tp_size,latency(ns)"]
    second = ["layer,tokens,time_us"]
    for tokens in (1, 4, 16, 64, 128, 256, 512, 1024, 2048, 4096):
        for layer in ("q_proj", "o_proj", "down_proj"):
            first.append(f"{layer},{tokens},0,1,{20_000 + 90 * tokens}")
            second.append(f"{layer},{tokens},{20 + 0.09 * tokens}")
    return {"t.csv": ("\n".join(draw.choice([first, second])) + "\n").encode()}


def _afd() -> object:
    return fit_afd_coefficients(Path("t.csv"))


def _observed() -> object:
    return closed_loop_observations(Path("t.csv"), "qwen3-32b", LoopProtocol())


def _timeline(draw: Draw) -> Files:
    return {f"run/{name}": content for name, content in _results().items()}


@cache
def _results() -> Files:
    with TemporaryDirectory() as folder:
        build(Scenario.from_dict(PLAIN)).run().save(Path(folder) / "out")
        found = [*(Path(folder) / "out").glob("*.parquet"), Path(folder) / "out" / "summary.json"]
        return {path.name: path.read_bytes() for path in found}


def _drawn() -> object:
    with of_a_form(Path("run"), "results"):
        run = RunFolder(Path("run"))
        tables = {name: run.table(name) for name in TABLES if run.has(name)}
        return "".join(timeline(tables, 0.0, 1e9))


_PARTS = ["attention", "ffn", "communication"]
_MEASURED_LOOPS = "isl,osl,concurrency,tp_size,silicon_ttft_ms,silicon_tpot_ms\n" + "".join(
    f"{isl},{osl},{users},2,{40 + users},{9 + users / 10}\n"
    for isl in (1024, 4096)
    for osl in (128, 512)
    for users in (8, 16, 32)
)

MEASUREMENTS: Kinds = {
    "vllm's command": (_commands, lambda: from_vllm(["command"], gpu=None)),
    "measured run": (_measured_run, _measured),
    "afd coefficients": (
        csv("part,size,time\n" + "".join(f"{p},{n},{1 + n}\n" for p in _PARTS for n in (1, 5, 9))),
        _afd,
    ),
    "closed loops": (csv(_MEASURED_LOOPS), _observed),
    "steps to fit": (
        written(measured.write_steps, "steps.csv"),
        lambda: read_steps(Path("steps.csv")),
    ),
    "splitwise to fit": (
        written(_splitwise, "splitwise.csv"),
        lambda: read_splitwise(Path("splitwise.csv"), "m/a", 1),
    ),
    "kernels": (_system, lambda: calibrate_kernels(Path("sys"), load_gpu("h100-sxm"))),
    "layers": (
        _layers,
        lambda: calibrate_kernels(Path("t.csv"), load_gpu("h100-sxm"), load_model("llama-3.1-8b")),
    ),
    "results": (_timeline, _drawn),
}
