"""A headless browser for tests of pages, where one is installed."""

import re
import shutil
import subprocess
from pathlib import Path

import pytest

_NAMES = ("chromium", "chromium-browser", "google-chrome")
BROWSER = next((path for name in _NAMES if (path := shutil.which(name))), None)

needs_browser = pytest.mark.skipif(BROWSER is None, reason="needs Chromium, which is not installed")


def dom_of(page: Path, *, width: int = 1200) -> str:
    """Return a page as it stands after its scripts have run. width: pixels of the window."""
    return _run(page, "--dump-dom", f"--window-size={width},800").stdout


def console_of(page: Path) -> list[str]:
    """Return the errors that a page writes to the console."""
    told = _run(page, "--dump-dom", "--enable-logging=stderr").stderr.splitlines()
    return [line for line in told if "CONSOLE" in line and page.name in line]


def pages_of(page: Path) -> int:
    """Return on how many sheets of paper a page prints."""
    file = page.with_suffix(".pdf")
    _run(page, "--no-pdf-header-footer", f"--print-to-pdf={file}")
    return len(re.findall(rb"/Type\s*/Page\b", file.read_bytes()))


def _run(page: Path, *options: str) -> subprocess.CompletedProcess[str]:
    assert BROWSER is not None
    common = ("--headless", "--no-sandbox", "--disable-gpu", "--virtual-time-budget=4000")
    return subprocess.run(
        [BROWSER, *common, *options, page.resolve().as_uri()],
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
