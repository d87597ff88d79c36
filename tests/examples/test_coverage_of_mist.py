"""The table of what MIST claims, in docs/papers.md: no cell is empty, and commands parse."""

import re
import shlex
from importlib.util import find_spec
from pathlib import Path

import pytest
import typer

from mist_sim.cli.app import app
from mist_sim.scenario.presets import preset_names
from tests.conftest import ROOT

TITLE = "### Everything that MIST claims"


def rows() -> list[list[str]]:
    """Return the cells of the table's rows."""
    text = (ROOT / "docs/papers.md").read_text("utf-8")
    part = text[text.index(TITLE) :]
    part = part.partition("\n## ")[0]
    lines = [line for line in part.splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in line.strip("|").split(" | ")] for line in lines[2:]]


def commands(row: list[str]) -> list[list[str]]:
    return [shlex.split(command) for command in re.findall(r"`([^`]+)`", row[-1])]


def problem(words: list[str]) -> str:
    """Return what is wrong with a command; "" for nothing."""
    verb, *rest = words
    if verb == "mist":
        return problem_of_mist(rest)
    files = [word.split("::")[0] for word in rest if word.endswith((".py", ".yaml", ".csv"))]
    if verb == "python" and rest[0] == "-m":
        return "" if find_spec(rest[1]) else f"no module {rest[1]}"
    if verb == "python" and (ROOT / rest[0]).is_dir():
        files = [f"{rest[0]}/__main__.py"]
    if verb not in ("python", "pytest") or not files:
        return f"no known command: {verb}"
    return ", ".join(f"no file {name}" for name in files if not (ROOT / name).is_file())


def problem_of_mist(words: list[str]) -> str:
    group = typer.main.get_command(app)
    verb = group.get_command(typer.Context(group), words[0])
    if verb is None:
        return f"no verb {words[0]}"
    if "--help" in words:
        return ""
    try:
        context = verb.make_context(words[0], list(words[1:]))
    except Exception as error:  # noqa: BLE001 - a usage error, of a class that Typer keeps inside
        return str(error)
    scenario = context.params.get("scenario")
    known = scenario is None or scenario in preset_names() or (ROOT / str(scenario)).is_file()
    return "" if known else f"no scenario {scenario}"


def test_no_cell_is_empty():
    found = rows()
    assert len(found) > 50
    for row in found:
        assert len(row) == 4, row
        assert all(row), row
        assert commands(row), row


def test_every_figure_table_box_and_footnote_has_row():
    numbers = {
        "Fig. {}": range(1, 14),
        "Table {}": ("I", "II", "III", "IV", "V"),
        "Algorithm {}": (1,),
        "footnote {}": (2, 3, 4, 5, 6, 7, 8, 10, 11, 12, 13),
        'box "{}"': ("RAG", "Reasoning", "KV Retrieval"),
    }
    names = [form.format(number) for form, several in numbers.items() for number in several]
    firsts = "\n".join(row[0] for row in rows())
    found = [name for name in names if re.search(rf"{re.escape(name)}(\b|$)", firsts, re.MULTILINE)]
    assert found == names


def test_commands_of_all_rows_parse_and_their_files_are_there():
    assert {problem(command) for row in rows() for command in commands(row)} == {""}


@pytest.mark.parametrize(
    "wrong",
    ["mist rum demo", "mist run demmo", "mist run demo --sed 3", "python tools/nothing.py", "ls ."],
)
def test_a_wrong_command_is_noticed(wrong):
    assert problem(shlex.split(wrong))


def test_pages_that_rows_name_exist():
    for row in rows():
        for target in re.findall(r"\]\(([^)#]+)", row[2]):
            assert (Path(ROOT / "docs") / target).is_file(), target
