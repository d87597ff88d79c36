"""An engine's own time, fitted to a measured run: all time of its server but the kernels'."""

from __future__ import annotations

import numpy as np

from mist_sim.errors import ScenarioError
from mist_sim.validation.own_time_search import CHANGE, METRICS, SIZES, Fit, Measured, OwnTime
from mist_sim.validation.runs import MeasuredRun

__all__ = ["OwnTime", "fit_own_time"]

_MILD = 0.1  # relative errors beyond this count less than their square: outliers are measured too
_ENOUGH = 1e-3  # relative change of figures, or of their errors, with which a search is over
_MOST_RUNS = 25  # of the search; each simulates once a figure and once more


def fit_own_time(run: MeasuredRun) -> OwnTime:
    """Fit `overhead` of a run's engines to its TTFT and TPOT by least squares of logarithms.

    Every second request is held out and scored. Of engines that schedule asynchronously the exposed
    time is fitted, of others that of every step; `request` holds the whole front end. The time of a
    sequence and of a prompt's token are fitted where the load and the prompts vary enough to tell.

    Raises ScenarioError for a run without single requests and without means of TTFT and TPOT, for
    one without engines, and where no request finishes in the simulation.
    """
    from scipy.optimize import least_squares

    if run.scenario is None:
        raise ScenarioError(f"{run.name}: has no scenario to fit; give a folder with a run.yaml")
    measured = _measured(run)
    fit = Fit(run.scenario, measured)
    sizes = np.array([SIZES[name] for name in fit.names])
    best = least_squares(
        fit.shifted_residuals,
        fit.start() + sizes,  # so that a step of the search has a size where a figure is near 0
        bounds=(sizes, np.inf),
        x_scale=sizes,
        diff_step=np.full(len(sizes), CHANGE),
        loss="soft_l1",
        f_scale=_MILD,
        xtol=_ENOUGH,
        ftol=_ENOUGH,
        max_nfev=_MOST_RUNS,
    )
    return fit.found(np.asarray(best.x) - sizes)


def _measured(run: MeasuredRun) -> Measured:
    if run.requests is not None:
        ids = run.requests.index.to_numpy()
        seconds = {metric: run.requests[metric].to_numpy(float) for metric in METRICS}
        return Measured(seconds, ids, np.arange(len(ids)) % 2 == 0)
    summary = run.summary or {}
    needed = [f"mean_{metric}_ms" for metric in METRICS]
    if missing := [key for key in needed if not summary.get(key)]:
        raise ScenarioError(
            f"{run.name}: calibrate run needs requests, or a summary with {' and '.join(needed)}; "
            f"missing: {', '.join(missing)}"
        )
    seconds = {
        metric: np.array([summary[key] * 1e-3]) for metric, key in zip(METRICS, needed, strict=True)
    }
    return Measured(seconds, None, np.array([True]))
