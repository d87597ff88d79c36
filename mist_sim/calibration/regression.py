"""From measured steps to regressions of step times.

Regressions of step times: an ensemble for each stage, compiled to a grid (MIST §IV-A).

A member is a regressor from scikit-learn over a baseline that is linear in the work, trained on
the logarithm of measured / baseline. So times stay positive, errors count as shares, and far from
all measurements the baseline is left. Each member leaves out its own, fixed part of the measured
points: every k-th in their order by size. The ensemble is their geometric mean.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import nnls

from mist_sim.errors import ScenarioError, brief, listed, require_known
from mist_sim.hardware import load_gpu
from mist_sim.hardware.predictors.external import installed_version
from mist_sim.hardware.predictors.measured.regression import FORMAT, VERSION
from mist_sim.hardware.tables.base import read_columns
from mist_sim.hardware.tables.steps import COLUMNS, read_rows
from mist_sim.models import load_model
from mist_sim.output import write_whole

if TYPE_CHECKING:
    import pandas as pd


Array = NDArray[np.float64]

_AGREES = 0.2  # end to end against its parts; more means that a batch did not run at once
_SPLITWISE_TOKENS = 128  # with longer answers the file does not say how many were generated
_POINT = ["prompt_size", "batch_size"]
_TIMES = ["prompt_time", "token_time", "e2e_time"]  # milliseconds


@dataclass(frozen=True, kw_only=True)
class MeasuredSteps:
    """Steps of one model on so many GPUs of one kind; arrays of shape (number of steps,).

    num_new_tokens: prompt tokens of each step. num_pairs: pairs of query and key in the attention
    of those. num_decodes, context_sum: as in `StepBatch`. seconds: how long each step took.
    """

    num_new_tokens: Array
    num_pairs: Array
    num_decodes: Array
    context_sum: Array
    seconds: Array

    def of(self, chosen: NDArray[np.bool_]) -> MeasuredSteps:
        """Return some of the steps."""
        return MeasuredSteps(**{name: getattr(self, name)[chosen] for name in self.__annotations__})

    @property
    def with_prompts(self) -> NDArray[np.bool_]:
        """The steps that have prompts, as booleans."""
        return self.num_new_tokens > 0


def read_splitwise(
    path: Path, subset: str, tensor_parallel_size: int, *, medians: bool = False
) -> tuple[MeasuredSteps, list[str]]:
    """Return the steps of one setting of Splitwise's file, and remarks on omitted rows.

    A row gives a step of `batch_size` prompts, and one of as many decodes halfway through 128
    answers. Rows are left out if their median end-to-end time is far from prompt plus tokens: their
    batch did not fit in memory and ran in parts.

    medians: combine all rows of a point into one step with their median time.
    subset: MODEL/HARDWARE as in the file.
    Raises ScenarioError for files of another form.
    """
    rows, remarks = _run_at_once(_rows_of(path, subset, tensor_parallel_size))
    if medians:
        rows = rows.groupby(_POINT)[_TIMES].median().reset_index()
    size, batch = (rows[name].to_numpy(float) for name in _POINT)
    none = np.zeros(len(rows))
    prefill, decode = (rows[name].to_numpy(float) * 1e-3 for name in ("prompt_time", "token_time"))
    steps = MeasuredSteps(
        num_new_tokens=np.append(size * batch, none),
        num_pairs=np.append(batch * size * (size + 1) / 2, none),
        num_decodes=np.append(none, batch),
        context_sum=np.append(none, batch * (size + _SPLITWISE_TOKENS / 2)),
        seconds=np.append(prefill, decode),
    )
    return steps, remarks


def _rows_of(path: Path, subset: str, tensor_parallel_size: int) -> pd.DataFrame:
    """Return the rows of one setting. Raises ScenarioError if the file has none."""
    numbers = ["tensor_parallel", *_POINT, "token_size", *_TIMES]
    rows = read_columns(path, numbers, ["model", "hardware"])
    names = rows["model"] + "/" + rows["hardware"]
    known = sorted(set(names))
    require_known(subset, known, f"{path}: has no", f"Known: {listed(known)}")
    rows = rows[(names == subset) & (rows["token_size"] == _SPLITWISE_TOKENS)]
    ranks = sorted(set(rows["tensor_parallel"]))
    if tensor_parallel_size not in ranks:
        raise ScenarioError(
            f"{path}: {subset} has no rows of tensor_parallel_size {tensor_parallel_size}, only of "
            f"{listed(f'{size:g}' for size in ranks)}"
        )
    return rows[rows["tensor_parallel"] == tensor_parallel_size]


def _run_at_once(rows: pd.DataFrame) -> tuple[pd.DataFrame, list[str]]:
    """Return the rows whose batch ran in one part, and remarks on the others."""
    usual = rows.groupby(_POINT)[_TIMES].transform("median")
    parts = usual["prompt_time"] + (_SPLITWISE_TOKENS - 1) * usual["token_time"]
    at_once = (usual["e2e_time"] / parts - 1).abs() <= _AGREES
    left_out = rows[~at_once].drop_duplicates(_POINT)
    remarks = [
        f"left out {row.batch_size:g} prompts of {row.prompt_size:g} tokens, "
        "which did not run at once"
        for row in left_out.sort_values(_POINT).itertuples()
    ]
    return rows[at_once], remarks


def read_steps(path: Path) -> tuple[MeasuredSteps, dict[str, str]]:
    """Return the steps of a file in the form of our own (see `tables.steps`), and its notes.

    Raises ScenarioError for files that are not of the form.
    """
    rows, notes = read_rows(path)
    new, context, decodes, context_sum, seconds = (rows[name].to_numpy(float) for name in COLUMNS)
    wrong = (seconds <= 0) | (new + decodes == 0)
    if wrong.any():
        raise ScenarioError(f"{path}: row {int(np.argmax(wrong)) + 1} is no measured step")
    steps = MeasuredSteps(
        num_new_tokens=new,
        num_pairs=new * (context + (new + 1) / 2),
        num_decodes=decodes,
        context_sum=context_sum,
        seconds=seconds,
    )
    return steps, notes


Points = NDArray[np.float64]  # shape (number of points, 2): tokens or decodes, mean context

NUM_MEMBERS = 12
_FEW = 400  # up to so many points a Gaussian process is quick and smooth; then trees
# Doublings of tokens, and of context, over which times resemble one another; chosen once on
# Splitwise's settings, see docs/background/calibration.md.
_REACH = {"prefill": (1.0, 8.0), "decode": (4.0, 8.0)}
_NOISE = 1e-3  # variance of log times, beyond that of repeated measurements
_NODES = 64  # most nodes of an axis
_ONE_BY_ONE = 60  # most points that are held out one by one
_PARTS = 5  # in which more points are held out
_COLLINEAR = 0.02  # doublings; (n + 1) / 2 is nearly n / 2


@dataclass(frozen=True)
class StageData:
    """Measured points of one stage and their seconds; repeated points as their median.

    noise: variance of the logarithm of that median, as far as repeated measurements show it.
    """

    stage: str
    points: Points
    seconds: Array
    noise: Array

    def without(self, chosen: NDArray[np.bool_]) -> StageData:
        """Return all other points."""
        kept = ~chosen
        return StageData(self.stage, self.points[kept], self.seconds[kept], self.noise[kept])


def stage_data(stage: str, points: Points, seconds: Array) -> StageData:
    """Return distinct points in order of size."""
    distinct, where = np.unique(points, axis=0, return_inverse=True)
    repeats = [seconds[where.ravel() == i] for i in range(len(distinct))]
    medians = [np.median(same) for same in repeats]
    noise = [  # pi / 2 of the variance of a mean of normal values
        np.pi / 2 * np.var(np.log(same), ddof=1) / len(same) if len(same) > 1 else 0.0
        for same in repeats
    ]
    return StageData(stage, distinct, np.asarray(medians), np.asarray(noise))


def decode_data(steps: MeasuredSteps) -> StageData:
    """Return the steps without prompts, by decodes and their mean context."""
    chosen = steps.of(~steps.with_prompts)
    points = np.stack([chosen.num_decodes, chosen.context_sum / chosen.num_decodes], axis=1)
    return stage_data("decode", points, chosen.seconds)


def prefill_data(steps: MeasuredSteps, decode: Callable[[Points], Array]) -> StageData:
    """Return the steps with prompts, by tokens and mean context per prompt token.

    decode: seconds of decodes alone, to subtract the part of decodes' contexts.
    """
    chosen = steps.of(steps.with_prompts)
    points = np.stack(
        [chosen.num_new_tokens + chosen.num_decodes, chosen.num_pairs / chosen.num_new_tokens],
        axis=1,
    )
    seconds = chosen.seconds.copy()
    mixed = chosen.num_decodes > 0
    if mixed.any():
        n = chosen.num_decodes[mixed]
        means = chosen.context_sum[mixed] / n
        added = decode(np.stack([n, means], axis=1)) - decode(np.stack([n, 0 * n], axis=1))
        seconds[mixed] = np.maximum(seconds[mixed] - added, seconds[mixed] / 2)
    return stage_data("prefill", points, seconds)


# --- members ----------------------------------------------------------------------------------


def fit_ensemble(data: StageData) -> Callable[[Points], Array]:
    """Return the predictions of members trained on some points, in seconds."""
    number = min(NUM_MEMBERS, len(data.points))
    every = np.arange(len(data.points)) % number
    parts = [data] if len(data.points) < 3 else [data.without(every == k) for k in range(number)]
    members = [_fit_member(part) for part in parts]

    def predict(points: Points) -> Array:
        logs = np.mean([np.log(member(points)) for member in members], axis=0)
        return np.asarray(np.exp(logs))

    return predict


def _fit_member(data: StageData) -> Callable[[Points], Array]:
    baseline = _fit_baseline(data)
    regressor = _regressor(data)
    logs = np.log(data.seconds / baseline(data.points))
    regressor.fit(_features(data.points), logs)

    def predict(points: Points) -> Array:
        share = np.exp(regressor.predict(_features(points)))
        return np.asarray(baseline(points) * share)

    return predict


def _fit_baseline(data: StageData) -> Callable[[Points], Array]:
    """Fit seconds as a constant plus a time per token and a time per token of context.

    Tokens beyond the (geometric) middle of the measured range may take longer.
    """
    smallest, largest = data.points[:, 0].min(), data.points[:, 0].max()
    middle = float(np.sqrt(max(smallest, 1.0) * largest))

    def work(points: Points) -> Points:
        tokens, context = points.T
        more = np.maximum(tokens - middle, 0.0)
        return np.stack([np.ones(len(points)), tokens, more, tokens * context], axis=1)

    terms = work(data.points)
    scale = terms.max(axis=0)
    scale[scale == 0] = 1.0
    weights, _ = nnls(terms / scale / data.seconds[:, np.newaxis], np.ones(len(terms)))
    least = 0.1 * float(data.seconds.min())
    return lambda points: np.maximum(work(points) / scale @ weights, least)


def _regressor(data: StageData) -> Any:
    """Return an untrained regressor that suits the number of points."""
    installed_version("scikit-learn", extra="fit")
    if len(data.points) > _FEW:
        from sklearn.ensemble import GradientBoostingRegressor

        return GradientBoostingRegressor(min_samples_leaf=5, random_state=0)
    from sklearn.gaussian_process import GaussianProcessRegressor
    from sklearn.gaussian_process.kernels import RBF, DotProduct

    # the product lets a trend go on; the rest is local
    kernel = RBF(_REACH[data.stage]) + 0.3 * DotProduct(sigma_0=1.0)
    return GaussianProcessRegressor(kernel, alpha=_NOISE + data.noise, optimizer=None)


def _features(points: Points) -> Points:
    return np.asarray(np.log2(points + 1.0))


# --- errors -----------------------------------------------------------------------------------


@dataclass(frozen=True)
class HeldOut:
    """Relative errors of points held out from the ensemble.

    inside: points that lie between others; the rest are at the edge of the measured range.
    """

    errors: Array
    inside: NDArray[np.bool_]


def held_out(data: StageData) -> HeldOut:
    """Return the error of every point, each predicted without it; many points in 5 parts."""
    number = len(data.points)
    if number < 3:
        return HeldOut(np.full(number, np.nan), np.zeros(number, dtype=bool))
    fold = np.arange(number) % (number if number <= _ONE_BY_ONE else _PARTS)
    errors = np.empty(number)
    for k in range(fold.max() + 1):
        chosen = fold == k
        found = fit_ensemble(data.without(chosen))(data.points[chosen])
        errors[chosen] = found / data.seconds[chosen] - 1
    inside = [_between_others(_features(data.points), i) for i in range(number)]
    return HeldOut(errors, np.array(inside))


def _between_others(points: Points, position: int) -> bool:
    """Tell whether a point is a weighted mean of other points."""
    others = np.delete(points, position, axis=0)
    terms = np.vstack([others.T, np.full(len(others), 100.0)])
    _, distance = nnls(terms, np.append(points[position], 100.0))
    return bool(distance < _COLLINEAR)


# --- compiling --------------------------------------------------------------------------------


def compiled(data: StageData, predict: Callable[[Points], Array]) -> dict[str, Any]:
    """Return the grid of a stage, as the file holds it.

    Nodes are the measured sizes and the middles between them, at most 64 an axis.
    """
    tokens, contexts = (_nodes(axis) for axis in data.points.T)
    mesh = np.stack([axis.ravel() for axis in np.meshgrid(tokens, contexts, indexing="ij")], axis=1)
    seconds = predict(mesh).reshape(len(tokens), len(contexts))
    return {
        "tokens": tokens.tolist(),
        "contexts": contexts.tolist(),
        "seconds": seconds.tolist(),
        "measured_contexts": [_top(data.points, node) for node in tokens],
    }


def _nodes(values: Array) -> Array:
    measured = np.unique(values)
    if len(measured) > _NODES // 2:
        picked = np.linspace(0, len(measured) - 1, _NODES // 2).round().astype(int)
        measured = measured[picked]
    middles = np.exp2((np.log2(measured[1:] + 1) + np.log2(measured[:-1] + 1)) / 2) - 1
    return np.unique(np.append(measured, middles))


def _top(points: Points, node: float) -> float:
    """The longest context measured with about as many tokens: fewer and more, the smaller one."""
    tokens = points[:, 0]
    below, above = tokens[tokens <= node].max(), tokens[tokens >= node].min()
    return float(min(points[tokens == side, 1].max() for side in (below, above)))


def pooled(errors: Sequence[Array]) -> dict[str, float]:
    """Return mean and median of absolute relative errors; NaN of none."""
    joined = np.abs(np.concatenate([*errors, np.empty(0)]))
    if not len(joined):
        return {"mean": float("nan"), "median": float("nan"), "points": 0}
    return {
        "mean": float(joined.mean()),
        "median": float(np.median(joined)),
        "points": len(joined),
    }


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
    require_known(form, FORMS, "format has no")
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
        **asdict(setting),
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
