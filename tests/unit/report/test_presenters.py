"""Tables are chosen above the figures that they show, and no contract lets an import off."""

import tomllib
from pathlib import Path

import pytest

from mist_sim import Scenario, simulate
from mist_sim.metrics import Replications, Result
from mist_sim.report.presenters import RUN
from mist_sim.studies import replicate

SHORT = {"workload.lengths.num_requests": 20}
ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture(scope="module")
def result() -> Result:
    return simulate(Scenario.load("demo", overrides=SHORT))


def test_a_run_is_shown_by_its_presenter(result, capsys):
    assert result.presenter is RUN
    result.show()
    assert "Latency, ms" in capsys.readouterr().out
    assert "Latency, ms" in result._repr_html_()
    assert str(result).startswith("<Result: 20 of 20 requests finished")


def test_replications_are_shown_by_theirs(capsys):
    several = replicate(Scenario.load("demo", overrides=SHORT | {"replications": 2}), jobs=1)
    several.show()
    assert "2 replications: mean" in capsys.readouterr().out


def test_a_presenter_of_ones_own():
    class Words:
        def show(self, found: Replications) -> None:
            shown.append(found)

        def as_html(self, found: Replications) -> str:
            return "<p>"

    shown: list[Replications] = []
    found = Replications((0, 1), ({}, {}), "", presenter=Words())
    found.show()
    assert (shown, found._repr_html_()) == ([found], "<p>")


def test_without_one_findings_are_a_line(capsys):
    found = Replications((0, 1), ({}, {}), "")
    found.show()
    assert capsys.readouterr().out == "<Replications: 2 runs>\n"
    assert found._repr_html_() == "<pre>&lt;Replications: 2 runs&gt;</pre>"


def test_no_contract_ignores_an_import():
    """So a circle cannot come back under a comment."""
    tools = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["tool"]
    contracts = tools["importlinter"]["contracts"]
    assert len(contracts) >= 5
    assert not [contract["name"] for contract in contracts if "ignore_imports" in contract]
