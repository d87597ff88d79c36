"""Regressions of step times: an ensemble for each stage, compiled to a grid (MIST §IV-A).

A member is a regressor from scikit-learn over a baseline that is linear in the work, trained on
the logarithm of measured / baseline. So times stay positive, errors count as shares, and far from
all measurements the baseline is left. Each member leaves out its own, fixed part of the measured
points: every k-th in their order by size. The ensemble is their geometric mean.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import nnls

from mist_sim.calibration.regression.measured_steps import Array, MeasuredSteps
from mist_sim.hardware.predictors.external.installed import installed_version

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
    noise = [_noise_of_median(same) for same in repeats]
    return StageData(stage, distinct, np.asarray(medians), np.asarray(noise))


def _noise_of_median(seconds: Array) -> float:
    """Variance of the logarithm of the median: pi / 2 of that of a mean of normal values."""
    if len(seconds) < 2:
        return 0.0
    return float(np.pi / 2 * np.var(np.log(seconds), ddof=1) / len(seconds))


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
