"""Work on another machine: a worker's task, and a check that it computes the same."""

from __future__ import annotations

import os
import platform
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

from mist_sim.errors import ScenarioError
from mist_sim.scenario.plugins import FAMILIES
from mist_sim.studies.task import answer
from mist_sim.studies.workers import Plugins, plugins_of_others

_PACKAGES = ("mist-sim", "numpy", "scipy")  # packages whose version may change a number


@dataclass(frozen=True)
class There:
    """Settings for a worker: the working directory, if it exists there, and plugins.

    A file named by a scenario must exist there under the same path.
    """

    folder: str
    plugins: Plugins


def there() -> There:
    """Return this process's settings for workers."""
    return There(str(Path.cwd()), plugins_of_others())


def do(run: Callable[..., Any], arguments: tuple[Any, ...], taken: There) -> str:
    """Do a task on a worker; return its answer."""
    if Path(taken.folder).is_dir():
        os.chdir(taken.folder)
    for family, name, cls in taken.plugins:
        if name not in FAMILIES[family].registry:
            FAMILIES[family].registry.register(name)(cls)
    return answer(run, arguments)


def versions() -> dict[str, str]:
    """Return the versions that determine whether two processes compute the same."""
    found = {name: version(name) for name in _PACKAGES}
    return found | {"Python": ".".join(platform.python_version_tuple()[:2])}


def check_versions(cluster: str, found: Mapping[str, Mapping[str, str]]) -> None:
    """Raise ScenarioError if a worker might compute other results. found: by its name."""
    here = versions()
    for worker, theirs in found.items():
        for name, mine in here.items():
            if theirs.get(name) != mine:
                raise ScenarioError(
                    f"{cluster}: worker {worker} has {name} {theirs.get(name, 'unknown')}, and "
                    f"here it is {mine}, so that results might differ; install the same"
                )
