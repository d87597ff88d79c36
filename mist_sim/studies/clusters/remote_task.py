"""A check that workers on other machines compute the same."""

from __future__ import annotations

import platform
from collections.abc import Mapping
from importlib.metadata import version

from mist_sim.errors import ScenarioError

_PACKAGES = ("mist-sim", "numpy", "scipy")  # packages whose version may change a number


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
