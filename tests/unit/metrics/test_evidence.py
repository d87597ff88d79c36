"""Errors of measured runs: bars from those of other sources, and the package's file."""

import csv
from dataclasses import replace
from importlib import resources

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mist_sim.hardware.setting import Setting
from mist_sim.metrics import evidence as ev
from mist_sim.metrics.evidence import Evidence, MeasuredRow
from mist_sim.metrics.load import LOW_LOAD, OPEN, Load
from tests.effort import examples
from tools.evidence import left_out

LOAD = Load(LOW_LOAD, OPEN)
HERE = Setting("roofline", "hopper", "dense", "bf16", "one", "m", "h100-sxm", "0.19")


def rows_of(errors, setting=HERE, origin="a"):
    return [MeasuredRow(origin, setting, LOAD, {"tpot": float(error)}) for error in errors]


def in_file():
    text = (resources.files("mist_sim.metrics") / "evidence.csv").read_text("utf-8")
    return [ev.read(row) for row in csv.DictReader(text.splitlines())]


def test_left_out_errors_of_the_file_follow_from_its_errors():
    rows = in_file()
    again = left_out([row._replace(beyond={}) for row in rows])
    for row, found in zip(rows, again, strict=True):
        assert found.beyond == pytest.approx(row.beyond, abs=0.0015)


def test_bars_hold_nine_in_ten_rows_of_sources_left_out():
    rows = [row for row in in_file() if row.setting.source == "roofline"]
    inside: dict[str, list[bool]] = {}
    for metric in ev.METRICS:
        margins = Evidence(rows, "roofline", metric)
        for row in rows:
            if metric in row.beyond:
                held = row.beyond[metric] <= margins.margin(row.setting, row.load) + 1e-9
                for group in ("all", row.origin, " ".join(row.setting.kernel), str(row.load)):
                    inside.setdefault(f"{metric} {group}", []).append(held)
    for metric in ev.METRICS:
        assert 0.87 <= np.mean(inside[f"{metric} all"]) <= 0.95
    assert min(np.mean(held) for held in inside.values() if len(held) >= 10) >= 0.75


@examples(30)
@given(st.lists(st.floats(-0.5, 0.5), min_size=1, max_size=30))
def test_a_bar_lies_in_span_of_its_rows(errors):
    bar = Evidence(rows_of(errors), "roofline", "tpot").bar(HERE, LOAD)
    assert np.expm1(min(errors)) - 6e-4 <= bar.low <= bar.high <= np.expm1(max(errors)) + 6e-4
    assert bar.other == ()


def test_a_known_bias_moves_the_bar():
    rows = rows_of([0.2] * 20) + rows_of([0.0] * 20, replace(HERE, model="other"), "b")
    found = Evidence(rows, "roofline", "tpot").bar(HERE, LOAD)
    assert found.low > 0.15


@pytest.mark.parametrize(
    ("changes", "other"),
    [
        ({}, ()),
        ({"model": "x"}, ("model",)),
        ({"gpu": "h200", "release": "0.33"}, ("GPU", "release")),
        ({"weights": "bf16", "architecture": "ada", "gpu": "l40s"}, ("GPU", "kernel")),
    ],
)
def test_distance_counts_what_is_other(changes, other):
    evidence = Evidence(rows_of([0.1, -0.1]), "roofline", "tpot")
    assert evidence.bar(replace(HERE, **changes), LOAD).other == other


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"weights": "nvfp4"}, "weights in nvfp4"),
        ({"kind": "latent"}, "latent attention"),
        ({"parallel": "PCIe"}, "linked by PCIe"),
        ({"parallel": "pipeline"}, "pipelines"),
        ({"architecture": ""}, "no measured run is like it"),
    ],
)
def test_what_was_never_measured_has_no_bar(changes, why):
    evidence, setting = Evidence(rows_of([0.1]), "roofline", "tpot"), replace(HERE, **changes)
    assert why in evidence.unknown(setting)
    assert evidence.bar(setting, LOAD) is None


def test_a_bar_widens_by_what_rows_under_its_load_need():
    """Where ten were measured under it; else by what rows of its format need."""
    other = Load("other load", "bursts")
    rows = [row._replace(beyond={"tpot": 0.3}) for row in rows_of([0.3] * 30)]
    rows += [row._replace(load=other, beyond={"tpot": -0.1}) for row in rows_of([0.0] * 10)]
    assert Evidence(rows, "roofline", "tpot").margin(HERE, other) == 0.0
    assert Evidence(rows[:-1], "roofline", "tpot").margin(HERE, other) == 0.3
    assert Evidence(rows, "roofline", "tpot").margin(HERE, None) == 0.3
