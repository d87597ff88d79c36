"""The points of a study: all combinations of the values that are tried."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from math import prod
from typing import Any

from mist_sim.bounds import COPIES
from mist_sim.errors import ScenarioError, brief
from mist_sim.report.elements import labels_of, value_text


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
        texts = Counter(value_text(_sorted(value)) for value in values)
        twice = [text for text, count in texts.items() if count > 1]
        if twice:
            raise ScenarioError(f"vary {key}: values must differ, got {brief(twice[0])} twice")
    if (num := prod(map(len, vary.values()))) > COPIES:
        raise ScenarioError(f"vary must give <= {COPIES} points, got {num}; try fewer values")
    labels = labels_of(list(vary))
    named = [
        [(value, f"{labels[key]}={value_text(value)}") for value in values]
        for key, values in vary.items()
    ]
    return [
        Point(
            dict(zip(vary, (value for value, _ in pairs), strict=True)),
            " ".join(text for _, text in pairs),
        )
        for pairs in product(*named)
    ]


def combinations(
    cases: Mapping[str, Mapping[str, Any]], vary: Mapping[str, Sequence[Any]]
) -> Iterator[tuple[list[str], dict[str, Any], dict[str, Any]]]:
    """Yield every case at every point: the words of its name, its values, and all that it sets.

    Raises ScenarioError as `points_of` does.
    """
    points = points_of(vary)
    for case, settings in (cases or {"": {}}).items():
        for point in points:
            words = [case] * bool(case) + [point.name] * bool(vary)
            values = {**({"case": case} if case else {}), **point.values}
            yield words, values, {**settings, **point.values}


def _sorted(value: Any) -> Any:
    """Return a value with the keys of its mappings in order: in any other it is the same."""
    if isinstance(value, Mapping):
        return {key: _sorted(value[key]) for key in sorted(value, key=str)}
    return [_sorted(each) for each in value] if isinstance(value, list | tuple) else value
