"""docs/background/power_and_cost.md shows what fits to measured power give now."""

import importlib.util

import pytest

from tests.conftest import ROOT


@pytest.fixture(scope="module")
def make_power():
    spec = importlib.util.spec_from_file_location("make_power", ROOT / "tools/pages/make_power.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_table_of_shares_is_current(make_power):
    assert "\n".join(make_power.shares()) in make_power.PAGE.read_text("utf-8")


def test_the_table_of_errors_is_current(shared, make_power):
    folder = shared("measurements")
    runs = {name: make_power.runs_on(folder, name.lower()) for name in make_power.GPUS}
    assert "\n".join(make_power.errors(runs)) in make_power.PAGE.read_text("utf-8")
