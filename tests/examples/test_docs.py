"""README and docs/: their blocks run, their output and their links are current."""

import re
import subprocess
import sys

import pytest
import typer

from mist_sim.cli.app import app
from mist_sim.cli.listings.scenario_keys import anchor
from tests.conftest import ROOT
from tools.pages.generated import verbs, whole
from tools.pages.run_blocks import Runner, blocks

PACKAGE = ROOT / "mist_sim"
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
WITH_BLOCKS = [
    path
    for path in PAGES
    if any(block.language in ("python", "console") for block in blocks(path.read_text("utf-8")))
]


def name(path):
    return str(path.relative_to(ROOT))


QUICK = (
    "README.md",
    "CONTRIBUTING.md",
    "docs/background/parallelism.md",
    "docs/guides/own_stage.md",
)
"""Pages of every run of the tests; the others are for `make pages`."""


def marked(path):
    marks = [] if name(path) in QUICK else [pytest.mark.page]
    return pytest.param(path, marks=marks, id=name(path))


@pytest.mark.parametrize("path", [marked(path) for path in WITH_BLOCKS])
def test_blocks_run_and_print_what_the_page_shows(path, tmp_path):
    command = [sys.executable, str(ROOT / "tools/pages/run_blocks.py"), str(path)]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    hint = f"if the change is right: python tools/pages/run_blocks.py --write {name(path)}"
    assert done.returncode == 0, f"{done.stdout}{done.stderr}\n{hint}"


@pytest.mark.parametrize("path", PAGES, ids=name)
def test_no_output_goes_without_being_compared(path):
    assert Runner(path).not_compared() == []


@pytest.mark.parametrize(
    "block",
    [
        "```\n$ mist list\nwhat it printed\n```",
        "```text\nwhat it printed\n```",
        "```python\n# not run: slow\nprint(1)\n```\n\n```text\n1\n```",
        "```python\nprint(1)\n```\nIt prints:\n\n```text\n1\n```",
    ],
)
def test_output_that_nobody_compares_is_found(block, tmp_path):
    page = tmp_path / "page.md"
    page.write_text(f"# A page\n\n{block}\n")
    assert len(Runner(page).not_compared()) == 1


def test_a_script_in_a_console_block_runs(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "hello.py").write_text("import sys\nprint('hello', *sys.argv[1:])\n")
    page = tmp_path / "page.md"
    page.write_text("```console\n$ python hello.py you\nstale\n```\n")
    assert Runner(page).run() == ["```console", "$ python hello.py you", "hello you", "```"]


def test_output_that_a_page_cuts_is_compared_up_to_there(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "long.py").write_text(r"print('a\nb\n\nc\n\nd')")
    page = tmp_path / "page.md"
    page.write_text("```console\n$ python long.py\nstale\n\nstale\n\n...\n```\n")
    shown = ["```console", "$ python long.py", "a", "b", "", "c", "", "...", "```"]
    assert Runner(page).run() == shown


@pytest.mark.parametrize("path", PAGES, ids=name)
def test_links_lead_somewhere(path):
    for target in links(whole(path.read_text("utf-8"))):
        file, _, fragment = target.partition("#")
        found = (path.parent / file).resolve() if file else path
        assert found.exists(), target
        if fragment:
            assert fragment in anchors(whole(found.read_text("utf-8"))), target


def links(text):
    outside_code = re.sub(r"```.*?```|`[^`\n]*`", "", text, flags=re.DOTALL)
    found = re.findall(r"\]\(([^)\s]+)\)", outside_code)
    return [target for target in found if "://" not in target]


def anchors(text):
    return {
        anchor(heading.replace("`", "")) for heading in re.findall(r"^#+ (.+)$", text, re.MULTILINE)
    }


def test_every_page_is_reached_from_the_index():
    index = {
        (ROOT / "docs" / link).resolve() for link in links((ROOT / "docs/index.md").read_text())
    }
    assert set((ROOT / "docs").rglob("*.md")) - {ROOT / "docs/index.md"} <= index


def test_the_command_reference_has_every_verb():
    names = typer.main.get_command(app).commands
    assert re.findall(r"^## mist (\S+)$", verbs(), re.MULTILINE) == [*names]


@pytest.mark.parametrize("path", PAGES, ids=name)
def test_files_that_a_page_names_exist(path):
    """`tests/unit/test_x.py`, or `clients/llm.py` for a file of the package."""
    tops = [
        entry.name for folder in (ROOT, PACKAGE) for entry in folder.iterdir() if entry.is_dir()
    ]
    pattern = rf"`((?:{'|'.join(tops)})/[\w./-]+)`"
    missing = [
        text
        for text in re.findall(pattern, path.read_text("utf-8"))
        if not any((folder / text).exists() for folder in (ROOT, PACKAGE))
    ]
    assert missing == []


def test_make_targets_exist():
    targets = re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text("utf-8"), re.MULTILINE)
    for path in PAGES:
        for target in re.findall(r"\bmake ([a-z]+)\b(?=[ `\n])", "\n".join(code(path))):
            assert target in targets, f"{name(path)}: make {target}"


def code(path):
    """Return what a page shows as code, in blocks and in lines."""
    text = path.read_text("utf-8")
    return re.findall(r"```.*?```", text, re.DOTALL) + re.findall(r"`[^`\n]+`", text)


def test_the_picture_is_small():
    for picture in (ROOT / "docs/images").iterdir():
        assert picture.stat().st_size < 200_000, picture.name
