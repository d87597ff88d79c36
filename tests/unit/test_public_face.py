"""The package exports what `__all__` says, and says what each name is for."""

import re
import subprocess
import sys
from types import ModuleType

import mist_sim
from tests.conftest import ROOT

NAMES = sorted(name for name in getattr(mist_sim, "__all__", ()) if name != "__version__")


def is_ours(name: str) -> bool:
    value = getattr(mist_sim, name)
    origin = getattr(value, "__module__", "") or ""
    return not isinstance(value, ModuleType) and origin.split(".")[0] == "mist_sim"


def test_all_is_what_the_package_exports():
    for name in NAMES:
        assert hasattr(mist_sim, name), f"__all__ lists {name}, which does not exist"
    public = {name for name in vars(mist_sim) if not name.startswith("_")}
    unlisted = {name for name in public - set(NAMES) if is_ours(name)}
    assert not unlisted, f"exported, but not in __all__: {sorted(unlisted)}"
    assert len(NAMES) == len(set(NAMES))
    assert {"Scenario", "Simulation", "simulate"} <= set(NAMES)


def test_every_public_name_has_docstring_of_its_own():
    without = []
    for name in NAMES:
        value = getattr(mist_sim, name)
        doc = (vars(value).get("__doc__") if isinstance(value, type) else value.__doc__) or ""
        if not doc.strip() or doc.startswith(f"{name}("):  # the one that dataclass makes
            without.append(name)
    assert not without, f"public names without a docstring: {without}"


def test_importing_the_package_leaves_heavy_modules_alone():
    """`mist --help` and `import mist_sim` stay fast: what is not used is not imported."""
    heavy = {"pyarrow", "scipy.stats", "rich", "typer"}
    code = f"import sys, mist_sim; print(*sorted({heavy!r} & set(sys.modules)))"
    loaded = subprocess.check_output([sys.executable, "-c", code], text=True)
    assert loaded.split() == []


def test_the_page_of_public_names_lists_them_all():
    page = (ROOT / "docs/reference/public.md").read_text("utf-8")
    table = page.partition("## Names")[2].partition("\n## ")[0]
    listed = re.findall(r"`(\w+)`", table.partition("|---|---|")[2])
    assert sorted(listed) == NAMES


def test_guides_import_from_public_modules_alone():
    public = {"mist_sim", *re.findall(r"`(mist_sim\.\w+)`", _table_of_modules())}
    for page in sorted((ROOT / "docs/guides").glob("own_*.md")):
        text = page.read_text("utf-8")
        used = set(re.findall(r"^(?:from|import) (mist_sim[\w.]*)", text, re.MULTILINE))
        assert used <= public, f"{page.name}: {sorted(used - public)} are no public modules"


def _table_of_modules() -> str:
    page = (ROOT / "docs/reference/public.md").read_text("utf-8")
    return page.partition("| module | for |")[2].partition("\n\n")[0]
