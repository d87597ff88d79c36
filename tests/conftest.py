"""Fixtures and Hypothesis profiles for all tests."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.effort import HOW_TO_REPEAT, PROFILE, SEED, load_profile
from tests.slow import is_slow, slow_tests

ROOT = Path(__file__).resolve().parents[1]

load_profile()


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config: pytest.Config) -> None:
    """Let Hypothesis draw from the seed, unless its own option names another."""
    if (SEED or PROFILE == "explore") and config.option.hypothesis_seed is None:
        config.option.hypothesis_seed = str(SEED)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark what is slow, before the marks choose."""
    known = slow_tests()
    for item in items:
        if is_slow(item.nodeid, known):
            item.add_marker(pytest.mark.slow)


def pytest_report_header() -> str:
    return HOW_TO_REPEAT


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Say it again where something failed, where it is looked for."""
    if terminalreporter.stats.get("failed"):
        terminalreporter.write_line(HOW_TO_REPEAT)


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
