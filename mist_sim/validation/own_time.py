"""An engine's own time, fitted to a measured run: all time of its server but the kernels'."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from mist_sim.core.result_warnings import ResultWarning
from mist_sim.errors import ScenarioError
from mist_sim.scenario import Scenario
from mist_sim.scenario.build import build
from mist_sim.validation.runs import MeasuredRun

if TYPE_CHECKING:
    import pandas as pd

    from mist_sim.metrics import Result

Array = NDArray[np.float64]

METRICS = ("ttft", "tpot")
SIZES = {  # s: of usual figures, which steps of the search go by
    "step": 2e-3,
    "exposed_step": 2e-3,
    "sequence": 5e-5,
    "exposed_sequence": 5e-5,
    "request": 5e-3,
    "prompt_token": 5e-6,
}
CHANGE = 0.05  # by which a figure is changed to see its effect: single steps make less a noise
_SHARES = (1.0, 0.5, 0.25)  # of what lacks, to begin at
_GROUP = 8  # requests of a group, where there are enough
_FEWEST_GROUPS, _MOST_GROUPS = 4, 16  # the fewest tell every figure
_LEAST_SPREAD = 1e-3  # of logarithms, so that a run without chance has weights, too
_NOTHING = 1e-9  # s: less is none
_WORSE = 1.01  # times an error before the fit, from which on it is called worse after it
_SHORT_OF = 0.05  # of a latency: a simulation that is so much slower has too slow steps
_CHOICES = {True: ("exposed_step", "exposed_sequence"), False: ("step", "sequence")}


@dataclass(frozen=True, kw_only=True)
class OwnTime:
    """Figures that were fitted.

    seconds: by option of `overhead`. overrides: of the scenario, as `--set` takes them. scenario:
    with them. errors: by metric, shares by which the mean of single requests was off: before, and
    after of those that were fitted and of those that were not (None without any).
    lone: seconds until the first token of a request of median lengths that is alone, and seconds
    a token after it. notes: what the run does not tell, in sentences. warnings: of a run with them.
    """

    seconds: Mapping[str, float]
    overrides: Mapping[str, Any]
    scenario: Scenario
    errors: Mapping[str, tuple[float, float, float | None]]
    lone: tuple[float, float | None]
    notes: tuple[str, ...]
    warnings: tuple[ResultWarning, ...]


@dataclass(frozen=True)
class Measured:
    """Seconds by metric, of single requests (`ids`) or means of all (no ids). chosen: to fit."""

    seconds: Mapping[str, Array]
    ids: NDArray[np.int64] | None
    chosen: NDArray[np.bool_]


class Fit:
    """A scenario whose engines' own time is searched.

    names: of the figures that are fitted, as options of `overhead`. Raises ScenarioError without
    engines, and where no measured request finishes in the simulation.
    """

    def __init__(self, scenario: Scenario, measured: Measured) -> None:
        self._scenario, self._measured = scenario, measured
        engines = {
            number: client.engine
            for number, client in enumerate(scenario.clients)
            if client.engine is not None
        }
        self._engines = list(engines)
        if not self._engines:
            raise ScenarioError("calibrate run needs a client of type llm, whose time is fitted")
        first = engines[self._engines[0]]
        self._step, self._sequence = _CHOICES[bool(first.async_scheduling)]
        nothing = dict.fromkeys((self._step, "request", self._sequence, "prompt_token"), 0.0)
        unfitted = self._simulated(scenario)
        self._before = self._errors(unfitted)
        self._before_held_out = self._errors(unfitted, held_out=True)
        self._bare = self._simulated(self._with(nothing))
        self._load = _under_way(self._bare, measured)
        self.names = (self._step, "request", *self._told())
        self._groups = self._grouped()
        self._weights = dict.fromkeys(METRICS, 1.0)

    def _told(self) -> Iterator[str]:
        """Yield the figures that only runs at several loads determine."""
        if self._measured.ids is None:
            return
        load = np.percentile(self._load, (10, 90))
        if load[1] >= 2 * load[0] and load[1] - load[0] >= 4:
            yield self._sequence
        prompts = np.percentile(self._bare["num_prompt_tokens"], (10, 90))
        if prompts[1] >= 1.5 * prompts[0]:
            yield "prompt_token"

    def _grouped(self) -> dict[str, list[NDArray[np.int64]]]:
        """Return the places of the requests to fit, in groups of like prompts and of like load."""
        if self._measured.ids is None:
            return {metric: [np.zeros(1, dtype=np.int64)] for metric in METRICS}
        places = np.flatnonzero(self._measured.chosen)
        number = min(_MOST_GROUPS, max(len(places) // _GROUP, _FEWEST_GROUPS), len(places))
        along = {"ttft": self._bare["num_prompt_tokens"].to_numpy(float), "tpot": self._load}
        return {
            metric: np.array_split(places[np.argsort(by[places], kind="stable")], number)
            for metric, by in along.items()
        }

    def start(self) -> Array:
        """Return where the search begins: at what the bare simulation lacks, by load and prompt."""
        lack = {
            metric: real - self._of(self._bare, metric)
            for metric, real in self._measured.seconds.items()
        }
        single = self._measured.ids is not None
        load = self._load if single else np.ones(1)
        prompts = self._bare["num_prompt_tokens"].to_numpy(float) if single else np.ones(1)
        found = _line(lack["tpot"], (self._step, self._sequence), load, self.names)
        rest = lack["ttft"] - found[self._step]
        found |= _line(rest, ("request", "prompt_token"), prompts, self.names)
        first = np.array([found[name] for name in self.names])
        # slower steps are shared by more requests, so that all of the lack may be too much
        start = min(
            (first * share for share in _SHARES),
            key=lambda values: float(np.abs(self.residuals(values)).sum()),
        )
        self._weights = self._weighed(start)
        return start

    def _weighed(self, values: Array) -> dict[str, float]:
        """Return weights of the metrics: the less chance is in one, the more it counts.

        TTFT depends on when in a step a request arrives, which TPOT does not.
        """
        logs = self._logs(values)
        spreads = {
            metric: max(_LEAST_SPREAD, _spread(logs[metric], groups))
            for metric, groups in self._groups.items()
        }
        return {metric: min(spreads.values()) / spread for metric, spread in spreads.items()}

    def residuals(self, values: Array) -> Array:
        """Return mean logarithms of simulated over measured, by groups of the requests to fit.

        TTFT is grouped by prompt, TPOT by load: which requests share a step is chance. Each has the
        weight of its metric.
        """
        pieces = []
        for metric, logs in self._logs(values).items():
            for group in self._groups[metric]:
                known = logs[group][np.isfinite(logs[group])]
                pieces.append(self._weights[metric] * known.mean() if len(known) else 0.0)
        return np.array(pieces)

    def _logs(self, values: Array) -> dict[str, Array]:
        """Return logarithms of simulated over measured, by metric."""
        result = self._simulated(self._with(dict(zip(self.names, values, strict=True))))
        with np.errstate(divide="ignore", invalid="ignore"):
            return {
                metric: np.log(self._of(result, metric) / real)
                for metric, real in self._measured.seconds.items()
            }

    def found(self, values: Array) -> OwnTime:
        """Return the result for fitted values, with two digits fewer than they have."""
        seconds = {
            name: float(f"{value:.4g}") if value >= _NOTHING else 0.0
            for name, value in zip(self.names, values.tolist(), strict=True)
        }
        scenario = self._with(seconds)
        run = build(scenario).run()
        result = self._of_measured(run)
        after, held_out = self._errors(result), self._errors(result, held_out=True)
        errors = {
            name: (self._before[name], after[name], held_out.get(name))
            for name in after
            if name in self._before
        }
        return OwnTime(
            seconds=seconds,
            overrides=self._overrides(seconds),
            scenario=scenario,
            errors=errors,
            lone=self._lone(scenario),
            notes=(*self._worse(after, held_out), *self._notes(seconds, result)),
            warnings=run.warnings,
        )

    def _with(self, seconds: Mapping[str, float]) -> Scenario:
        return self._scenario.changed(self._overrides(seconds))

    def _overrides(self, seconds: Mapping[str, float]) -> dict[str, Any]:
        return {
            f"clients.{number}.overhead.{name}": f"{float(value)!r} s"
            if value >= _NOTHING
            else "0 s"
            for number in self._engines
            for name, value in seconds.items()
        }

    def _simulated(self, scenario: Scenario) -> pd.DataFrame:
        return self._of_measured(build(scenario).run())

    def _of_measured(self, run: Result) -> pd.DataFrame:
        """Return the requests of a run that were measured."""
        result = run.requests.set_index("request_id")
        if self._measured.ids is not None:
            missing = set(self._measured.ids.tolist()) - set(result.index)
            if missing:
                raise ScenarioError(
                    f"request_id {min(missing)} was measured and is not in the workload"
                )
            result = result.loc[self._measured.ids]
        if not (result["status"] == "finished").any():
            raise ScenarioError(
                "no measured request finishes in the simulation; change the scenario to what was "
                "measured"
            )
        return result

    def _of(self, result: pd.DataFrame, metric: str) -> Array:
        values = result[metric].to_numpy(float)
        return values if self._measured.ids is not None else np.array([np.nanmean(values)])

    def _errors(self, result: pd.DataFrame, *, held_out: bool = False) -> dict[str, float]:
        """Return the mean absolute error of single requests, by metric."""
        chosen = ~self._measured.chosen if held_out else self._measured.chosen
        found = {}
        for metric, real in self._measured.seconds.items():
            errors = np.abs(self._of(result, metric) / real - 1)[chosen]
            if np.isfinite(errors).any():
                found[metric] = float(np.nanmean(errors))
        return found

    def _lone(self, scenario: Scenario) -> tuple[float, float | None]:
        """Return TTFT and TPOT of a request of median lengths that is alone."""
        lengths = (int(self._bare[f"num_{kind}_tokens"].median()) for kind in ("prompt", "output"))
        prompt, output = ({"type": "fixed", "tokens": max(1, number)} for number in lengths)
        alone = scenario.changed(
            {
                "workload": {
                    "lengths": {
                        "type": "synthetic",
                        "num_requests": 1,
                        "prompt": prompt,
                        "output": output,
                    },
                    "arrivals": {"type": "all_at_once"},
                }
            }
        )
        row = build(alone).run().requests.iloc[0]
        tpot = float(row["tpot"])
        return float(row["ttft"]), None if np.isnan(tpot) else tpot

    def _worse(self, after: Mapping[str, float], held_out: Mapping[str, float]) -> Iterator[str]:
        """Yield the metrics that the figures make worse: errors after them, by metric."""
        for metric in after:
            told = [
                f"{before[metric]:.1%} before and {now[metric]:.1%} after for the requests {which}"
                for which, before, now in (
                    ("that were fitted", self._before, after),
                    ("held out", self._before_held_out, held_out),
                )
                if now.get(metric, 0.0) > _WORSE * before.get(metric, np.inf)
            ]
            if told:
                yield (
                    f"{metric.upper()} is further off with these figures: {', '.join(told)}; no "
                    "own time explains it: cached prefixes, queues or another load may"
                )

    def _notes(self, seconds: Mapping[str, float], result: pd.DataFrame) -> Iterator[str]:
        for metric, name, kind in (
            ("tpot", self._step, "decodes"),
            ("ttft", "request", "prompts"),
        ):
            ours, real = (
                float(np.nanmedian(values))
                for values in (self._of(result, metric), self._measured.seconds[metric])
            )
            if seconds[name] < SIZES[name] * CHANGE and ours > real * (1 + _SHORT_OF):
                yield (
                    f"{metric.upper()} is {ours * 1e3:.4g} ms in the simulation without own time, "
                    f"and {real * 1e3:.4g} ms at the server: the scenario's steps are too slow; "
                    "correct its gpu, model or predictor, or try the client with "
                    f"step_time_scale: {{{kind}: {real / ours:.3g}}} and compare again, since "
                    "shorter steps leave fewer running"
                )
        untold = [name for name in (self._sequence, "prompt_token") if name not in seconds]
        if untold:
            yield (
                f"not fitted: {', '.join(untold)}; load and prompts of the run vary too little to "
                "tell"
            )


def _under_way(requests: pd.DataFrame, measured: Measured) -> Array:
    """Return how many requests were under way at each arrival, as long as measured."""
    arrivals = requests["arrival_time"].to_numpy(float)
    answers = np.nan_to_num(requests["num_output_tokens"].to_numpy(float) - 1)
    ttft, tpot = (np.nan_to_num(measured.seconds[metric]) for metric in METRICS)
    ends = np.sort(arrivals + ttft + answers * tpot)
    begun = np.searchsorted(np.sort(arrivals), arrivals, "right")
    return np.asarray(begun - np.searchsorted(ends, arrivals, "right"), dtype=np.float64)


def _spread(logs: Array, groups: list[NDArray[np.int64]]) -> float:
    """Return the standard deviation of logarithms from the means of their groups."""
    known = [logs[group][np.isfinite(logs[group])] for group in groups]
    apart = np.concatenate([each - each.mean() for each in known if len(each)] or [np.zeros(1)])
    return float(np.sqrt(np.mean(apart**2)))


def _line(
    lack: Array, names: tuple[str, str], along: Array, told: tuple[str, ...]
) -> dict[str, float]:
    """Return a constant, and a slope if the data determine one, both >= 0, for missing seconds."""
    from scipy.optimize import nnls

    known = np.isfinite(lack)
    if names[1] not in told or known.sum() < 2:
        return {names[0]: max(0.0, float(np.median(lack[known]))) if known.any() else 0.0}
    sides = np.stack([np.ones(known.sum()), along[known]], axis=1)
    constant, slope = nnls(sides, lack[known])[0].tolist()
    return {names[0]: constant, names[1]: slope}


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

    def residuals(shifted: Array) -> Array:
        return fit.residuals(shifted - sizes)

    best = least_squares(
        residuals,
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
