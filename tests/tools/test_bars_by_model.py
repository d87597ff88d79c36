"""Bars hold for models that were not measured: all points of a model are left out together."""

from __future__ import annotations

from dataclasses import replace

from mist_sim.hardware.setting import Setting
from tools.validation.error_bars import (
    LEAST,
    Group,
    Point,
    margin_of,
    models_left_out,
)

_SETTING = Setting("roofline", "hopper", "experts", "fp8", "one")
_LOAD = "low load"


def group(factors: dict[str, list[float]]) -> Group:
    """Return points of several models; each point is a series, so series tell of one another."""
    points = tuple(
        Point(_SETTING, "tpot", factor, f"{model} {at}", (_LOAD,), model=model)
        for model, each in factors.items()
        for at, factor in enumerate(each)
    )
    return Group(points, (), "such runs", ())


SAME = [0.9, 0.95, 1.0, 1.05, 1.1]


def test_a_model_apart_from_the_others_moves_the_ends_out():
    alike = group({"a": SAME, "b": SAME, "c": SAME})
    apart = group({"a": SAME, "b": SAME, "c": [1.5 * each for each in SAME]})
    assert margin_of(apart, _LOAD) > margin_of(alike, _LOAD) + 0.2
    margin = margin_of(apart, _LOAD)
    beyond = list(models_left_out(apart.whole))
    inside = [out <= margin + 1e-9 for out in beyond]
    assert len(beyond) == 15
    assert sum(inside) >= LEAST * 15
    less = [out <= margin - 1e-6 for out in beyond]
    assert sum(less) < LEAST * 15  # and no farther than needed


def test_two_models_say_nothing_of_a_third():
    two = group({"a": SAME, "b": [1.5 * each for each in SAME]})
    assert list(models_left_out(two.whole)) == []
    as_one = replace(two, whole=tuple(replace(each, model="a") for each in two.whole))
    assert margin_of(two, _LOAD) == margin_of(as_one, _LOAD)
