"""A verb is a function; the lines of its docstring are the texts of its options."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import pytest
import typer
from typer.testing import CliRunner

from mist_sim.cli.options import as_command
from mist_sim.errors import InvariantError

heard: list[object] = []


@dataclass(frozen=True, kw_only=True)
class Group:
    low: float | None = None
    high: Annotated[int | None, {"min": 1}] = None


def verb(
    file: Path,
    *,
    form: str = "csv",
    ends: Group,
    names: Sequence[str] = (),
    thorough: bool = False,
    jobs: int | None = None,
) -> None:
    """Do it.

    At length: as a verb does.

    file FILE: The file.
    form --format: Its form: csv or
        json.
    low: The lower end.
    high N: The other one.
    names --name NAME=VALUE: A name.
    thorough: All of it.
    """
    heard.append((file, form, ends, names, thorough, jobs))


@pytest.fixture(params=[True, False], ids=["docstring", "-OO"])
def app(request, monkeypatch):
    if not request.param:
        monkeypatch.setattr(verb, "__doc__", None)
    made = typer.Typer(rich_markup_mode=None)
    made.command()(as_command(verb))
    return made


def test_options_and_arguments_reach_the_function(app):
    heard.clear()
    words = ["a.csv", "--format", "json", "--high", "2", "--name", "a=1", "--name", "b=2"]
    assert CliRunner().invoke(app, [*words, "--thorough", "--jobs", "3"]).exit_code == 0
    assert CliRunner().invoke(app, ["a.csv"]).exit_code == 0
    assert heard == [
        (Path("a.csv"), "json", Group(high=2), ["a=1", "b=2"], True, 3),
        (Path("a.csv"), "csv", Group(), [], False, None),
    ]


def test_help_has_their_lines_in_the_order_of_the_parameters(app):
    text = " ".join(CliRunner().invoke(app, ["--help"]).output.split())
    told = ["Do it. At length: as a verb does.", "The file.", "--format", "Its form: csv or json."]
    told += ["[default: csv]", "--low", "The lower end.", "--high N", "The other one.", "[x>=1]"]
    told += ["--name NAME=VALUE", "A name.", "--thorough", "All of it.", "--jobs N"]
    places = [text.index(each) for each in told]
    assert places == sorted(places)
    assert "Parallel runs; by default one per core." in text  # of `SHARED`
    assert "--no-thorough" not in text


def test_ranges_are_kept(app):
    assert CliRunner().invoke(app, ["a.csv", "--high", "0"]).exit_code == 2


def test_a_parameter_without_a_line_is_an_error():
    def lacking(*, lack: int = 0) -> None:
        """Do it."""

    with pytest.raises(InvariantError, match="no line for lack"):
        as_command(lacking)


def test_a_line_that_means_no_parameter_is_an_error():
    def mistaken(*, seed: int = 0) -> None:
        """Do it.

        seed N: The seed.
        sead N: Another.
        """

    with pytest.raises(InvariantError, match="sead N: Another"):
        as_command(mistaken)
