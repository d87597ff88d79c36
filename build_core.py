"""Compile the engine's core: a build hook of hatchling, and a command for checkouts.

    python build_core.py [--checked]      # what `make compile` calls; needs Cython and a C compiler

What is compiled, and under which name, says `mist_sim/compiled.py`. As a hook it never fails: a
machine without a C compiler gets a package that runs as Python, with the same results.
"""

from __future__ import annotations

import contextlib
import os
import runpy
import shutil
import sys
import sysconfig
import tempfile
from pathlib import Path
from types import SimpleNamespace
from typing import Any

try:
    from hatchling.builders.hooks.plugin.interface import BuildHookInterface
except ImportError:  # as a command
    BuildHookInterface = object

ROOT = Path(__file__).parent

DIRECTIVES = {
    "language_level": 3,
    "boundscheck": False,
    "wraparound": True,  # lists are read from their ends, too
    "initializedcheck": False,
    "cdivision": True,
    "nonecheck": False,
    "annotation_typing": False,  # the types are those of the .pxd
}
CHECKS = {"boundscheck": True, "initializedcheck": True}


def flags() -> list[str]:
    """Return the compiler's flags: a * b + c is rounded twice, as Python rounds it."""
    if sysconfig.get_platform().startswith("win"):
        return ["/O2", "/fp:precise"]
    return ["-O1", "-g0", "-ffp-contract=off"]


def compile_core(root: Path, kind: str) -> Path:
    """Compile all modules of these sources; return the folder with the files.

    kind: "compiled", or "checked" with checks of bounds. A folder that is there already is kept.
    Raises what setuptools raises where there is no compiler; nothing is half-written.
    """
    from Cython.Build import cythonize
    from setuptools import Distribution, Extension
    from setuptools.command.build_ext import build_ext

    compiled = _module(root)
    package = root / "mist_sim"
    result = package / compiled.FOLDER / compiled.build_name(package, kind)
    sources = compiled.sources(package)
    suffix = sysconfig.get_config_var("EXT_SUFFIX")
    places = [path.relative_to(package).with_suffix(suffix) for path in sources]
    if places and all((result / place).exists() for place in places):
        return result
    with tempfile.TemporaryDirectory() as scratch:
        extensions = cythonize(
            [
                Extension(
                    ".".join(path.relative_to(root).with_suffix("").parts),
                    [str(path.relative_to(root))],
                    extra_compile_args=flags(),
                )
                for path in sources
            ],
            compiler_directives=DIRECTIVES | (CHECKS if kind == compiled.CHECKED else {}),
            build_dir=f"{scratch}/c",
            include_path=[str(root)],
            quiet=True,
        )
        command = build_ext(Distribution({"name": "mist-sim", "ext_modules": extensions}))
        command.build_lib, command.build_temp = f"{scratch}/lib", f"{scratch}/objects"
        command.parallel = os.cpu_count()
        command.finalize_options()
        command.run()
        result.mkdir(parents=True, exist_ok=True)
        for place in places:
            (result / place).parent.mkdir(parents=True, exist_ok=True)
            shutil.move(Path(scratch, "lib", "mist_sim", place), result / place)
    return result


def _module(root: Path) -> SimpleNamespace:
    """Return `mist_sim/compiled.py` without importing the package, which is not installed yet."""
    return SimpleNamespace(**runpy.run_path(str(root / "mist_sim" / "compiled.py")))


class CoreBuildHook(BuildHookInterface):  # type: ignore[misc, valid-type]
    """Compiles the core for a wheel, and for an installation in place."""

    PLUGIN_NAME = "custom"

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Add compiled files to what is built; without a compiler, say so and go on."""
        root = Path(self.root)
        with contextlib.chdir(root):  # Cython and setuptools name sources from there
            try:
                folder = compile_core(root, "compiled")
            except (Exception, SystemExit) as error:  # noqa: BLE001 - every compiler fails its own way
                self.app.display_warning(
                    f"mist-sim's core is not compiled ({error}); it runs as Python"
                )
                return
        if version == "editable":
            return  # they lie where they are looked for
        build_data["pure_python"] = False
        build_data["infer_tag"] = True
        build_data["force_include"][str(folder)] = f"mist_sim/{folder.parent.name}/{folder.name}"


def main(words: list[str]) -> int:
    """Compile the checkout's core in place; say where the files lie."""
    kind = "checked" if words == ["--checked"] else "compiled"
    if words not in ([], ["--checked"]):
        print(__doc__, file=sys.stderr)
        return 2
    with contextlib.chdir(ROOT):
        try:
            folder = compile_core(ROOT, kind)
        except (Exception, SystemExit) as error:  # noqa: BLE001
            print(f"error: the core is not compiled: {error}", file=sys.stderr)
            return 2
    print(f"compiled: {folder.relative_to(ROOT)}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
