"""Packages that only some predictors need."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version

from mist_sim.errors import ScenarioError


def installed_version(package: str, extra: str, install: str = "") -> str:
    """Return the version of an installed package, without importing it.

    Raises ScenarioError that names the extra that installs the package, or another way to install
    it.
    """
    try:
        return version(package)
    except PackageNotFoundError:
        remedy = install or f"pip install 'mist-sim[{extra}]'"
        raise ScenarioError(
            f"{extra} needs the package {package}, which is not installed; {remedy}"
        ) from None
