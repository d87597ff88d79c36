"""The journal of a study: what is on disk when it is killed, and who may go on with it."""

import json
from pathlib import Path

import pytest

from mist_sim import ScenarioError
from mist_sim.output import lock, unlock
from mist_sim.studies.driver import studying
from mist_sim.studies.journal import journal_at
from mist_sim.studies.task import Task

IDENTITY = {"study": "squares", "subjects": {"a": {"rate": 2}}}


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


def square(number: int) -> dict[str, object]:
    """Note that it was computed; fail for 13."""
    with Path("computed").open("a") as file:
        file.write(f"{number}\n")
    if number == 13:
        raise ScenarioError("number must not be 13")
    return {"square": number**2, "root": number**0.5, "none": float("nan"), "pair": (number, 1)}


def computed() -> list[int]:
    return sorted(map(int, Path("computed").read_text().split()))


def tasks(*numbers: int) -> list[Task]:
    return [Task((number,), square, (number,)) for number in numbers]


def rows(*numbers: int, jobs: int = 1, resume: bool = False, **subjects: object):
    options = {"jobs": jobs, "journal": "j.jsonl", "resume": resume}
    with studying("squares", subjects or {"a": 1}, {}, **options) as driver:
        found = driver.run(tasks(*numbers), keep_errors=True)
    return [(row.key, str(row.result), str(row.failure)) for row in found]


@pytest.mark.parametrize("jobs", [1, 2])
def test_a_journal_is_gone_on_with_and_nothing_is_repeated(jobs):
    whole = rows(1, 2, 13, 4, 5, jobs=jobs)
    lines = Path("j.jsonl").read_bytes().splitlines(keepends=True)
    assert len(lines) == 1 + 5
    for cut in range(len(lines) + 1):
        Path("computed").write_text("")
        torn = lines[cut][:20] if cut < len(lines) else b""
        Path("j.jsonl").write_bytes(b"".join(lines[:cut]) + torn)
        assert rows(1, 2, 13, 4, 5, resume=True) == whole
        kept = {json.loads(line)["key"][0] for line in lines[1:cut]}
        assert set(computed()) == {1, 2, 13, 4, 5} - kept
        assert len(computed()) == 5 - len(kept), "once each"
        again = Path("j.jsonl").read_text().splitlines()
        assert len(again) == 6, "nothing is written twice"
        assert all(map(json.loads, again))
    assert "number must not be 13" in whole[2][2]


def test_every_row_is_on_disk_at_once():
    with studying("squares", {"a": 1}, journal="j.jsonl", jobs=1) as driver:
        for number, _ in enumerate(driver.stream(tasks(3, 4, 5)), 1):
            assert len(Path("j.jsonl").read_text().splitlines()) == 1 + number


def test_zeros_at_the_end_are_a_torn_line_and_others_are_damage():
    whole = rows(1, 2)
    content = Path("j.jsonl").read_bytes()
    Path("j.jsonl").write_bytes(content + b"\0\0\0\n")
    assert rows(1, 2, resume=True) == whole
    lines = content.splitlines(keepends=True)
    damaged = lines[0] + b"{}\n" + lines[2]
    Path("j.jsonl").write_bytes(damaged)
    with pytest.raises(ScenarioError, match="journal j.jsonl: line 2 is damaged"):
        rows(1, 2, resume=True)
    assert Path("j.jsonl").read_bytes() == damaged


@pytest.mark.parametrize(
    ("content", "resume", "words"),
    [
        (None, False, "is there already; --resume"),
        (None, True, "is that of another study, where 'subjects.a' is 1, and here it is 2"),
        (b"my notes\n", True, "is no journal of a study"),
        (b"my notes", True, "is no journal of a study"),
        (b'{"format": "mist-sim study, version 1"\n', True, "line 1 is damaged"),
    ],
)
def test_what_is_no_journal_of_the_study_stays_as_it_is(content, resume, words):
    rows(1, 2, a=1)
    if content is not None:
        Path("j.jsonl").write_bytes(content)
    before = Path("j.jsonl").read_bytes()
    with pytest.raises(ScenarioError) as told:
        rows(1, 2, resume=resume, a=2)
    assert words in str(told.value)
    assert Path("j.jsonl").read_bytes() == before
    assert sorted(path.name for path in Path().iterdir()) == ["computed", "j.jsonl"]


def test_file_that_subject_names_is_part_of_study():
    Path("trace.csv").write_text("1")
    subject = {"workload": {"trace": "trace.csv"}}
    rows(1, a=subject)
    assert rows(1, resume=True, a=subject)
    Path("trace.csv").write_text("2")
    with pytest.raises(ScenarioError, match=r"another study, where 'files\.trace\.csv' is '6b86"):
        rows(1, resume=True, a=subject)


def test_two_studies_do_not_write_one_journal():
    held = lock(Path("j.jsonl.lock"))
    with pytest.raises(ScenarioError, match="journal j.jsonl: is in use"):
        rows(1)
    unlock(Path("j.jsonl.lock"), held)
    assert rows(1)


def test_a_journal_without_rows_is_removed():
    with journal_at("j.jsonl", IDENTITY, resume=False):
        assert Path("j.jsonl").exists()
    assert not list(Path().iterdir())


def test_a_full_disk_leaves_whole_lines(monkeypatch):
    rows(1)
    before = Path("j.jsonl").read_bytes()
    with studying("squares", {"a": 1}, {}, jobs=1, journal="j.jsonl", resume=True) as driver:
        assert driver.journal is not None
        monkeypatch.setattr(driver.journal, "_file", Full(driver.journal._file))
        with pytest.raises(ScenarioError, match="journal j.jsonl: cannot be written: no room"):
            driver.run(tasks(1, 2))
    assert Path("j.jsonl").read_bytes() == before


class Full:
    """A file on a disk that has room for five bytes."""

    def __init__(self, file):
        self._file = file

    def write(self, content):
        if len(content) < 10:
            raise OSError(28, "no room")
        return self._file.write(content[: max(5, len(content) - 5)])

    def __getattr__(self, name):
        return getattr(self._file, name)


def test_resume_needs_a_journal():
    with (
        pytest.raises(ScenarioError, match="resume has no effect without a journal"),
        studying("squares", {}, resume=True),
    ):
        pass


def interrupted() -> None:
    with studying("squares", {"a": 1}, jobs=1, journal="j.jsonl") as driver:
        for _ in driver.stream(tasks(1, 2, 3)):
            raise KeyboardInterrupt


def failing() -> None:
    with studying("squares", {}, jobs=1, journal="j.jsonl") as driver:
        driver.run(tasks(1, 2))
        raise ScenarioError("no answer")


def test_an_error_says_what_is_kept():
    with pytest.raises(ScenarioError) as error:
        failing()
    (told,) = error.value.__notes__
    assert told.startswith("finished runs are kept (2) in j.jsonl: --resume")


def test_an_interruption_says_what_is_kept():
    with pytest.raises(KeyboardInterrupt) as stop:
        interrupted()
    kept, so_far = stop.value.__notes__
    assert kept.startswith("finished runs are kept (1) in j.jsonl: --resume")
    assert so_far == "stopped after 1 run: too early to tell anything"
    assert computed() == [1]
