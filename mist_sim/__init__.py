"""Discrete-event simulation of multi-stage LLM serving.

    from mist_sim import Scenario, simulate
    result = simulate(Scenario.load("demo"))

Everything that a scenario file can say, Python can say with objects: clients, a `Workload` and a
router make a `Simulation`. A name is imported when it is first used, so that `import mist_sim`
and `mist --help` are instant. `__init__.pyi` lists them, for type checkers and for this module.
"""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import Any


def _homes() -> dict[str, str]:
    """Return the module of each public name: lines are "from MODULE import NAME as NAME"."""
    lines = Path(__file__).with_suffix(".pyi").read_text("utf-8").splitlines()
    imports = [line.split() for line in lines if line.startswith("from ")]
    return {name: module for _, module, _, name, _, _ in imports}


_MODULES = _homes()

__all__ = [*_MODULES, "__version__"]  # noqa: PLE0604 - the stub has strings


def __getattr__(name: str) -> Any:
    """Import a public name when it is first used."""
    if name == "__version__":
        from importlib.metadata import version

        value: Any = version("mist-sim")
    elif name in _MODULES:
        value = getattr(import_module(_MODULES[name]), name)
    else:
        raise AttributeError(f"module 'mist_sim' has no attribute {name!r}")
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
