"""Methods that learn what to try, on tables of objectives: what they are told, what they find."""

from __future__ import annotations

import importlib.util
from itertools import product
from math import nan
from statistics import mean

import numpy as np
import pytest

from mist_sim.rng import Streams
from mist_sim.search.spaces import learning
from mist_sim.search.spaces.learning import predicted
from mist_sim.search.spaces.objectives import objectives_of
from mist_sim.search.spaces.space import Configuration

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("optuna") is None,
    reason="Optuna is not installed: pip install 'mist-sim[search]'",
)
AXES = {
    "gpu": ["a", "b", "c", "d"],
    "count": [1, 2, 3, 4],
    "tensor_parallel_size": [1, 2],
    "chunk": [256, 512, 2048, 8192],
}


class Table:
    """Evaluates configurations by looking them up, each once."""

    races = False

    def __init__(self, values):
        self.values = values
        self.objectives = objectives_of("p99_ttft")
        self.outcomes = {}

    def run(self, several):
        for each in several:
            assert each.number not in self.outcomes, "a configuration is run twice"
            value = self.values[each.number]
            each.status, each.figures = "failed" if value != value else "kept", {"p99_ttft": value}
            self.outcomes[each.number] = each

    def value(self, prepared, objective):
        return prepared.figures[objective.name]


def configurations():
    points = enumerate(product(*AXES.values()))
    return [
        Configuration(number, str(number), dict(zip(AXES, values, strict=True)))
        for number, values in points
    ]


def table(number, lost=0.0):
    """Return a latency of each: factors of all axes, and of pairs of them; some cannot be."""
    rng = Streams(number).generator("tables")
    places = list(product(*(range(len(values)) for values in AXES.values())))
    found = [1.0] * len(places)
    for axis, values in enumerate(AXES.values()):
        factors = rng.uniform(0.5, 1.5, len(values))
        pairs = rng.uniform(0.8, 1.2, (len(values), 4))
        for position, place in enumerate(places):
            found[position] *= factors[place[axis]] * pairs[place[axis], place[axis - 1]]
    return [nan if rng.random() < lost else value for value in found]


def sampled(method, values, most=26, seed=0):
    """Return what a method found after so many runs, of a table."""
    evaluation = Table(values)
    learning.sample(method, configurations(), evaluation, most, 8, seed)
    assert len(evaluation.outcomes) == most
    return evaluation


def reached(method, number, lost=0.0):
    """Return the best of all over the best that a method found in a fifth of the runs."""
    values = table(number, lost)
    tried = sampled(method, values, seed=number).outcomes
    known = [values[each] for each in tried if values[each] == values[each]]
    return min(each for each in values if each == each) / min(known)


@pytest.mark.parametrize(("method", "share"), [("nsga2", 0.98), ("tpe", 0.96)])
def test_a_fifth_of_the_runs_comes_near_best(method, share):
    """26 configurations at random come to 0.81 of the best."""
    assert mean(reached(method, number) for number in range(20)) >= share


@pytest.mark.parametrize("method", ["nsga2", "tpe"])
def test_what_cannot_be_is_told_and_leads_nowhere(method):
    assert mean(reached(method, number, lost=0.3) for number in range(10)) >= 0.85


@pytest.mark.parametrize("method", ["nsga2", "tpe"])
def test_every_run_is_told_once_at_its_own_place(method, monkeypatch):
    import optuna

    studies = []
    create = optuna.create_study
    monkeypatch.setattr(
        optuna, "create_study", lambda **how: studies.append(create(**how)) or studies[-1]
    )
    values = table(0)
    sampled(method, values, most=60)
    told = [each for each in studies[0].trials if each.state.name == "COMPLETE"]
    sizes = [len(axis) for axis in AXES.values()]
    numbers = []
    for trial in told:
        number = 0
        for (axis, place), size in zip(trial.params.items(), sizes, strict=True):
            order = sorted(AXES[axis])
            number = number * size + AXES[axis].index(order[place])
        assert trial.values == [values[number]]
        numbers.append(number)
        if method == "nsga2":  # a trial without a generation is in no population
            assert any("generation" in key for key in trial.system_attrs)
    assert len(set(numbers)) == len(numbers) == 60


@pytest.mark.parametrize("method", ["nsga2", "tpe"])
def test_all_of_a_space_can_be_tried(method):
    evaluation = Table(table(1))
    learning.sample(method, configurations(), evaluation, 1_000, 8, 0)
    assert len(evaluation.outcomes) == 128


@pytest.mark.parametrize("method", ["nsga2", "tpe"])
def test_one_run_is_enough_to_begin(method):
    assert len(sampled(method, table(2), most=1).outcomes) == 1


# ---------------------------------------------------------------------- the model of effects


CATEGORIES = np.zeros(3, dtype=bool)


def places():
    return np.array(list(product(range(3), range(4), range(2))))


def test_the_model_finds_what_is_product_of_effects():
    """From a third of the configurations it names the best of all."""
    rng = Streams(3).generator("effects")
    factors = [rng.uniform(0.5, 2.0, number) for number in (3, 4, 2)]
    values = np.array(
        [np.prod([f[k] for f, k in zip(factors, place, strict=True)]) for place in places()]
    )
    tried = rng.choice(len(values), 10, replace=False)
    assert all({*places()[tried, axis]} == set(range(n)) for axis, n in enumerate((3, 4, 2)))
    found = predicted(places(), tried, values[tried], CATEGORIES)
    assert np.argmin(found) == np.argmin(values)
    assert np.corrcoef(found, np.log(values))[0, 1] > 0.99


def test_model_leads_away_from_what_keeps_no_constraint():
    tried = np.arange(24)
    values = np.where(places()[:, 0] == 1, np.inf, 1.0)
    found = predicted(places(), tried, values, CATEGORIES)
    assert found[places()[:, 0] == 1].min() > found[places()[:, 0] != 1].max()


def test_model_knows_nothing_of_what_was_all_lost():
    found = predicted(places(), np.arange(3), np.full(3, np.inf), CATEGORIES)
    assert not found.any()


def test_figure_of_zero_is_best_and_no_infinity():
    values = np.where(places()[:, 2] == 0, 0.0, 1.0 + places()[:, 1])
    found = predicted(places(), np.arange(24), values, CATEGORIES)
    assert np.isfinite(found).all()
    assert np.argmin(found) % 2 == 0


@pytest.mark.parametrize("unseen", [0, 1, 3])
def test_a_number_that_was_not_tried_lies_on_a_line_through_those_that_were(unseen):
    """Twice as many of something cost twice as much: the model says so of a count it never saw."""
    values = 2.0 ** places()[:, 1]
    tried = np.flatnonzero(places()[:, 1] != unseen)
    is_ordered = np.array([False, True, False])
    found = predicted(places(), tried, values[tried], is_ordered)
    steps = [float(found[places()[:, 1] == k].mean()) for k in range(4)]
    assert np.diff(steps) == pytest.approx(np.log(2), rel=0.02)


def test_a_category_that_was_not_tried_counts_as_the_best_of_its_axis():
    values = 1.0 + places()[:, 0]
    tried = np.flatnonzero(places()[:, 0] != 2)
    found = predicted(places(), tried, values[tried], CATEGORIES)
    best = found[places()[:, 0] == 0].mean()
    assert found[places()[:, 0] == 2].mean() == pytest.approx(best)
    assert best < found[places()[:, 0] == 1].mean() - 0.5
