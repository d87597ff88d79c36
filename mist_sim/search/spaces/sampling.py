"""Methods that learn which configurations to try: TPE and NSGA-II, as Optuna has them.

TPE: Bergstra et al., NeurIPS 2011. NSGA-II: Deb et al., IEEE Transactions on Evolutionary
Computation 6, 2002. Optuna: Akiba et al., KDD 2019.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import isnan
from typing import Any
from warnings import catch_warnings, simplefilter

import numpy as np
from numpy.typing import NDArray

from mist_sim.errors import ScenarioError
from mist_sim.search.spaces.evaluation import Evaluation
from mist_sim.search.spaces.prepared import Prepared
from mist_sim.studies.points import value_text

_DIRECTIONS = {"more": "maximize", "less": "minimize"}
_WORST = {"more": 0.0, "less": 1e12}  # of what keeps no limit, or has no figure


def sample(
    method: str,
    left: Sequence[Prepared],
    evaluation: Evaluation,
    most: int,
    side_by_side: int,
    seed: int,
) -> None:
    """Evaluate so many configurations, as a method asks for them.

    A configuration that the method asks for again, or that is none, stands for the nearest one
    that was not tried yet. left: what can be tried, the most promising first; the first ones begin.
    Raises ScenarioError without Optuna.
    """
    optuna = _optuna()
    axes = _Axes(left)
    distributions = axes.distributions(optuna)
    study = optuna.create_study(
        directions=[_DIRECTIONS[each.better] for each in evaluation.objectives],
        sampler=_sampler(optuna, method, seed, side_by_side),
    )
    for each in left[: max(side_by_side // 2, 1)]:
        study.enqueue_trial(axes.place(each))
    while (number := min(most, len(left)) - axes.num_tried) > 0:
        asked = [study.ask(distributions) for _ in range(min(side_by_side, number))]
        meant = [axes.nearest(trial.params) for trial in asked]
        chosen = [axes.take(trial.params) for trial in asked]
        evaluation.run(chosen)
        for trial, own, new in zip(asked, meant, chosen, strict=True):
            study.tell(trial, _values(own if axes.is_tried(own) else new, evaluation))
            if new is not own:
                values = _values(new, evaluation)
                place = axes.place(new)
                made = optuna.trial.create_trial(
                    params=place, distributions=distributions, values=values
                )
                study.add_trial(made)


def _values(prepared: Prepared, evaluation: Evaluation) -> list[float]:
    """Return what a method learns of a configuration: its objectives, or as bad as can be."""
    outcome = evaluation.outcomes[prepared.configuration.number]
    is_lost = outcome.status in ("excluded", "failed") and isnan(outcome.guess)
    found = []
    for each in evaluation.objectives:
        value = evaluation.value(prepared, each)
        found.append(_WORST[each.better] if is_lost or isnan(value) else value)
    return found


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


def _sampler(optuna: Any, method: str, seed: int, side_by_side: int) -> Any:
    if method == "nsga2":
        return optuna.samplers.NSGAIISampler(seed=seed, population_size=side_by_side)
    with catch_warnings():
        simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
        return optuna.samplers.TPESampler(
            seed=seed, n_startup_trials=side_by_side, multivariate=True, constant_liar=True
        )


class _Axes:
    """Configurations as places on axes: what is varied, the kind of design, and which of a kind.

    Numbers lie in their order; other values are names, each as far from all others.
    """

    def __init__(self, several: Sequence[Prepared]) -> None:
        self._several = several
        found = [_axes_of(each) for each in several]
        self._values = {key: sorted({each[key] for each in found}, key=_order) for key in found[0]}
        self._is_ordered = {
            key: all(isinstance(value, int | float) for value in values)
            for key, values in self._values.items()
        }
        index = {
            key: {value: place for place, value in enumerate(values)}
            for key, values in self._values.items()
        }
        self._places = np.array(
            [[index[key][value] for key, value in each.items()] for each in found]
        )
        self._tried = np.zeros(len(several), dtype=bool)

    @property
    def num_tried(self) -> int:
        """How many configurations were taken."""
        return int(self._tried.sum())

    def is_tried(self, prepared: Prepared) -> bool:
        """Tell whether a configuration was taken."""
        return bool(self._tried[self._several.index(prepared)])

    def distributions(self, optuna: Any) -> dict[str, Any]:
        """Return what Optuna draws from for each axis."""
        of = optuna.distributions
        return {
            key: of.IntDistribution(0, len(values) - 1)
            if self._is_ordered[key]
            else of.CategoricalDistribution(list(range(len(values))))
            for key, values in self._values.items()
        }

    def place(self, prepared: Prepared) -> dict[str, int]:
        """Return where a configuration lies."""
        row = self._places[self._several.index(prepared)]
        return {key: int(place) for key, place in zip(self._values, row, strict=True)}

    def nearest(self, place: dict[str, int]) -> Prepared:
        """Return the configuration that is nearest to a place."""
        return self._several[int(np.argmin(self._distances(place)))]

    def take(self, place: dict[str, int]) -> Prepared:
        """Return the nearest configuration that was not taken yet, and take it."""
        distances = np.where(self._tried, np.inf, self._distances(place))
        chosen = int(np.argmin(distances))
        self._tried[chosen] = True
        return self._several[chosen]

    def _distances(self, place: dict[str, int]) -> NDArray[np.float64]:
        found = np.zeros(len(self._several))
        for column, (key, values) in enumerate(self._values.items()):
            apart = np.abs(self._places[:, column] - place[key])
            found += apart / max(len(values) - 1, 1) if self._is_ordered[key] else apart > 0
        return found


def _axes_of(prepared: Prepared) -> dict[str, Any]:
    """Return what a configuration is, by axis; the design by its kind, and its place in that."""
    configuration = prepared.configuration
    found = {
        key: value if isinstance(value, int | float) else value_text(value)
        for key, value in configuration.values.items()
        if key != "design"
    }
    if configuration.kind:
        found |= {"design": configuration.kind, "of the design": configuration.place}
    return found


def _order(value: Any) -> tuple[bool, Any]:
    return (True, value) if isinstance(value, str) else (False, value)
