"""Fixtures of the tests of single modules."""

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.commands import exit_code


@pytest.fixture
def mist(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Callable[..., tuple[int, str, str]]:
    """Run the command line in a folder of its own: returns (exit code, stdout, stderr).

    The terminal has 80 columns.
    """
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "80")

    def run(*args: str) -> tuple[int, str, str]:
        code = exit_code(*args)
        return code, *capsys.readouterr()

    return run
