"""Timings kept on disk: found again, shared by processes, never taken from a foreign file."""

import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest

from mist_sim import ScenarioError
from mist_sim.hardware.predictors.measured.timing_store import TimingStore, cache_folder

SOURCE = {"source": "clock", "version": "1"}
WORKS = {"one": 1, "two": 2, "three": 3}


@pytest.fixture
def store(tmp_path):
    return TimingStore(tmp_path / "folder" / "timings.sqlite")


def counted(asked):
    """Return a source that notes what it is asked for."""

    def measure(works):
        asked.append(list(works))
        return [work / 8 for work in works]

    return measure


def test_nothing_is_timed_twice(store):
    asked = []
    assert store.timed(SOURCE, {"one": 1}, counted(asked)) == [0.125]
    assert store.timed(SOURCE, WORKS, counted(asked)) == [0.125, 0.25, 0.375]
    assert TimingStore(store.path).timed(SOURCE, WORKS, counted(asked)) == [0.125, 0.25, 0.375]
    assert asked == [[1], [2, 3]]


def test_sources_differ_by_anything_said_of_them(store):
    asked = []
    for source in (SOURCE, SOURCE | {"version": "2"}, SOURCE | {"gpu": "l4"}):
        store.timed(source, {"one": 1}, counted(asked))
    assert len(asked) == 3


def test_what_was_timed_before_an_interruption_is_kept(store):
    def breaks(works):
        if 3 in works:
            raise KeyboardInterrupt
        return [1.0] * len(works)

    with pytest.raises(KeyboardInterrupt):
        store.timed(SOURCE, WORKS, breaks, at_once=1)
    asked = []
    assert store.timed(SOURCE, WORKS, counted(asked)) == [1.0, 1.0, 0.375]
    assert asked == [[3]]


def test_errors_of_the_source_are_its_own(store):
    def breaks(works):
        raise OSError("no clock")

    with pytest.raises(OSError, match="no clock"):
        store.timed(SOURCE, WORKS, breaks)


def test_a_store_without_a_file_keeps_nothing():
    asked = []
    for _ in range(2):
        assert TimingStore(None).timed(SOURCE, {"one": 1}, counted(asked)) == [0.125]
    assert len(asked) == 2


PROCESS = """
import sys
from pathlib import Path
from mist_sim.hardware.predictors.measured.timing_store import TimingStore
works = {str(number): number for number in range(200)}
own = float(sys.argv[2])
print(TimingStore(Path(sys.argv[1])).timed({"source": "race"}, works,
                                           lambda works: [own] * len(works), at_once=5))
"""


def test_processes_that_time_the_same_agree(store):
    running = [
        subprocess.Popen(
            [sys.executable, "-c", PROCESS, str(store.path), str(number)],
            stdout=subprocess.PIPE,
            text=True,
        )
        for number in (1, 2, 3)
    ]
    said = {process.communicate(timeout=120)[0] for process in running}
    assert [process.returncode for process in running] == [0, 0, 0]
    assert len(said) == 1


def test_the_file_of_another_program_is_left_alone(tmp_path):
    path = tmp_path / "theirs.sqlite"
    database = sqlite3.connect(path)
    database.execute("CREATE TABLE letters (text)")
    database.commit()
    database.close()
    before = path.read_bytes()
    with pytest.raises(ScenarioError, match=r"theirs.sqlite .*: it is a database of something"):
        TimingStore(path).timed(SOURCE, WORKS, counted([]))
    assert path.read_bytes() == before


def test_a_broken_file_is_named(tmp_path):
    path = tmp_path / "timings.sqlite"
    path.write_text("no database, but long enough to be taken for one" * 40)
    with pytest.raises(ScenarioError, match=r"timings.sqlite cannot be used .* delete it"):
        TimingStore(path).timed(SOURCE, WORKS, counted([]))


def test_a_format_of_the_future_is_refused(store):
    store.timed(SOURCE, WORKS, counted([]))
    database = sqlite3.connect(store.path)
    database.execute("PRAGMA user_version = 99")
    database.close()
    with pytest.raises(ScenarioError, match="format is 99"):
        store.timed(SOURCE, WORKS, counted([]))


def test_a_folder_that_cannot_be_made(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(ScenarioError, match="MIST_SIM_CACHE"):
        TimingStore(tmp_path / "file" / "timings.sqlite").timed(SOURCE, WORKS, counted([]))


def test_where_timings_are_kept(monkeypatch, tmp_path):
    monkeypatch.setenv("MIST_SIM_CACHE", str(tmp_path))
    assert TimingStore.default().path == tmp_path / "timings.sqlite"
    monkeypatch.setenv("MIST_SIM_CACHE", "")
    assert TimingStore.default().path is None
    monkeypatch.delenv("MIST_SIM_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    folder = cache_folder()
    assert isinstance(folder, Path)
    assert "mist-sim" in str(folder)
