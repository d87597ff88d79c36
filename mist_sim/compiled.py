"""Modules that are compiled where there is a C compiler, and run as Python where there is none.

A `.py` file with a `.pxd` beside it is written in Cython's pure-Python mode: the same source, the
same bits, compiled or not. `build_core.py` of the checkout compiles all of them into a folder
that is named after what they were when they were compiled, so that a stale file is never loaded:

    mist_sim/_compiled/<digest of the sources>/clients/engine/....cpython-311-x86_64-linux-gnu.so

A package that holds such modules looks there first:

    __path__ = compiled.places(__name__, __path__)

The environment variable `MIST_SIM_CORE` chooses: `python` never loads a compiled file, which is
what debuggers and coverage need; `checked` loads files that check the bounds of arrays.
"""

from __future__ import annotations

import hashlib
import importlib.machinery
import os
from collections.abc import Iterable
from functools import cache
from pathlib import Path

VARIABLE = "MIST_SIM_CORE"
COMPILED, CHECKED, PYTHON = "compiled", "checked", "python"
CHOICES = (COMPILED, CHECKED, PYTHON)

_PACKAGE = Path(__file__).parent
FOLDER = "_compiled"
"""Below the package; git and checks of sources pass it over."""


def sources(package: Path) -> list[Path]:
    """Return the modules to compile: `.py` files with a `.pxd` beside them, in order."""
    return sorted(pxd.with_suffix(".py") for pxd in package.rglob("*.pxd"))


def digest(package: Path) -> str:
    """Return a digest of the sources of all compiled modules: 16 hexadecimal digits."""
    text = hashlib.sha256()
    for path in sources(package):
        for part in (path, path.with_suffix(".pxd")):
            text.update(b"".join(part.read_bytes().splitlines()))  # line ends differ by checkout
    return text.hexdigest()[:16]


def choice() -> str:
    """Return the core that `MIST_SIM_CORE` chooses. Raises ScenarioError for other words."""
    said = os.environ.get(VARIABLE, "") or COMPILED
    if said not in CHOICES:
        from mist_sim.errors import ScenarioError, brief  # not there yet where this is built

        raise ScenarioError(f"{VARIABLE} must be one of {', '.join(CHOICES)}, got {brief(said)}")
    return said


def build_name(package: Path, kind: str = COMPILED) -> str:
    """Return the name of the folder below `FOLDER` with the files of these sources."""
    return digest(package) if kind == COMPILED else f"{digest(package)}-{kind}"


def places(name: str, path: Iterable[str]) -> list[str]:
    """Return where a package looks for its modules: first among compiled ones that fit.

    name, path: `__name__` and `__path__` of the package. The interpreter itself passes over files
    for another Python, by their suffix.
    """
    kind = choice()
    if kind == PYTHON:
        return list(path)
    return [str(_built(kind).joinpath(*name.split(".")[1:])), *path]


@cache
def _built(kind: str) -> Path:
    return _PACKAGE / FOLDER / build_name(_PACKAGE, kind)


def state() -> str:
    """Say in a few words whether the engine's core runs compiled, and if not, why."""
    kind = choice()
    if kind == PYTHON:
        return f"Python ({VARIABLE}={PYTHON})"
    suffix = importlib.machinery.EXTENSION_SUFFIXES[0]
    missing = [path for path in sources(_PACKAGE) if not _file(path, kind, suffix).exists()]
    if not missing:
        return kind
    if any(_built(kind).rglob("*.so")) or any(_built(kind).rglob("*.pyd")):
        why = f"the compiled files are for another Python, not for {suffix}"
    elif (_PACKAGE / FOLDER).is_dir():
        why = "the compiled files do not fit the sources; `make compile` makes new ones"
    else:
        why = "not compiled: there was no C compiler at installation"
    return f"Python ({why})"


def _file(source: Path, kind: str, suffix: str) -> Path:
    return _built(kind) / source.relative_to(_PACKAGE).with_suffix(suffix)
