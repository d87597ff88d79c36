"""The points of a study: all combinations of the values that are tried."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from math import prod
from typing import Any

from mist_sim.bounds import COPIES
from mist_sim.errors import ScenarioError, brief
from mist_sim.report.elements.key_labels import labels_of, value_text


@dataclass(frozen=True)
class Point:
    """A point's settings. name: a short form, such as "count=4 router=random"."""

    values: Mapping[str, Any]
    name: str


def points_of(vary: Mapping[str, Sequence[Any]]) -> list[Point]:
    """Return the points of some keys and the values of each; one without a name for no keys.

    The last key changes fastest. Raises ScenarioError for a key without values, values that are
    equal, and more than 10,000 points.
    """
    for key, values in vary.items():
        if isinstance(values, str) or not values:
            raise ScenarioError(f"vary {key}: must be a list of values, got {brief(values)}")
        twice = [text for text, count in Counter(map(value_text, values)).items() if count > 1]
        if twice:
            raise ScenarioError(f"vary {key}: values must differ, got {brief(twice[0])} twice")
    if (num := prod(map(len, vary.values()))) > COPIES:
        raise ScenarioError(f"vary must give <= {COPIES} points, got {num}; try fewer values")
    labels = labels_of(list(vary))
    return [
        Point(
            dict(zip(vary, values, strict=True)),
            " ".join(f"{labels[k]}={value_text(v)}" for k, v in zip(vary, values, strict=True)),
        )
        for values in product(*vary.values())
    ]
