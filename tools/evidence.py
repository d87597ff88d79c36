"""Whole runs of vLLM beside the simulator: `python -m tools.evidence [SOURCE] [--runs | --models]`.

Each source is a folder of measurements (`../shared/measurements`); a row of it becomes a `vllm
serve` line and a load. Errors are simulated / measured - 1 of mean TTFT, mean TPOT and output
tokens per second; a figure lies inside where its bar (docs/background/error_bars.md) holds it.
SOURCE: part of the name of a source, model or label. Simulations are kept in `.evidence/` until a
file of the package changes. --models fits each figure of `_OF_WHOLE_RUNS` on one model alone and
scores the source's other model with it.
"""

from __future__ import annotations

import argparse
import csv
import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass, field, replace
from functools import cache
from importlib.util import find_spec
from math import exp, log
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from scipy.optimize import root, root_scalar

from benchmarks import measured_itl
from mist_sim.errors import MistError
from mist_sim.hardware import Cluster, load_gpu
from mist_sim.hardware.kernel_choice import with_backend
from mist_sim.hardware.predictors import Predictor, RooflinePredictor
from mist_sim.hardware.setting import Setting, setting_of
from mist_sim.metrics import evidence
from mist_sim.metrics.evidence import ErrorBar, Evidence, MeasuredRow
from mist_sim.metrics.expected_errors import at_load, end_to_end, slower
from mist_sim.metrics.load import CLOSED, OPEN, Load, load_of
from mist_sim.metrics.sensitivity import Sensitivity
from mist_sim.models import load_model
from mist_sim.rng import Streams
from mist_sim.scenario import Scenario, simulate
from mist_sim.scenario.from_vllm.commands import from_vllm
from mist_sim.validation.benchmarks import table
from tools.validation.closed_loop import GPUS, measured_points, predictors, simulated
from tools.validation.known import CLOSED_LOOP, VLLM_019
from tools.validation.open_loop import vllm_019, vllm_019_means
from tools.validation.shared_prefixes import MODELS, measured_stages, simulated_stages

ROOT = Path(__file__).parent.parent
SHARED = ROOT.parent / "shared"
PAGE = ROOT / "docs" / "background" / "error_bars.md"
_BEGIN, _END = "<!-- error bars, made by python -m tools.evidence -->", "<!-- end of error bars -->"
KEPT = ROOT / ".evidence"
METRICS = ("ttft", "tpot", "throughput")
FILE = ROOT / "mist_sim" / "metrics" / "evidence.csv"
_COLUMNS = (
    *("origin", "source", "model", "gpu", "architecture", "kind", "weights", "parallel"),
    *("release", "load", "arrivals", "ttft", "tpot", "ttft_beyond", "tpot_beyond"),
)
_CHAT_LIMIT = 1_024  # tokens of a prompt of `vllm bench serve --dataset-name sharegpt`
_ANSWERED = 2_048  # of a prompt and its answer
_QWEN2_BLOCK = 16 * 28 * 2 * 4 * 128 * 2  # bytes of 16 tokens of Qwen2-7B, whose sizes 2.5 kept


@dataclass(frozen=True, kw_only=True)
class Measured:
    """A measured run.

    serve: its `vllm serve` line. release: of vLLM, and engine: the entry of ours that is nearest.
    lengths: of all prompts and answers. concurrency: at most so many at once; None: no limit.
    figures: means of `METRICS`, in ms and output tokens/s; those not measured are left out.
    kernels: figures of the GPU's kernels in place of the catalog's, by kind.
    """

    source: str
    label: str
    gpu: str
    release: str
    engine: str
    model: str
    serve: str
    lengths: tuple[tuple[int, int], ...] = field(repr=False)
    concurrency: int | None = None
    figures: Mapping[str, float]
    kernels: Mapping[str, Mapping[str, float | str]] = field(default_factory=dict)


@cache
def _chats() -> np.ndarray:
    """Lengths of the first turns of ShareGPT that the benchmark takes (true Llama-2 tokens)."""
    turns = pd.read_csv(SHARED / "traces/sharegpt-lengths/sharegpt_8k_turns_llama2.csv").to_numpy()
    first = np.r_[True, turns[1:, 0] <= turns[:-1, 0]]
    has_more = np.r_[~first[1:], False]
    chats = turns[first & has_more]
    fits = (chats[:, 0] <= _CHAT_LIMIT) & (chats.sum(axis=1) <= _ANSWERED) & (chats.min(axis=1) > 3)
    return np.asarray(chats[fits])


def _drawn(number: int, prompts: int, answers: int) -> tuple[tuple[int, int], ...]:
    """Return that many chats with about so many tokens of all prompts and all answers.

    The chats at hand are others than the benchmark's, with longer answers. Each is drawn with a
    weight exp(a * prompt + b * answer) that sets both means, which changes their law least (minimum
    relative entropy); a scale sets what is left.
    """
    chats, wanted = _chats(), np.array([prompts, answers]) / number
    places, unit = (chats - chats.mean(axis=0)) / chats.std(axis=0), chats.std(axis=0)

    def weights(slopes: np.ndarray) -> np.ndarray:
        heights = places @ slopes
        found = np.exp(heights - heights.max())
        return np.asarray(found / found.sum())

    def off(slopes: np.ndarray) -> np.ndarray:
        return np.asarray((weights(slopes) @ chats - wanted) / unit)

    slopes = root(off, np.zeros(2)).x
    generator = Streams(57).generator("chats")
    drawn = chats[generator.choice(len(chats), size=number, p=weights(slopes))]
    scaled = np.maximum(1, np.rint(drawn * ([prompts, answers] / drawn.sum(axis=0)))).astype(int)
    return tuple((int(prompt), int(answer)) for prompt, answer in scaled)


def _gpustack() -> Iterator[Measured]:
    runs = pd.read_csv(SHARED / "measurements/gpustack-lab/vllm_runs.csv")
    run: Any  # its fields are the columns
    for run in runs.itertuples():
        number = int(run.n)
        fixed = isinstance(run.label, str) and run.label.startswith("random")
        one = (round(run.tin / number), max(1, round(run.tout / number)))
        model = str(run.file).partition("/")[0]
        serve = str(run.cmd)
        if model == "gpt-oss-20b":
            serve = serve.replace("gpt-oss-120b", "gpt-oss-20b")
        load = run.label if fixed or run.conc > 0 else "chats"
        yield Measured(
            source="gpustack-lab",
            label=f"{serve.removeprefix('vllm serve ')}; {load}",
            gpu="a100-80gb-sxm" if "a100" in str(run.file) else "h100-sxm",
            release="0.11",
            engine="vllm-0.11.0",
            model=model + ("-fp8" if "FP8" in serve else "-awq" if "AWQ" in serve else ""),
            serve=serve,
            lengths=(one,) * number if fixed else _drawn(number, int(run.tin), int(run.tout)),
            concurrency=int(run.conc) if run.conc > 0 else None,
            figures={"ttft": run.ttft, "tpot": run.tpot, "throughput": run.tout / run.dur},
        )


def _bursts() -> Iterator[Measured]:
    runs = pd.read_csv(SHARED / "measurements/vllm-0.10-a100-bursts/runs.csv")
    run: Any  # its fields are the columns
    for run in runs.itertuples():
        gib = float(run.test.split()[-1].removesuffix("GiB"))
        blocks = int(gib * 2**30 / _QWEN2_BLOCK)
        yield Measured(
            source="vllm-0.10-a100-bursts",
            label=f"{run.test}; {run.n} at once",
            gpu="a100-80gb-sxm",
            release="0.10",
            engine="vllm-0.10",
            model="qwen2-7b",
            serve=f"vllm serve Qwen/Qwen2.5-7B --num-gpu-blocks-override {blocks}",
            lengths=((int(run.input_tokens), int(run.output_tokens)),) * int(run.n),
            figures={
                "tpot": run.mean_tpot_ms,
                "throughput": run.n * run.output_tokens / run.duration_s,
            },
        )


def measured() -> list[Measured]:
    """Return all measured runs that a `vllm serve` line describes."""
    return [*_gpustack(), *_bursts()]


def _scenario(run: Measured, requests: Path) -> Scenario:
    gpu = {"based_on": run.gpu, "kernels": run.kernels} if run.kernels else run.gpu
    overrides: dict[str, Any] = {"clients.0.gpu": gpu, "clients.0.engine": run.engine}
    found = from_vllm([run.serve], gpu=run.gpu, engine=run.engine, overrides=overrides)
    load: dict[str, Any] = {"trace": {"type": "lengths_csv", "path": str(requests)}}
    if run.concurrency:
        load["arrivals"] = {"type": "closed_loop", "concurrency": run.concurrency}
    else:
        load["arrivals"] = "all_at_once"
    return Scenario.from_dict({}, found.overrides | overrides | {"workload": load})


def _simulated(run: Measured) -> dict[str, Any]:
    """Return simulated means of `METRICS`, what the run was like, and what failed."""
    requests = KEPT / f"{hashlib.sha256(repr(run.lengths).encode()).hexdigest()[:12]}.csv"
    rows = "\n".join(f"{prompt},{answer}" for prompt, answer in run.lengths)
    requests.write_text(f"num_prefill_tokens,num_decode_tokens\n{rows}\n")
    try:
        result = simulate(_scenario(run, requests))
    except MistError as error:
        return {"fault": str(error)}
    summary = result.summary
    (setting,) = {of_metric for of in result.settings.values() for of_metric in of.values()}
    bars = next(iter(summary["expected_errors"].values()))
    bar = dict(bars["tpot"] or {})
    return {
        "ttft": summary["mean_ttft_ms"],
        "tpot": summary["mean_tpot_ms"],
        "throughput": summary["output_throughput"],
        "setting": asdict(setting) if isinstance(setting, Setting) else None,
        "load": [bar["load"], bar["arrivals"]],
        "sensitivity": bar.get("sensitivity"),
    }


_UNTIMED = ("cli", "report", "metrics", "validation", "search", "studies", "explain", "output")
_SOURCES = (".py", ".toml", ".csv", ".pxd")


@cache
def _package() -> str:
    """Return a sum of all files of the package that a step's time may come from."""
    root = ROOT / "mist_sim"
    joined = hashlib.sha256()
    for path in sorted(root.rglob("*")):
        inside = path.relative_to(root)
        if path.suffix in _SOURCES and inside.parts[0] not in _UNTIMED:
            joined.update(path.read_bytes())
    return joined.hexdigest()


def _kept(run: Measured) -> dict[str, Any]:
    """Return the simulation of a run, from the last time if the package is the same."""
    name = hashlib.sha256(f"{asdict(run)}".encode()).hexdigest()[:16]
    file = KEPT / f"{_package()[:16]}-{name}.json"
    if not file.exists():
        file.write_text(json.dumps(_simulated(run)))
    return dict(json.loads(file.read_text()))


def whole_runs(part: str = "", processes: int = 2) -> Iterator[Scored]:
    """Yield the runs of `measured`, simulated."""
    runs = [run for run in measured() if part in f"{run.source} {run.model} {run.label} {run.gpu}"]
    KEPT.mkdir(exist_ok=True)
    with ProcessPoolExecutor(processes) as pool:
        found = list(pool.map(_kept, runs))
    for run, ours in zip(runs, found, strict=True):
        if "fault" in ours or not ours["setting"]:
            yield Scored(run.label, None, ours.get("fault", "no setting"), {})
            continue
        errors = {name: log(value / ours[name]) for name, value in run.figures.items()}
        setting = Setting(**ours["setting"] | {"release": run.release})
        at = Sensitivity(**ours["sensitivity"]) if ours.get("sensitivity") else None
        rest = ours["tpot"] * (np.mean([answer for _, answer in run.lengths]) - 1)
        share = float(ours["ttft"] / (ours["ttft"] + rest))
        found_one = _scored(run.source, run.label, setting, Load(*ours["load"]), errors, at)
        yield replace(found_one, ttft_share=share)


class Figure(NamedTuple):
    """An mfu that was fitted to whole runs of two models of one source.

    backend: empty: the usual one. fitted, scored: parts of the labels of runs that it was fitted
    on, and that depend on it. gpu: theirs.
    """

    kind: str
    backend: str
    fitted: str
    scored: str
    gpu: str = "a100-80gb-sxm"

    def replaced(self, mfu: float) -> dict[str, dict[str, float | str]]:
        """Return `Measured.kernels` with another value of it, and the back end's other figures."""
        kernel = with_backend(load_gpu(self.gpu), (self.kind,), self.backend).kernels[self.kind]
        times: dict[str, float | str] = {
            name: f"{getattr(kernel, name)} s" for name in ("floor", "serial")
        }
        return {self.kind: times | {"per_pair": kernel.per_pair, "mfu": mfu}}


_OF_WHOLE_RUNS = (
    Figure("fp8_widened", "", "-FP8; ", "-FP8; "),
    Figure("int4", "", "-AWQ; ", "-AWQ; "),
    Figure("prefill_attention", "TRITON_ATTN", "random 32K input", "gpt-oss"),
)


def models_left_out(processes: int = 2) -> pd.DataFrame:
    """Return errors of each model's runs with figures that were fitted on the other model alone."""
    KEPT.mkdir(exist_ok=True)
    found = []
    with ProcessPoolExecutor(processes) as pool:

        def logs(runs: Sequence[Measured], figure: Figure, mfu: float) -> list[dict[str, float]]:
            """Return ln(measured / simulated) of each figure of each run."""
            changed = [replace(run, kernels=figure.replaced(mfu)) for run in runs]
            return [
                {name: log(value / ours[name]) for name, value in run.figures.items()}
                for run, ours in zip(runs, pool.map(_kept, changed), strict=True)
            ]

        for figure in _OF_WHOLE_RUNS:
            runs = [run for run in measured() if run.gpu == figure.gpu]
            runs = [run for run in runs if figure.scored in run.label]
            for model in dict.fromkeys(run.model for run in runs):
                own = [run for run in runs if run.model == model and figure.fitted in run.label]

                def off(height: float, own: list[Measured] = own, figure: Figure = figure) -> float:
                    errors = [each["throughput"] for each in logs(own, figure, exp(height))]
                    return float(np.mean(errors))

                height = root_scalar(off, x0=log(0.4), x1=log(0.3), xtol=0.01).root
                others = [run for run in runs if run.model != model]
                for run, errors in zip(others, logs(others, figure, exp(height)), strict=True):
                    about = {
                        "figure": figure.kind,
                        "fitted on": model,
                        "mfu": round(exp(height), 3),
                    }
                    about["scored on"] = run.model
                    found += [
                        about | {"metric": name, "error": exp(-error) - 1}
                        for name, error in errors.items()
                    ]
    return pd.DataFrame(found)


def _scored(
    origin: str,
    label: str,
    setting: Setting,
    load: Load,
    errors: Mapping[str, float],
    sensitivity: Sensitivity | None = None,
) -> Scored:
    """Return a run; its row has the errors without what an open loop makes of them."""
    barred = {name: error for name, error in errors.items() if name in evidence.METRICS}
    if sensitivity and "tpot" in barred:
        steps = sensitivity.steps(exp(barred["tpot"]))
        barred = {
            name: error - log(sensitivity.factor(name, steps) / steps)
            for name, error in barred.items()
        }
    return Scored(label, MeasuredRow(origin, setting, load, barred), "", errors, sensitivity)


def stages() -> Iterator[Scored]:
    """Yield the twelve open-loop runs; their TTFT is a median."""
    source = "vllm-h100-shared-prefix"
    found = simulated_stages(measured_stages(SHARED / "measurements" / source / "runs.csv"))
    stage: Any
    for stage in found.itertuples():
        model, ranks = load_model(MODELS[stage.model]), int(stage.tensor_parallel_size)
        setting = setting_of("roofline", model, Cluster(load_gpu("h100-sxm"), ranks), "0.15")
        decoding = (stage.e2e_mean_ms - stage.ttft_median_ms) / 1e3
        batch = stage.num_requests * decoding / stage.duration_s
        load = Load(load_of(stage.prompt_len_mean, stage.output_len, batch), OPEN)
        errors = {
            "ttft": log(stage.ttft_median_ms / stage.simulated_ttft_median_ms),
            "tpot": log(stage.tpot_mean_ms / stage.simulated_tpot_mean_ms),
        }
        at = Sensitivity(growing=1 - stage.lone_step_ms / stage.simulated_tpot_mean_ms)
        yield _scored(source, f"{stage.run}, stage {stage.stage}", setting, load, errors, at)


def closed_loops() -> Iterator[Scored]:
    """Yield the closed loops with default options, by roofline and by measured kernels."""
    model, gpu = load_model("qwen3-32b"), load_gpu("h100-sxm")
    points = measured_points(SHARED / "measurements" / CLOSED_LOOP)
    timed_by: dict[str, Mapping[int, Predictor]] = {
        "roofline": {ranks: RooflinePredictor(model, Cluster(gpu, ranks)) for ranks in GPUS}
    }
    if find_spec("mist_sim_silicon"):
        timed_by["measured kernels"] = predictors()
    for source, predictor in timed_by.items():
        row: Any
        for row in simulated(points, predictor, prompt_token=None).itertuples():
            decoding = (row.osl - 1) * row.silicon_tpot_ms
            batch = row.concurrency * decoding / (row.silicon_ttft_ms + decoding)  # Little's law
            setting = setting_of(source, model, Cluster(gpu, row.tp_size), "0.12")
            errors = {
                "ttft": log(row.silicon_ttft_ms / row.ttft_ms),
                "tpot": log(row.silicon_tpot_ms / row.tpot_ms),
            }
            label = f"{row.tp_size} GPUs, {row.isl} in, {row.osl} out, {row.concurrency} users"
            load = Load(load_of(row.isl, row.osl, batch), CLOSED)
            yield _scored(CLOSED_LOOP.removesuffix(".csv"), label, setting, load, errors)


def open_loop() -> Iterator[Scored]:
    """Yield the means of the run of 300 chats."""
    folder = SHARED / "measurements" / VLLM_019
    model, cluster = load_model("llama-3.1-8b"), Cluster(load_gpu("rtx-pro-6000"))
    ends = {
        "with async scheduling as it ran": "roofline",
        "requests: layer profile": "measured kernels",
    }
    for run in vllm_019(folder):
        for end, source in ends.items():
            if run.name.endswith(end):
                rows = {row.metric: row for row in run.rows()}
                errors = {
                    name: -log(1 + rows[f"{name.upper()}, mean"].error) for name in ("ttft", "tpot")
                }
                load = Load(load_of(*vllm_019_means(folder)), OPEN)
                setting = setting_of(source, model, cluster, "0.19")
                yield _scored(VLLM_019, "300 chats", setting, load, errors)


def token_gaps() -> Iterator[Scored]:
    """Yield the median token gaps of ML.ENERGY's runs whose gaps are even: decodes alone."""
    source = "ml-energy-vllm-0.11"
    run: Any
    for run in measured_itl.compared(
        SHARED / "measurements" / source / "mlenergy_calibration.csv"
    ).itertuples():
        if run.even:
            setting = replace(run.setting, release="0.11")
            errors = {"tpot": log(run.measured / run.computed)}
            label = f"{run.series}, {run.batch} at a time"
            yield _scored(source, label, setting, Load(run.load, CLOSED), errors)


@dataclass(frozen=True)
class Scored:
    """A measured run beside its simulation; `row` is None where that failed, and `fault` says why.

    errors: ln(measured / simulated) by metric, throughput among them. sensitivity: of an open loop.
    ttft_share: of mean E2E; None: not known.
    """

    label: str
    row: MeasuredRow | None
    fault: str
    errors: Mapping[str, float]
    sensitivity: Sensitivity | None = None
    ttft_share: float | None = None


def scored() -> list[Scored]:
    """Return all handed runs."""
    runs = [*whole_runs(), *stages(), *closed_loops(), *open_loop(), *token_gaps()]
    return [run for run in runs if run.row is None or run.row.setting.source]


def left_out(rows: Sequence[MeasuredRow]) -> list[MeasuredRow]:
    """Return rows with how far each lies outside the bar of the other origins."""
    found = [{} for _ in rows]  # type: list[dict[str, float]]
    for origin in dict.fromkeys(row.origin for row in rows):
        others = [row for row in rows if row.origin != origin]
        for source in {row.setting.source for row in rows}:
            for metric in evidence.METRICS:
                known = Evidence(others, source, metric)
                for place, row in enumerate(rows):
                    of_it = row.origin == origin and row.setting.source == source
                    if of_it and metric in row.errors and not known.unknown(row.setting):
                        low, high, _ = known.ends(row.setting, row.load)
                        error = row.errors[metric]
                        found[place][metric] = max(low - error, error - high)
    return [row._replace(beyond=beyond) for row, beyond in zip(rows, found, strict=True)]


def _written(row: MeasuredRow) -> dict[str, Any]:
    """Return what `evidence.read` reads back, with three decimals."""
    found: dict[str, Any] = {"origin": row.origin, "load": row.load.kind}
    found["arrivals"] = row.load.arrivals
    found |= {name: getattr(row.setting, name) for name in Setting.__dataclass_fields__}
    found |= {name: f"{error:.3f}" for name, error in row.errors.items()}
    return found | {f"{name}_beyond": f"{far:.3f}" for name, far in row.beyond.items()}


def write(runs: Sequence[Scored]) -> None:
    """Write the package's evidence."""
    rows = left_out([run.row for run in runs if run.row])
    with FILE.open("w", encoding="utf-8", newline="") as out:
        writer = csv.DictWriter(out, _COLUMNS, lineterminator="\n")
        writer.writeheader()
        writer.writerows(map(_written, rows))


def page(figures: pd.DataFrame) -> None:
    """Write the table of docs/background/error_bars.md."""
    head = ("group", "metric", "rows", "with a bar", "inside", "median width", "widest", "span")
    lines = [f"| {' | '.join(head)} |", "|---" * len(head) + "|"]
    barred = figures[figures["metric"].isin(evidence.METRICS)]
    for by in ("all", "source"):
        found = table(barred.assign(all="all"), by).reset_index()
        for row in found[(found["number"] >= evidence.FEWEST) & (found["barred"] > 0)].itertuples():
            group, metric, number = row[1], str(row[2]).upper(), row[3]
            shares = [f"{100 * float(str(share)):.0f} %" for share in row[7:]]
            lines.append(f"| {' | '.join([str(group), metric, str(number), *shares])} |")
    before, mark, rest = PAGE.read_text("utf-8").partition(_BEGIN)
    text = "\n".join(lines)
    PAGE.write_text(f"{before}{mark}\n{text}\n{_END}{rest.partition(_END)[2]}", "utf-8")


def compared(runs: Sequence[Scored]) -> pd.DataFrame:
    """Return a row for each figure: error, and whether the bar of the other origins holds it."""
    known = [run for run in runs if run.row and run.row.setting.source == "roofline"]
    rows = left_out([run.row for run in known if run.row])
    found = []
    for origin in dict.fromkeys(row.origin for row in rows):
        others = [row for row in rows if row.origin != origin]
        bars = {
            metric: (Evidence(others, "roofline", metric), Evidence(rows, "roofline", metric))
            for metric in evidence.METRICS
        }
        for run in known:
            if run.row and run.row.origin == origin:
                found += [_compared(run, run.row, bars, *each) for each in run.errors.items()]
    return pd.DataFrame(found)


def _compared(
    run: Scored,
    row: MeasuredRow,
    bars: Mapping[str, tuple[Evidence, Evidence]],
    metric: str,
    error: float,
) -> dict[str, Any]:
    found = {
        name: others.bar(row.setting, row.load, everyone.margin(row.setting, row.load))
        for name, (others, everyone) in bars.items()
    }
    ttft, tpot = found["ttft"], found["tpot"]
    bar: ErrorBar | None = None
    if metric in bars:
        bar = at_load(found[metric], metric, tpot, run.sensitivity)
    elif ttft and tpot and run.ttft_share is not None:  # none of these loads is open
        low, high = slower(end_to_end(ttft, tpot, run.ttft_share))
        bar = tpot._replace(low=low, high=high)
    setting, measured = row.setting, exp(error) - 1
    return {
        "source": row.origin,
        "gpu": setting.gpu,
        "release": setting.release,
        "model": setting.model,
        "kernel": f"{evidence.kernel_words(setting)}, {evidence.architecture_words(setting)}",
        "load": ", ".join(row.load[::-1]),
        "label": run.label,
        "metric": metric,
        "error": exp(-error) - 1,
        "measured": measured,
        "low": bar.low if bar else None,
        "high": bar.high if bar else None,
        "distance": len(bar.other) if bar else None,
        "inside": bool(bar.low <= round(measured, 3) <= bar.high) if bar else None,
    }


def main() -> None:
    """Print errors by source, GPU and model; with --runs those of each run."""
    parser = argparse.ArgumentParser(description="Whole runs of vLLM beside the simulator.")
    parser.add_argument("part", nargs="?", default="")
    parser.add_argument("--runs", action="store_true")
    parser.add_argument("--write", action="store_true", help=f"write {FILE.relative_to(ROOT)}")
    parser.add_argument("--models", action="store_true", help="fit on one model, score the other")
    asked = parser.parse_args()
    pd.set_option("display.width", 250, "display.max_rows", 500, "display.max_colwidth", 110)
    if asked.models:
        found = models_left_out().assign(low=np.nan, high=np.nan, inside=np.nan)
        keys = ("figure", "fitted on", "mfu", "scored on")
        print(
            table(found, *keys)[["number", "median", "nine in ten", "signed"]].round(3).to_string()
        )
        return
    runs = list(whole_runs(asked.part)) if asked.part else scored()
    for run in runs:
        if run.fault:
            print(f"not simulated: {run.label}: {run.fault}\n")
    if asked.write and not asked.part:
        write(runs)
    figures = compared(runs)
    if asked.write and not asked.part:
        page(figures)
    if asked.runs:
        wide = figures.pivot_table(
            index=["model", "gpu", "label"], columns="metric", values="error", sort=False
        )
        print(wide.round(2).to_string(), end="\n\n")
    figures = figures.assign(all="all")
    for by in (
        ("all",),
        ("source",),
        ("source", "model", "gpu"),
        ("kernel",),
        ("load",),
        ("distance",),
        ("release",),
    ):
        print(table(figures, *by).round(3).to_string(), end="\n\n")


if __name__ == "__main__":
    main()
