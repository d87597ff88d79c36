"""The progress bar: what it shows, and when."""

import sys
from io import StringIO

import pytest
from rich.console import Console

from mist_sim.cli import progress, progress_bar
from mist_sim.cli.progress import Progress


class Terminal(StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture
def clock(monkeypatch):
    """The seconds since the run began; a test turns it."""
    now = [0.0]
    for module in (progress, progress_bar):
        monkeypatch.setattr(module, "monotonic", lambda: now[0])
    return now


def shown(bar: Progress) -> str:
    console = Console(width=200, file=StringIO())
    assert bar._bar is not None
    console.print(bar._bar.get_renderable())
    return " ".join(console.file.getvalue().split())


def test_nothing_is_shown_for_moment_or_to_file(clock, monkeypatch):
    monkeypatch.setattr(sys, "stderr", Terminal())
    with Progress(10) as bar:
        bar(5, 1.0)
        assert bar._bar is None
        clock[0] = 2.0
        bar(6, 1.0)
        assert bar._bar is not None
    monkeypatch.setattr(sys, "stderr", StringIO())
    with Progress(10) as bar:
        clock[0] = 9.0
        bar(6, 1.0)
        assert bar._bar is None


@pytest.mark.parametrize(
    ("columns", "total", "words", "absent"),
    [
        ("120", 1000, ["400/1,000 requests", "70 s simulated", "0:12 left"], []),
        ("50", 1000, ["400/1,000 requests", "0:12 left"], ["simulated"]),
        ("120", None, ["400 requests", "70 s simulated"], ["left", "/"]),
        ("50", None, ["400 requests"], ["left", "simulated"]),
    ],
)
def test_the_bar_shows_what_fits(clock, monkeypatch, columns, total, words, absent):
    """100 requests in two seconds: 600 take 12 seconds more."""
    monkeypatch.setattr(sys, "stderr", Terminal())
    monkeypatch.setenv("COLUMNS", columns)
    with Progress(total) as bar:
        for seconds, num_done in ((2.0, 200), (4.0, 300), (6.0, 400)):
            clock[0] = seconds
            bar(num_done, 30.0 + num_done / 10)
        line = shown(bar)
    for word in words:
        assert word in line
    for word in absent:
        assert word not in line


@pytest.mark.parametrize(
    ("seconds", "text"), [(0.4, "0:00"), (65, "1:05"), (59.7, "1:00"), (7265, "2:01:05")]
)
def test_times_are_minutes_and_seconds(seconds, text):
    assert progress_bar._clock(seconds) == text
