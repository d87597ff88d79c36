"""Fixtures of the tests of single modules."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from mist_sim.cli import main


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
        with pytest.raises(SystemExit) as leaving:
            main(args)
        out, err = capsys.readouterr()
        return int(leaving.value.code or 0), out, err

    return run
