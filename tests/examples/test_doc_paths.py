"""Code that pages name is there: files, and the functions in them."""

import ast
import re
from functools import cache
from pathlib import Path

import pytest

from mist_sim import compiled
from tests.conftest import ROOT

PACKAGE = ROOT / "mist_sim"
TREES = ("benchmarks", "docs", "examples", "mist_sim", "plugins", "tests", "tools")
PAGES = [*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").rglob("*.md"))]
OF_OTHERS = {  # files of vLLM that pages name, by page
    "metrics.md": {"vllm/v1/core/kv_cache_manager.py", "vllm/v1/metrics/stats.py"},
}
NAMED = re.compile(r"(?<![\w./-])([\w./-]*\w\.py)(?!\w)(?::(\w+(?:\.\w+)*))?")


def named(text: str) -> list[tuple[str, str]]:
    """Return the files, with functions, that a page names in code: in lines, and in drawings.

    Other blocks run (`tools/pages/run_blocks.py`), and their files are not the repository's.
    """
    blocks = re.findall(r"^```(?:text|tree)\n(.*?)^```", text, re.DOTALL | re.MULTILINE)
    outside = re.sub(r"^```.*?^```", "", text, flags=re.DOTALL | re.MULTILINE)
    lines = re.findall(r"`([^`\n]+)`", outside)
    return [found for code in (*blocks, *lines) for found in NAMED.findall(code)]


def found(path: str) -> Path | None:
    """Return the file of a path in the repository, in the package, or of a bare name anywhere."""
    for folder in (ROOT, PACKAGE):
        if (folder / path).is_file():
            return folder / path
    return next(iter(files_by_name().get(path, [])), None)


@cache
def files_by_name() -> dict[str, list[Path]]:
    names: dict[str, list[Path]] = {}
    for tree in TREES:
        for path in (ROOT / tree).rglob("*.py"):
            names.setdefault(path.name, []).append(path)
    return names


@cache
def definitions(path: Path) -> set[str]:
    """Return the functions, classes and methods of a file, methods as `Class.method`."""
    names = set()
    for node in ast.parse(path.read_text("utf-8")).body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            names.add(node.name)
            inside = node.body if isinstance(node, ast.ClassDef) else []
            names |= {f"{node.name}.{m.name}" for m in inside if isinstance(m, ast.FunctionDef)}
    return names


def missing(text: str) -> set[str]:
    """Return what a page names and the repository does not have."""
    lost = set()
    for name, function in named(text):
        path = found(name)
        if path is None:
            lost.add(name)
        elif function and function not in definitions(path):
            lost.add(f"{name}:{function}")
    return lost


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_files_and_functions_that_a_page_names_exist(page):
    assert missing(page.read_text("utf-8")) == OF_OTHERS.get(page.name, set())


def test_what_is_missing_is_noticed():
    text = """
`clients/llm.py`, `llm.py`, `clients/engine/stepped.py:rows_of` and `vllm/nothing.py`, `nowhere.py`
```python
import nothing  # `nothing.py`
```
```text
clients/engine/core/core.py:Core.server   clients/engine/core/lane.py:Lane.plan
```
"""
    wrong = {"vllm/nothing.py", "nowhere.py", "clients/engine/core/core.py:Core.server"}
    assert missing(text) == wrong


def test_pages_that_code_names_exist():
    """A name may go on in the next line of a docstring or a comment, behind its slash."""
    lost = set()
    for tree in TREES:
        for path in (ROOT / tree).rglob("*.py"):
            text = re.sub(r"/\n\s*(?:# )?", "/", path.read_text("utf-8"))
            pages = re.findall(r"\bdocs/[\w/]+\.md\b", text)
            lost |= {(path.name, page) for page in pages if not (ROOT / page).is_file()}
    assert not lost


def test_every_room_stands_in_the_page_on_architecture():
    text = (ROOT / "docs/architecture.md").read_text("utf-8")
    rooms = text[text.index("## Rooms") : text.index("## The life of a request")]
    for path in PACKAGE.rglob("*"):
        if not path.is_dir() or {"__pycache__", compiled.FOLDER} & set(path.parts):
            continue
        folder = any(each.name != "__pycache__" for each in path.iterdir())
        if folder and path.parent == PACKAGE:
            assert f"`{path.name}/`" in rooms, path
        elif folder:
            assert f"{path.name}/`" in rooms, path
        elif path.parent == PACKAGE and path.suffix == ".py":
            assert f"`{path.name}`" in rooms, path
