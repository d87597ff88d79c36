"""The tables of docs/background/collectives.md hold what links and measurements give now."""

from __future__ import annotations

import re

import pytest

from benchmarks import collectives
from tests.conftest import ROOT

PAGE = ROOT / "docs/background/collectives.md"


def table(heading: str) -> list[str]:
    """Return the rows below a table's heading row."""
    page = PAGE.read_text("utf-8")
    start = page.index(f"| {heading} |")
    return page[start : page.index("\n\n", start)].splitlines()[2:]


def assert_alike(shown: list[str], found: list[str]) -> None:
    """Rows have equal words, and numbers that differ by no more than rounding."""
    assert [re.sub(r"[\d.]+", "#", row) for row in shown] == [
        re.sub(r"[\d.]+", "#", row) for row in found
    ]
    for page, now in zip(shown, found, strict=True):
        numbers = ([float(text) for text in re.findall(r"[\d.]+\b", row)] for row in (page, now))
        first, second = numbers
        assert first == pytest.approx(second, abs=1.01), page


@pytest.fixture(scope="module")
def rows():
    pytest.importorskip("aiconfigurator_core")
    return collectives.measured()


def test_systems(rows):
    shown = [
        row.rsplit("|", 2)[0] for row in table("system | collective | before | now | left out")
    ]
    found = [row.rsplit("|", 2)[0] for row in collectives.by_system(rows, {})]
    assert_alike(shown, found)


def test_ranks_and_sizes(rows):
    heading = "link | ranks | to 64 KiB | to 1 MiB | to 16 MiB | beyond"
    assert_alike(table(heading), list(collectives.by_size(rows)))


def test_trays(rows):
    heading = "tensor | one tray, µs | measured | two | measured | four | measured"
    assert_alike(table(heading), list(collectives.over_trays()))


def test_vidur(shared):
    shared("measurements/vidur-operators")
    heading = "machine | collective, ranks | before | now"
    assert_alike(table(heading), list(collectives.of_vidur()))


@pytest.mark.deep
def test_left_out_systems_are_hardly_worse(rows):
    """The constants are no more than those of the systems that the fit has seen."""
    nvlink = rows[~rows["system"].isin(collectives.HOSTS)]
    some = nvlink[nvlink["system"].isin(["h100_sxm", "h200_sxm", "b200_sxm", "b300_sxm"])]
    found = collectives.left_out(some, "h200_sxm")
    assert float(collectives.score(found).partition(",")[0]) <= 10
