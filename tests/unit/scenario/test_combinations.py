"""Options that do not go together, as docs/guides/scenario_files.md lists them."""

import re
from pathlib import Path
from typing import Any

import pytest

from mist_sim import ScenarioError
from mist_sim.scenario.build import build
from mist_sim.scenario.format.yaml_text import parse
from tests.reference.scenarios import scenario

PAGE = Path(__file__).parents[3] / "docs/guides/scenario_files.md"


def rows() -> list[tuple[str, str]]:
    """Return the first two cells of each row of the page's table."""
    section = PAGE.read_text("utf-8").partition("### What is not simulated")[2]
    lines = section.partition("\n## ")[0].splitlines()
    cells = [line.strip("| ").split(" | ") for line in lines if line.startswith("| `")]
    return [(one, other) for one, other, _ in cells]


def options(cell: str) -> dict[str, Any]:
    """Return the client's options that a cell names."""
    found = {}
    for code in re.findall(r"`([^`]+)`", cell):
        key, _, value = code.partition(": ")
        found[f"clients__0__{key}"] = parse(value, "page")
    return found


def test_the_page_lists_several():
    assert len(rows()) >= 6


@pytest.mark.parametrize(("one", "other"), rows())
def test_each_works_alone_and_both_are_refused(one, other):
    alone = {"clients__0__gpu": "h100-sxm"}
    build(scenario(**alone | options(one)))
    if "draft_model" not in other:  # a draft model has to fit its target's vocabulary
        build(scenario(**alone | options(other)))
    with pytest.raises(ScenarioError) as caught:
        build(scenario(**alone | options(other) | options(one)))
    keys = [key.rpartition("__")[2].rpartition(".")[2] for key in options(one) | options(other)]
    assert any(key in str(caught.value) for key in keys if key != "model")
    assert " must " in str(caught.value).replace(":", " ")
