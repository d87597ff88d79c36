"""Fixtures and Hypothesis profiles for all tests."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.effort import load_profile

ROOT = Path(__file__).resolve().parents[1]

load_profile()


@pytest.fixture(scope="session")
def shared() -> Callable[[str], Path]:
    """Find real traces and measurements, which lie beside the repository and not in it.

    `shared("traces/x.csv")` is the path of `../shared/traces/x.csv`, or skips the test.
    """

    def find(path: str) -> Path:
        found = ROOT.parent / "shared" / path
        if not found.exists():
            pytest.skip(f"needs ../shared/{path}, which is not on this machine")
        return found

    return find


@pytest.fixture(scope="session", autouse=True)
def own_cache(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Keep timings of tests, and of the processes they start, out of the user's cache."""
    os.environ["MIST_SIM_CACHE"] = str(tmp_path_factory.mktemp("cache"))
