"""What MkDocs needs beyond the pages of docs/: `make docs` builds the site with these hooks.

- Pages that have no file in docs/: the Python reference (from `__init__.pyi` and the docstrings),
  CONTRIBUTING.md, CHANGELOG.md, and the example scripts that pages link to.
- The parts of reference pages that are made from the code (tools/pages/generated.py).
- Lists that follow a line of text directly: GitHub takes them for lists, Python-Markdown does not.
"""

from __future__ import annotations

import re
from importlib import import_module
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
STUB = ROOT / "mist_sim" / "__init__.pyi"
COPIED = ("CONTRIBUTING.md", "CHANGELOG.md")

# page: (title, modules of `__init__.pyi` whose names it shows, packages whose `__all__` it shows)
API: dict[str, tuple[str, tuple[str, ...], tuple[str, ...]]] = {
    "run": (
        "Run a simulation",
        ("scenario", "simulation", "simulation_rules", "environment", "errors"),
        (),
    ),
    "results": ("Results", ("metrics", "report"), ()),
    "studies": ("Studies and searches", ("studies",), ("search", "explain")),
    "workloads": ("Workloads and laws of time", ("traces", "durations"), ()),
    "stages": ("Stages and requests", ("stages", "core"), ()),
    "clients": ("Clients, schedulers and evictions", ("clients", "eviction"), ()),
    "routers": ("Routers, admission, starts", ("routers", "admission", "lifecycle"), ()),
    "hardware": ("Models, hardware, networks", ("models", "hardware", "network"), ()),
    "testing": ("Tests for your own parts", (), ("testing",)),
}
LIST_ITEM = re.compile(r"(?:[-*]|\d+\.) ")
COPIED_LINK = re.compile(rf"\]\((?:\.\./)+({'|'.join(map(re.escape, COPIED))})")
EXAMPLE = re.compile(r"\]\((?:\.\./)+(examples/[\w./-]+)\)")


def on_files(files: Any, config: Any) -> Any:
    """Add the pages that have no file in docs/."""
    from mkdocs.structure.files import File  # the tests of this file do without MkDocs

    for name in COPIED:
        text = (ROOT / name).read_text("utf-8").replace("](docs/", "](")
        files.append(File.generated(config, name, content=text))
    for page, (title, modules, packages) in API.items():
        content = _api_page(title, modules, packages)
        files.append(File.generated(config, f"reference/python/{page}.md", content=content))
    linked = {name for path in (ROOT / "docs").rglob("*.md") for name in _examples_on(path)}
    for name in sorted(linked):
        files.append(File.generated(config, f"{name}.md", content=_code_page(name)))
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Point links out of docs/ at pages of the site, and part lists from the text before them."""
    import sys

    sys.path.insert(0, str(ROOT))
    from tools.pages.generated import whole

    up = "../" * page.file.src_uri.count("/")
    linked = EXAMPLE.sub(rf"]({up}\1.md)", COPIED_LINK.sub(rf"]({up}\1", whole(markdown)))
    return _with_parted_lists(linked)


def _api_page(title: str, modules: tuple[str, ...], packages: tuple[str, ...]) -> str:
    public = re.findall(
        r"^from mist_sim\.(\w+)\S* import \w+ as (\w+)$", STUB.read_text(), re.MULTILINE
    )
    names = [
        f"mist_sim.{name}" for wanted in modules for module, name in public if module == wanted
    ]
    for package in packages:
        everything = import_module(f"mist_sim.{package}").__all__
        names += [f"mist_sim.{package}.{name}" for name in everything]
    named = [f"[`{name.rpartition('.')[2]}`][{name}]" for name in names]
    blocks = [f"::: {name}" for name in names]
    return "\n\n".join([f"# {title}", "On this page: " + ", ".join(named) + ".", *blocks])


def _examples_on(path: Path) -> list[str]:
    return EXAMPLE.findall(path.read_text("utf-8"))


def _code_page(name: str) -> str:
    language = {".py": "python", ".yaml": "yaml"}[Path(name).suffix]
    return f"# {name}\n\n```{language}\n{(ROOT / name).read_text('utf-8')}```\n"


def _with_parted_lists(markdown: str) -> str:
    """Put an empty line before each list that follows text."""
    lines: list[str] = []
    fenced = False
    before = ""
    for line in markdown.splitlines():
        if line.startswith("```"):
            fenced = not fenced
        text = before and not before.startswith((" ", "#", "```")) and not LIST_ITEM.match(before)
        if not fenced and LIST_ITEM.match(line) and text:
            lines.append("")
        lines.append(line)
        before = line
    return "\n".join(lines) + "\n"
