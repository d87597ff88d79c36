"""Figures of a GPU, fitted to measurements of an engine, and the spec file that holds them.

Closed loops: an engine's own time, by mean TTFT and TPOT. Each point is simulated as a whole: ten
requests a user, all of one length. TPOT counts fully, TTFT half: it depends on the protocol of the
measurement, which is rarely known in every detail.

Splitwise: prompt and token times. That engine, vLLM of 2023, used no CUDA graphs: launching a layer
sets a floor under the step (`dispatch`), and scheduling and sampling add to it (`overhead`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import least_squares

from mist_sim.calibration.regression import MeasuredSteps, read_splitwise
from mist_sim.checks import NotNegative, check_fields
from mist_sim.clients.scheduling import ChunkedScheduler
from mist_sim.core.batch import StepBatch
from mist_sim.errors import ScenarioError, printable
from mist_sim.hardware import Cluster, GpuSpec
from mist_sim.hardware.predictors import RooflinePredictor
from mist_sim.hardware.sampling import Sampling
from mist_sim.hardware.tables.base import read_columns
from mist_sim.models import load_model
from mist_sim.output import write_whole
from mist_sim.scenario import llm_client, server_limits
from mist_sim.scenario.engines.versions import version_of
from mist_sim.simulation import Simulation
from mist_sim.spec_files import toml_string
from mist_sim.traces import ClosedLoop, Workload

if TYPE_CHECKING:
    import pandas as pd


Array = NDArray[np.float64]

_MILD = 0.1  # relative errors beyond this count less than their square: outliers are measured too
_AT_BOUND = 0.01  # of where the fit begins: nearer to a bound, a figure is as good as there


@dataclass(frozen=True, slots=True)
class Figure:
    """A figure to fit, by its dotted name in a spec file: its start value, and its range.

    `overhead.*` and `dispatch.*` are seconds, `interconnect.bus_bandwidth.*` bytes/s by size of the
    message, the others shares.
    """

    name: str
    start: float
    low: float
    high: float


@dataclass(frozen=True)
class Observations:
    """Measured quantities, and a function that predicts them for a GPU.

    predict: returns the quantities of the chosen rows, in seconds.
    measured: seconds. quantity: the name of each row's quantity, for reports.
    weight: how much each row's relative error counts.
    held_out: rows that are scored instead of fitted.
    """

    predict: Callable[[GpuSpec, NDArray[np.bool_]], Array]
    measured: Array
    quantity: Sequence[str]
    weight: Array
    held_out: NDArray[np.bool_]


@dataclass(frozen=True)
class Calibration:
    """Fitted figures, and relative errors of all rows with them.

    at_bound: names of figures at an end of their range, which these rows do not determine.
    """

    base: str
    values: Mapping[str, float]
    observations: Observations
    errors: Array
    source: str
    at_bound: Sequence[str] = ()

    def error_of(self, quantity: str, *, held_out: bool) -> Array:
        """Return the relative errors of a quantity, of rows that were held out or fitted."""
        rows = np.array([name == quantity for name in self.observations.quantity])
        return np.asarray(self.errors[rows & (self.observations.held_out == held_out)])

    def report(self) -> list[tuple[str, str, int, float, float]]:
        """Return (quantity, "fitted" or "held out", rows, mean error, median error)."""
        found = []
        for quantity in dict.fromkeys(self.observations.quantity):
            for held_out, name in ((False, "fitted"), (True, "held out")):
                errors = np.abs(self.error_of(quantity, held_out=held_out))
                if len(errors):
                    mean, median = float(errors.mean()), float(np.median(errors))
                    found.append((quantity, name, len(errors), mean, median))
        return found


def calibrate(
    gpu: GpuSpec, figures: Sequence[Figure], observations: Observations, source: str
) -> Calibration:
    """Fit figures to the rows that are not held out: least squares of logarithms.

    Far outliers count less (soft L1). Needs some seconds to minutes, as `predict` does.

    Raises ScenarioError for fewer fitted rows than figures, and without held-out rows.
    """
    require_rows(observations.held_out, len(figures), source)
    fitted = ~observations.held_out
    logs = np.log(observations.measured)
    names = [figure.name for figure in figures]
    start = np.array([figure.start for figure in figures])

    def residuals(values: Array) -> Array:
        with_values = with_figures(gpu, dict(zip(names, values.tolist(), strict=True)))
        found = np.log(observations.predict(with_values, fitted))
        return np.asarray((found - logs[fitted]) * observations.weight[fitted])

    best = least_squares(
        residuals,
        start,
        bounds=([figure.low for figure in figures], [figure.high for figure in figures]),
        x_scale=start,
        diff_step=np.full(len(names), 1e-2),
        loss="soft_l1",
        f_scale=_MILD,
        max_nfev=25,
    )
    values = {name: float(f"{value:.3g}") for name, value in zip(names, best.x, strict=True)}
    every = np.ones(len(logs), dtype=bool)
    found = observations.predict(with_figures(gpu, values), every)
    errors = found / observations.measured - 1
    return Calibration(gpu.name, values, observations, errors, source, _at_bound(figures, values))


def require_rows(held_out: NDArray[np.bool_], num_figures: int, source: str) -> None:
    """Raise ScenarioError for fewer fitted rows than figures, and without held-out rows."""
    num_fitted, num_held_out = int((~held_out).sum()), int(held_out.sum())
    if num_fitted < num_figures or not num_held_out:
        raise ScenarioError(
            f"{source}: {num_figures} figures need as many rows to fit and others to score, got "
            f"{num_fitted} to fit and {num_held_out} to score; measure more points"
        )


def _at_bound(figures: Sequence[Figure], values: Mapping[str, float]) -> tuple[str, ...]:
    return tuple(
        figure.name
        for figure in figures
        if min(values[figure.name] - figure.low, figure.high - values[figure.name])
        < _AT_BOUND * figure.start
    )


def with_figures(gpu: GpuSpec, values: Mapping[str, float]) -> GpuSpec:
    """Return a GPU with other figures, by their dotted names."""
    for name, value in values.items():
        part, _, path = name.partition(".")
        gpu = replace(gpu, **{part: _with(getattr(gpu, part), path, value)})
    return gpu


def _with(part: Any, path: str, value: float) -> Any:
    """Return a part of a spec, a mapping or a dataclass that may hold one, with another figure."""
    field, _, inner = path.partition(".")
    if isinstance(part, Mapping):
        return {**part, field: value}
    changed = {**getattr(part, field), inner: value} if inner else value
    return replace(part, **{field: changed})


def as_quantity(name: str, value: float) -> str:
    """Return a figure in the unit of its kind, as a spec file holds it; a share has none."""
    if name.startswith(("overhead.", "dispatch.")):
        return f"{round(value * 1e6, 3):g} us"
    if "bus_bandwidth." in name:
        return f"{value * 1e-9:.3g} GB/s"
    return f"{value:.3g}"


def write_spec(path: Path, calibration: Calibration) -> None:
    """Write a GPU spec file. Raises ScenarioError when it cannot be written."""
    write_whole(path, spec_text(calibration))


def spec_text(calibration: Calibration) -> str:
    """Return a GPU spec file that a scenario's `gpu` can name; residuals stand at its head."""
    source = f"mist calibrate: {printable(calibration.source)}"
    lines = [f"# Fitted by {source}"]
    lines += [
        f"# {quantity}: {name}, {number} rows, mean error {mean:.1%}, median {median:.1%}"
        for quantity, name, number, mean, median in calibration.report()
    ]
    lines += [f"# {name} is at an end of its range" for name in calibration.at_bound]
    lines += [f"based_on = {toml_string(calibration.base)}", 'confidence = "fitted"']
    parts: dict[str, list[str]] = {}
    for name, value in calibration.values.items():
        part, _, key = _toml_key(name).partition(".")
        text = as_quantity(name, value)
        parts.setdefault(part, []).append(f'{key} = "{text}"' if " " in text else f"{key} = {text}")
    for part, entries in parts.items():
        lines += ["", f"[{part}]", *entries]
    lines += ["", "[sources]"]
    lines += [f"{_toml_key(name)} = {toml_string(source)}" for name in calibration.values]
    return "\n".join(lines) + "\n"


def _toml_key(name: str) -> str:
    """Return a dotted name as TOML takes it, with quotes where a part has a blank."""
    return ".".join(f'"{part}"' if " " in part else part for part in name.split("."))


REQUESTS_PER_USER = 10
GREEDY = Sampling(temperature=0)  # of loads with given lengths


@dataclass(frozen=True, slots=True, kw_only=True)
class LoopProtocol:
    """The drivers of closed loops, and the limits of the engine that served them, greedily.

    think_time: seconds from an answer to the user's next request (>= 0).
    max_num_batched_tokens, max_num_seqs: of the engine; None: the defaults of vLLM's server on the
        GPU.
    tokens_beyond_prompt: if the engine was restarted for each length of prompts with
        max_num_batched_tokens of that length plus this; None: one value for all.
    engine: the version of vLLM that was measured, which says whether host and GPU took turns; None:
        the newest that is known.
    """

    think_time: float = 0.0
    max_num_batched_tokens: int | None = None
    max_num_seqs: int | None = None
    tokens_beyond_prompt: NotNegative[int] | None = None
    engine: str | None = None

    def __post_init__(self) -> None:
        check_fields(self)
        version_of(self.engine)  # refuses names that are not known
        ClosedLoop(concurrency=1, think_time=self.think_time)  # refuses invalid times
        if self.tokens_beyond_prompt is None:
            return
        if self.max_num_batched_tokens is not None:
            raise ValueError(
                "max_num_batched_tokens has no effect together with tokens_beyond_prompt"
            )

    def scheduler(self, gpu: GpuSpec, prompt: int) -> ChunkedScheduler:
        """Return the scheduler of the engine that served prompts of that many tokens.

        Raises ScenarioError for limits that no engine has.
        """
        limits = server_limits(gpu, version=version_of(self.engine))
        tokens = self.max_num_batched_tokens or limits.max_num_batched_tokens
        if self.tokens_beyond_prompt is not None:
            tokens = prompt + self.tokens_beyond_prompt
        seqs = self.max_num_seqs or min(limits.max_num_seqs, tokens)
        try:
            return ChunkedScheduler(max_num_seqs=seqs, max_num_batched_tokens=tokens)
        except ValueError as error:
            raise ScenarioError(str(error)) from None

    def simulated(self, gpu: GpuSpec, model: str, point: tuple[int, ...]) -> tuple[float, float]:
        """Return mean TPOT and mean TTFT in seconds.

        point: tokens of a prompt and of an answer, users, and ranks.
        Raises ScenarioError for a point with requests that the engine cannot serve.
        """
        prompt, output, concurrency, ranks = point
        client = llm_client(
            "llm",
            model=model,
            gpu=gpu,
            engine=self.engine,
            tensor_parallel_size=ranks,
            scheduler=self.scheduler(gpu, prompt),
            sampling=GREEDY,
        )
        number = REQUESTS_PER_USER * concurrency
        users = ClosedLoop(concurrency=concurrency, think_time=self.think_time)
        workload = Workload.from_lists([prompt] * number, [output] * number, arrivals=users)
        summary = Simulation(clients=[client], workload=workload).run().summary
        if summary["failed"]:
            raise ScenarioError(
                f"isl {prompt}, osl {output}, concurrency {concurrency}, tp_size {ranks}: "
                f"{summary['failed']} of {number} requests do not fit into {model} on {gpu.name}; "
                "leave such points out"
            )
        return summary["mean_tpot_ms"] * 1e-3, summary["mean_ttft_ms"] * 1e-3

    def __str__(self) -> str:
        """The differences to the default, for the source of figures."""
        limits = ("max_num_batched_tokens", "tokens_beyond_prompt", "max_num_seqs")
        said = [f"{name} {value}" for name in limits if (value := getattr(self, name)) is not None]
        delay = [f"think_time {self.think_time * 1e3:g} ms"] if self.think_time else []
        version = f"engine {version_of(self.engine).name}"
        return ", ".join([f"{REQUESTS_PER_USER} requests a user", version, *delay, *said])


OF_LOOPS = (
    Figure("overhead.step", 2.5e-3, 0.0, 0.02),
    Figure("overhead.sequence", 2e-5, 0.0, 1e-3),
    Figure("overhead.request", 0.02, 0.0, 0.2),
)
PROMPT_TOKEN = Figure("overhead.prompt_token", 2e-6, 0.0, 1e-4)
_COLUMNS = ("isl", "osl", "concurrency", "tp_size", "silicon_ttft_ms", "silicon_tpot_ms")


def calibrate_closed_loop(
    path: Path, gpu: GpuSpec, model: str, protocol: LoopProtocol | None = None
) -> Calibration:
    """Fit to every second point of each number of ranks, and score the others.

    The time of a prompt's token is fitted where the points to fit have prompts of several lengths,
    which alone tell it from the time of a request.

    Raises ScenarioError for files that are not of the form (see `closed_loop_observations`), and
    for fewer points to fit than figures, and limits that no engine has.
    """
    protocol = protocol or LoopProtocol()
    source = f"{path.name}, {model}, {protocol}"
    figures = _figures(_points(path))
    return calibrate(gpu, figures, closed_loop_observations(path, model, protocol), source)


def closed_loop_observations(path: Path, model: str, protocol: LoopProtocol) -> Observations:
    """Return mean TPOT of every point and then mean TTFT, every second one held out.

    path: CSV of aiconfigurator's form: isl, osl, concurrency, tp_size, silicon_ttft_ms,
    silicon_tpot_ms.

    Raises ScenarioError for columns that are missing, sizes and times that are not > 0, answers of
    one token, which have no TPOT, and fewer points to fit than figures.
    """
    rows = _points(path)
    points = [tuple(map(int, point)) for point in rows[list(_COLUMNS[:4])].to_numpy()]
    number = len(points)
    held_out = rows["held_out"].to_numpy()
    require_rows(held_out, len(_figures(rows)), str(path))

    def predict(spec: GpuSpec, chosen: NDArray[np.bool_]) -> Array:
        wanted = chosen[:number] | chosen[number:]
        means = np.full((2, number), np.nan)
        for position in np.flatnonzero(wanted):
            means[:, position] = protocol.simulated(spec, model, points[position])
        return np.asarray(means.ravel()[chosen])

    return Observations(
        predict,
        measured=rows[["silicon_tpot_ms", "silicon_ttft_ms"]].to_numpy(float).T.ravel() * 1e-3,
        quantity=["mean TPOT"] * number + ["mean TTFT"] * number,
        weight=np.repeat([1.0, 0.5], number),
        held_out=np.tile(held_out, 2),
    )


def _points(path: Path) -> pd.DataFrame:
    """Return the measured points by number of ranks, every second one `held_out`."""
    rows = read_columns(path, _COLUMNS).sort_values("tp_size", kind="stable")
    wrong = (rows[list(_COLUMNS)] <= 0).any(axis=1)
    if wrong.any():
        raise ScenarioError(f"{path}: line {wrong.idxmax()}: lengths, users and times must be > 0")
    single = rows.index[rows["osl"] < 2]
    if len(single):
        raise ScenarioError(
            f"{path}: line {single[0]}: osl must be >= 2, got {rows['osl'][single[0]]}; "
            "an answer of one token has no TPOT, leave such points out"
        )
    return rows.assign(held_out=rows.groupby("tp_size").cumcount() % 2 == 1)


def _figures(points: pd.DataFrame) -> tuple[Figure, ...]:
    """Return the figures that the points to fit can tell apart."""
    lengths = points.loc[~points["held_out"], "isl"]
    return (*OF_LOOPS, PROMPT_TOKEN) if lengths.nunique() > 1 else OF_LOOPS


SETTINGS = (("llama2-70b", "llama-2-70b", (2, 4, 8)), ("bloom-176b", "bloom-176b", (8,)))
HARDWARE = {"a100-80gb-sxm": "a100-80gb", "h100-sxm": "h100-80gb"}
OF_STEPS = (
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
        OF_STEPS,
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
