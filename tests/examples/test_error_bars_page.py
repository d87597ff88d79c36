"""The expected errors in the package, and their scores on the page, are what the code gives."""

import importlib.util

import pytest

from tests.conftest import ROOT


@pytest.fixture(scope="module")
def make_errors():
    pytest.importorskip("aiconfigurator_core")  # the kernels of steps are its own
    spec = importlib.util.spec_from_file_location("make_errors", ROOT / "docs/make_errors.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.deep
def test_file_and_scores_are_current(shared, make_errors):
    points = make_errors.all_points(shared("measurements"))
    assert make_errors.table(points) == make_errors.FILE.read_text("utf-8")
    for page, text in make_errors.pages(points):
        assert page.read_text("utf-8") == text, page.name
