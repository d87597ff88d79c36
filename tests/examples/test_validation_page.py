"""docs/validation.md shows what measurements and simulations give now."""

import importlib.util

import pytest

from tests.conftest import ROOT


def test_the_tables_are_current(shared):
    measurements = shared("measurements")
    pytest.importorskip("aiconfigurator_core")  # the page has its step times too
    spec = importlib.util.spec_from_file_location(
        "make_validation", ROOT / "docs/make_validation.py"
    )
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    assert module.page(measurements) == (ROOT / "docs/validation.md").read_text("utf-8")
