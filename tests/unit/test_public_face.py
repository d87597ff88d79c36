"""The package exports what `__all__` says, and says what each name is for."""

import subprocess
import sys
from types import ModuleType

import mist_sim

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
