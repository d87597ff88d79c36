"""Methods that learn which configurations to try: TPE and NSGA-II, as Optuna has them.

TPE: Bergstra et al., NeurIPS 2011. NSGA-II: Deb et al., IEEE Transactions on Evolutionary
Computation 6, 2002. Optuna: Akiba et al., KDD 2019.

A model of configurations' figures, which proposes the next tries to a learning method.

Each value of an axis has a factor, independent of the other axes: the logarithm of a figure is a
sum of one effect an axis (Scheffé, The Analysis of Variance, 1959, chapter 4), found by ridge
regression. A number that was not tried yet has the effect that a line through its tried neighbours
gives it; another value counts as the best tried one of its axis, so that it is tried, too
(optimism: Lai and Robbins, Advances in Applied Mathematics 6, 1985). A method whose proposals are
mixed with those of a model takes fewer runs (surrogate-assisted search: Jin, Swarm and Evolutionary
Computation 1, 2011).
"""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil, inf, isnan
from typing import Any
from warnings import catch_warnings, simplefilter

import numpy as np
from numpy.typing import NDArray

from mist_sim.errors import ScenarioError
from mist_sim.report.elements import setting_cells
from mist_sim.rng import Streams
from mist_sim.search.spaces.evaluation import Evaluation
from mist_sim.search.spaces.space import Configuration

Array = NDArray[np.float64]
Places = NDArray[np.int64]

_RIDGE = 0.1  # runs' worth of doubt about each effect: a value that was seen once keeps most of it
_LOST = 0.5  # logarithm by which broken constraints count as worse than the worst feasible figure


def predicted(places: Places, tried: Places, values: Array, is_ordered: NDArray[np.bool_]) -> Array:
    """Return the model's predictions for all configurations: lower is better.

    places: of all, one row each, a whole number per axis. tried: rows of those that were run.
    values: theirs, lower is better (>= 0); infinite for one that breaks a constraint. is_ordered:
    which axes are numbers.
    """
    known = np.isfinite(values) & (values > 0)
    if not known.any():
        return np.zeros(len(places))
    logs = np.log(np.where(known, values, 1.0))
    low, high = logs[known].min(), logs[known].max()
    logs = np.where(values == 0, low, np.where(known, logs, high + _LOST))
    rows = _indicators(places)
    mean = float(logs.mean())
    seen = rows[tried]
    weights = seen.T @ seen + _RIDGE * np.eye(rows.shape[1])
    effects = np.linalg.solve(weights, seen.T @ (logs - mean))
    first = 0
    for axis, ordered in enumerate(is_ordered):
        of_axis = slice(first, first + len(np.unique(places[:, axis])))
        guess = _on_lines if ordered else _as_the_best
        effects[of_axis] = guess(effects[of_axis], np.flatnonzero(seen[:, of_axis].sum(axis=0)))
        first = of_axis.stop
    return np.asarray(mean + rows @ effects)


def _as_the_best(effects: NDArray[Any], seen: Places) -> NDArray[Any]:
    """Return an axis's effects, those of unseen values as low as the lowest of the seen."""
    found = np.full_like(effects, effects[seen].min())
    found[seen] = effects[seen]
    return found


def _on_lines(effects: NDArray[Any], seen: Places) -> NDArray[Any]:
    """Return an axis's effects, those of unseen numbers on a line through the nearest two seen."""
    if len(seen) < 2:
        return effects
    found = effects.copy()
    for place in sorted({*range(len(effects))} - {*seen.tolist()}):
        after = int(np.clip(np.searchsorted(seen, place), 1, len(seen) - 1))
        left, right = seen[after - 1], seen[after]
        slope = (effects[right] - effects[left]) / (right - left)
        found[place] = effects[left] + slope * (place - left)
    return found


def _indicators(places: Places) -> Array:
    """Return a column for each value of each axis, 1 where a configuration has it."""
    columns = [places[:, [axis]] == np.unique(places[:, axis]) for axis in range(places.shape[1])]
    return np.concatenate(columns, axis=1).astype(float)


_DIRECTIONS = {"more": "maximize", "less": "minimize"}
_GENERATIONS = 8  # of so few runs, for a single best; measured, see docs/background/verdicts.md
_SMALLEST = 3  # configurations of a population, of which two are parents
_PATIENCE = 20  # times that a method is asked for a configuration which it did not have yet
_SMALL = 1e-9
_OF_MODEL = 0.5  # share of later tries proposed by the model
# cost of a configuration that keeps no limit, or has no figure
_WORST = {"more": 0.0, "less": 1e12}


def sample(
    method: str,
    left: Sequence[Configuration],
    evaluation: Evaluation,
    most: int,
    side_by_side: int,
    seed: int,
) -> None:
    """Evaluate a number of configurations, as a method proposes them.

    The first ones are random; where bounds are known, half of them are those with the best bounds.
    Later a model fitted to the results so far (`predicted`) proposes half of the configurations.
    A configuration that a method asks for again is not run, and the method is asked anew; where it
    insists, and for what is no configuration, it gets the nearest that was not tried, and learns of
    that one.
    left: what can be tried, the most promising first. side_by_side: asked for at most at a time.
    Raises ScenarioError without Optuna.
    """
    optuna = _optuna()
    most = min(most, len(left))
    size = _size(method, most, side_by_side, len(evaluation.objectives))
    sampling = _Sampling(optuna, left, evaluation, _sampler(optuna, method, seed, size))
    begin = 2 * size if method == "nsga2" else size
    number = min(begin, side_by_side, most)
    sampling.run(number, range(min(begin // 2, number)) if evaluation.races else ())
    weights = Streams(seed).generator("weights")
    while (number := min(most - int(sampling.tried.sum()), size, side_by_side)) > 0:
        sampling.run(number, sampling.promising(ceil(number * _OF_MODEL), weights))


def _size(method: str, most: int, side_by_side: int, num_objectives: int) -> int:
    """Return how many configurations a method asks for before it learns from them.

    Few runs take a small population, or they end before there is a third generation; a front takes
    a larger one than a single best.
    """
    if method != "nsga2":
        return side_by_side
    return max(most // (_GENERATIONS if num_objectives == 1 else _GENERATIONS // 2), _SMALLEST)


def _optuna() -> Any:
    """Return Optuna. Raises ScenarioError where it is not installed."""
    try:
        import optuna
    except ImportError:
        raise ScenarioError(
            "methods tpe and nsga2 take Optuna, which is not installed: pip install "
            "'mist-sim[search]'; --method exhaustive needs nothing"
        ) from None
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    return optuna


def _sampler(optuna: Any, method: str, seed: int, size: int) -> Any:
    if method == "nsga2":
        return optuna.samplers.NSGAIISampler(seed=seed, population_size=size)
    with catch_warnings():
        simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
        return optuna.samplers.TPESampler(
            seed=seed, n_startup_trials=size, multivariate=True, constant_liar=True
        )


class _Sampling:
    """Configurations, by their numbers, which a method asks for as positions on axes.

    Axes are the varied keys, the kind of design, and the one of a kind. Numbers keep their order;
    other values are categories, equally far apart. tried: which were tried.
    """

    def __init__(
        self, optuna: Any, several: Sequence[Configuration], evaluation: Evaluation, sampler: Any
    ) -> None:
        self._optuna, self._several, self._evaluation = optuna, several, evaluation
        found = [_axes_of(each) for each in several]
        self._values = {key: sorted({each[key] for each in found}, key=_order) for key in found[0]}
        self._is_ordered = np.array(
            [all(isinstance(v, int | float) for v in values) for values in self._values.values()]
        )
        index = {key: {v: k for k, v in enumerate(each)} for key, each in self._values.items()}
        self._places = np.array([[index[key][v] for key, v in each.items()] for each in found])
        self.tried = np.zeros(len(several), dtype=bool)
        of = optuna.distributions
        self._distributions = {
            key: of.IntDistribution(0, len(values) - 1)
            if is_ordered
            else of.CategoricalDistribution(list(range(len(values))))
            for (key, values), is_ordered in zip(
                self._values.items(), self._is_ordered, strict=True
            )
        }
        directions = [_DIRECTIONS[each.better] for each in evaluation.objectives]
        self._study = optuna.create_study(directions=directions, sampler=sampler)

    def run(self, number: int, proposed: Sequence[int]) -> None:
        """Try a number of configurations, and report all of them to the method.

        proposed: the first of them. If another one is tried than the method asks for, it learns of
        that one.
        """
        asked = []
        for k in range(number):
            is_proposed = k < len(proposed)
            trial, chosen = (self._ask(), proposed[k]) if is_proposed else self._next()
            self.tried[chosen] = True
            asked.append((trial, chosen))
        self._evaluation.run([self._several[chosen] for _, chosen in asked])
        for trial, chosen in asked:
            self._tell(trial, chosen)

    def _ask(self) -> Any:
        return self._study.ask(self._distributions)

    def _next(self) -> tuple[Any, int]:
        """Return a trial, and the configuration for it."""
        for _ in range(_PATIENCE):
            trial = self._ask()
            if not self.tried[int(np.argmin(self._distances(trial.params)))]:
                break
            self._study.tell(trial, state=self._optuna.trial.TrialState.FAIL)
        else:
            trial = self._ask()
        left = np.where(self.tried, np.inf, self._distances(trial.params))
        return trial, int(np.argmin(left))

    def _tell(self, trial: Any, chosen: int) -> None:
        """Report a result at the configuration's own position, which may not be the proposed one.

        An added trial keeps the method's own notes, such as the generation, without which it
        belongs to no population.
        """
        row = self._places[chosen]
        place = {key: int(where) for key, where in zip(self._values, row, strict=True)}
        values = self._learnt(chosen)
        if trial.params == place:
            self._study.tell(trial, values)
            return
        noted = self._study.trials[trial.number].system_attrs
        self._study.tell(trial, state=self._optuna.trial.TrialState.FAIL)
        self._study.add_trial(
            self._optuna.trial.create_trial(
                params=place,
                distributions=self._distributions,
                values=values,
                system_attrs=dict(noted),
            )
        )

    def _learnt(self, chosen: int) -> list[float]:
        """Return the values that a method learns: the objectives, or the worst possible."""
        each = self._several[chosen]
        is_lost = each.status in ("excluded", "failed") and isnan(each.guess)
        found = []
        for objective in self._evaluation.objectives:
            value = self._evaluation.value(each, objective)
            found.append(_WORST[objective.better] if is_lost or isnan(value) else value)
        return found

    def _costs(self, chosen: int) -> list[float]:
        """Return a configuration's cost for each objective: lower is better."""
        costs = []
        values = zip(self._learnt(chosen), self._evaluation.objectives, strict=True)
        for value, each in values:
            cost = value if each.better == "less" or not value else 1 / value
            costs.append(inf if value == _WORST[each.better] else cost)
        return costs

    def promising(self, number: int, rng: np.random.Generator) -> list[int]:
        """Return the most promising untried configurations, by a model of those tried.

        With several objectives, each proposal draws new weights for them.
        """
        tried = np.flatnonzero(self.tried)
        costs = np.array([self._costs(chosen) for chosen in tried.tolist()])
        told = np.array([predicted(self._places, tried, c, self._is_ordered) for c in costs.T])
        told -= told.min(axis=1, keepdims=True)
        told /= np.maximum(told.max(axis=1, keepdims=True), _SMALL)
        left = ~self.tried
        found = []
        for _ in range(min(number, int(left.sum()))):
            weights = rng.dirichlet(np.ones(len(told)))
            found.append(int(np.argmin(np.where(left, weights @ told, np.inf))))
            left[found[-1]] = False
        return found

    def _distances(self, place: dict[str, int]) -> Array:
        """Return how far all configurations are from a place."""
        found = np.zeros(len(self._several))
        axes = zip(self._values.items(), self._is_ordered, self._places.T, strict=True)
        for (key, values), is_ordered, places in axes:
            apart = np.abs(places - place[key])
            found += apart / max(len(values) - 1, 1) if is_ordered else apart > 0
        return found


def _axes_of(prepared: Configuration) -> dict[str, Any]:
    """Return a configuration's positions by axis; the design by its kind and its place there."""
    found = setting_cells({k: v for k, v in prepared.values.items() if k != "design"})
    if prepared.kind:
        found |= {"design": prepared.kind, "of the design": prepared.place}
    return found


def _order(value: Any) -> tuple[bool, Any]:
    return (True, value) if isinstance(value, str) else (False, value)
