"""The tables of docs/background/parallelism.md hold what links and measurements give now."""

import re

import pytest

from benchmarks import collectives
from tests.conftest import ROOT

PAGE = ROOT / "docs/background/parallelism.md"


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


def test_all_reduces_are_close_on_each_nvlink_system(rows):
    """But for GB200, whose newest table contradicts its older one."""
    cells = [row.strip("|").split(" | ") for row in collectives.by_system(rows, {})]
    medians = {row[0].strip(): float(row[3].split(",")[0]) for row in cells if "all" in row[1]}
    nvlink = {name: medians[name] for name in medians if name not in ("l40s", "rtx-pro-6000")}
    assert len(nvlink) == 7
    assert all(value <= 8 for name, value in nvlink.items() if name != "gb200")


def test_ranks_and_sizes(rows):
    heading = "link | ranks | to 64 KiB | to 1 MiB | to 16 MiB | beyond"
    assert_alike(table(heading), list(collectives.by_size(rows)))


def test_trays(rows):
    heading = "tensor | one tray, µs | measured | two | measured | four | measured"
    assert_alike(table(heading), list(collectives.over_trays()))


def test_all_reduces_of_machines_that_nothing_was_fitted_to(shared):
    shared("measurements/vidur-operators")
    rows = [row for row in collectives.of_vidur() if "all-reduce" in row]
    medians = [float(row.strip("| ").split(" | ")[-1].split(",")[0]) for row in rows]
    assert len(medians) == 8
    assert max(medians) <= 31


@pytest.mark.deep
def test_left_out_systems_are_hardly_worse(rows):
    """The constants are no more than those of the systems that the fit has seen."""
    nvlink = rows[~rows["system"].isin(collectives.HOSTS)]
    some = nvlink[nvlink["system"].isin(["h100_sxm", "h200_sxm", "b200_sxm", "b300_sxm"])]
    found = collectives.left_out(some, "h200_sxm")
    assert float(collectives.score(found).partition(",")[0]) <= 10
