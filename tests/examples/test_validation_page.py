"""docs/validation.md shows what measurements and simulations give now."""

import importlib.util

import pytest

from tests.conftest import ROOT
from tools.validation import known


@pytest.fixture(scope="module")
def make_validation():
    spec = importlib.util.spec_from_file_location(
        "make_validation", ROOT / "tools/pages/make_validation.py"
    )
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.page
def test_the_table_is_current(shared, make_validation):
    measurements = shared("measurements")
    pytest.importorskip("mist_sim_silicon")  # the page has its step times too
    assert make_validation.page(measurements) == (ROOT / "docs/validation.md").read_text("utf-8")


def test_no_page_is_made_without_all_runs(tmp_path, monkeypatch, make_validation):
    (tmp_path / known.CLOSED_LOOP).touch()
    monkeypatch.setattr(known, "find_spec", lambda name: None)
    monkeypatch.setattr(known, "_roofline_rows", lambda *options: iter(()))
    with pytest.raises(SystemExit, match=r"measured kernels, fitted: needs plugins/silicon"):
        make_validation.page(tmp_path)
