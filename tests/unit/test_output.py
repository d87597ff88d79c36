"""Results on disk: one writer at a time, whole or not at all, and nothing of others is lost."""

import hashlib
import json
import os
import shutil
import subprocess
import sys
import threading
from contextlib import ExitStack
from pathlib import Path

import pytest

from mist_sim.errors import ScenarioError
from mist_sim.output import SUFFIX, is_free, output_file, output_folder, write_whole

HOLD = """
import sys, time
from mist_sim.output import output_folder
with output_folder(sys.argv[1]):
    print("claimed", flush=True)
    time.sleep(60)
"""


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


def tree() -> dict[str, str]:
    """Every file here with its content, and every folder."""
    paths = sorted(Path().rglob("*"))
    return {str(path): path.read_text() if path.is_file() else "folder" for path in paths}


def results(**files: str):
    """Return what writes files NAME.txt of a result."""

    def write(folder: Path) -> None:
        for name, text in files.items():
            (folder / f"{name}.txt").write_text(text)

    return write


def failing_run(folder: str, *theirs: str) -> None:
    """A run that fails after others wrote files."""
    with output_folder(folder):
        for name in theirs:
            Path(name).parent.mkdir(parents=True, exist_ok=True)
            Path(name).write_text("theirs")
        raise RuntimeError


def save(folder: str, *, replace: bool = False, **files: str) -> None:
    with output_folder(folder, replace=replace) as place:
        place.fill(results(**files))


# --- folders ----------------------------------------------------------------------------------


def test_nothing_is_seen_of_a_folder_before_it_is_whole():
    with output_folder("a/b") as place:
        assert not Path("a/b").exists()

        def write(folder: Path) -> None:
            results(one="1")(folder)
            assert not Path("a/b").exists()

        assert place.fill(write) == ["SHA256SUMS", "one.txt"]
        assert Path("a/b/one.txt").read_text() == "1"
    assert set(tree()) == {"a", "a/b", "a/b/SHA256SUMS", "a/b/one.txt"}


def test_the_sums_are_what_other_tools_read():
    save("a", one="1", two="2")
    lines = Path("a/SHA256SUMS").read_text().splitlines()
    assert lines[0].startswith("#")
    for line, (name, text) in zip(lines[1:], [("one", "1"), ("two", "2")], strict=True):
        assert line == f"{hashlib.sha256(text.encode()).hexdigest()}  {name}.txt"
    if tool := shutil.which("sha256sum"):
        subprocess.run([tool, "--check", "--quiet", "SHA256SUMS"], cwd="a", check=True)


@pytest.mark.parametrize("prepare", [lambda: None, lambda: Path("a").mkdir()], ids=["new", "empty"])
def test_a_failed_run_leaves_the_folder_and_what_others_put_there(prepare):
    prepare()
    before = tree()
    with pytest.raises(RuntimeError):
        failing_run("a")
    assert tree() == before
    with pytest.raises(RuntimeError):
        failing_run("a", "a/theirs.txt")
    assert tree() == {"a": "folder", "a/theirs.txt": "theirs"}


def test_folders_above_stay_when_somebody_used_them_meanwhile():
    with pytest.raises(RuntimeError):
        failing_run("a/b/c", "a/theirs.txt")
    assert tree() == {"a": "folder", "a/theirs.txt": "theirs"}


def test_what_others_put_into_the_folder_during_the_run_stays_beside_the_results():
    with output_folder("a") as place:
        Path("a").mkdir()
        Path("a/theirs.txt").write_text("theirs")
        place.fill(results(one="1"))
    assert Path("a/theirs.txt").read_text() == "theirs"
    assert Path("a/one.txt").read_text() == "1"


def test_results_whose_place_was_taken_meanwhile_are_kept_beside_it():
    with output_folder("a") as place:
        Path("a").mkdir()
        Path("a/one.txt").write_text("theirs")
        Path("a-2").mkdir()
        with pytest.raises(ScenarioError) as told:
            place.fill(results(one="1"))
    assert str(told.value) == (
        "output folder a: another program put one.txt there during the run; the results are in a-3"
    )
    assert Path("a/one.txt").read_text() == "theirs"
    assert Path("a-3/one.txt").read_text() == "1"


@pytest.mark.parametrize("folder", ["a", "./a", "b/../a", "link"])
def test_a_second_run_is_told_at_once_that_the_folder_is_in_use(folder):
    Path("b").mkdir()
    Path("link").symlink_to("a")
    with ExitStack() as first:
        first.enter_context(output_folder("a"))
        with pytest.raises(ScenarioError, match="is in use: another run is about to write it"):
            first.enter_context(output_folder(folder))
        assert not is_free("a")
    save(folder, one="1")
    assert Path("a/one.txt").exists()


def test_a_killed_process_leaves_folder_free_for_next():
    first = subprocess.Popen([sys.executable, "-c", HOLD, "a"], stdout=subprocess.PIPE, text=True)
    assert first.stdout is not None
    assert first.stdout.readline() == "claimed\n"
    with pytest.raises(ScenarioError, match="is in use"):
        save("a", one="1")
    first.kill()
    first.communicate()
    assert f".a{SUFFIX}" in tree(), "it had no time to tidy up"
    save("a", one="1")
    assert set(tree()) == {"a", "a/SHA256SUMS", "a/one.txt"}


def test_a_folder_that_is_where_the_user_stands_stays_the_same_folder():
    Path("a").mkdir()
    inode = Path("a").stat().st_ino
    os.chdir("a")
    save(".", one="1")
    assert Path("one.txt").exists()
    assert Path().stat().st_ino == inode


def test_a_folder_on_another_file_system_has_its_private_room_inside(monkeypatch):
    Path("a").mkdir()
    monkeypatch.setattr(os.path, "ismount", lambda path: Path(path).name == "a")
    with output_folder("a") as place:
        assert set(tree()) == {"a", f"a/{SUFFIX}", f"a/{SUFFIX}/lock"}
        place.fill(results(one="1"))
    assert set(tree()) == {"a", "a/SHA256SUMS", "a/one.txt"}


# --- replacing --------------------------------------------------------------------------------


def test_earlier_results_are_replaced_where_that_is_asked_for_and_files_of_others_stay():
    save("a", one="1", two="2")
    Path("a/theirs.txt").write_text("theirs")
    with pytest.raises(ScenarioError, match="holds earlier results; --force"):
        save("a", one="new")
    save("a", replace=True, one="new", three="3")
    content = tree()
    del content["a/SHA256SUMS"]
    assert content == {
        "a": "folder",
        "a/one.txt": "new",
        "a/theirs.txt": "theirs",
        "a/three.txt": "3",
    }
    save("a", replace=True, one="newer")
    assert Path("a/one.txt").read_text() == "newer"


def sums_of_others() -> None:
    """A folder of another program with a file of the same name and true sums."""
    Path("a/one.txt").write_text("theirs")
    known = hashlib.sha256(b"theirs").hexdigest()
    Path("a/SHA256SUMS").write_text(f"{known}  one.txt\n")


def changed() -> None:
    save("a", one="1", two="2")
    Path("a/one.txt").write_text("edited")


@pytest.mark.parametrize(
    ("prepare", "words"),
    [
        (lambda: Path("a/one.txt").write_text("theirs"), "holds no results that --force could"),
        (lambda: Path("a/SHA256SUMS").write_bytes(b"\xff\xfe"), "holds no results"),
        (lambda: Path("a/SHA256SUMS").mkdir(), "holds no results"),
        (sums_of_others, "holds no results"),
        (changed, "one.txt changed since mist-sim wrote it"),
    ],
    ids=["theirs", "no text", "folder", "sums of others", "changed"],
)
def test_files_of_others_are_never_replaced(prepare, words):
    Path("a").mkdir()
    prepare()
    before = sorted(str(path) for path in Path().rglob("*"))
    with pytest.raises(ScenarioError, match=words):
        output_folder("a", replace=True).__enter__()
    assert sorted(str(path) for path in Path().rglob("*")) == before
    assert not Path("a/one.txt").exists() or Path("a/one.txt").read_text() in ("theirs", "edited")


def test_sums_cannot_name_files_outside_the_folder():
    save("a", one="1")
    Path("mine.txt").write_text("mine")
    known = hashlib.sha256(b"mine").hexdigest()
    with Path("a/SHA256SUMS").open("a") as sums:
        sums.write(f"{known}  ../mine.txt\n")
    save("a", replace=True, one="new")
    assert Path("mine.txt").read_text() == "mine"
    assert Path("a/one.txt").read_text() == "new"


def test_a_file_that_was_edited_during_the_run_is_not_replaced():
    save("a", one="1", two="2")
    with output_folder("a", replace=True) as place:
        Path("a/two.txt").write_text("edited")
        with pytest.raises(ScenarioError, match=r"put two.txt there during the run; .* in a-2"):
            place.fill(results(one="new", two="new"))
    assert Path("a/two.txt").read_text() == "edited"
    assert Path("a/one.txt").read_text() == "1"
    assert Path("a-2/two.txt").read_text() == "new"


# --- single files -----------------------------------------------------------------------------


def test_a_file_that_is_there_is_replaced_only_where_that_is_asked_for():
    Path("x.json").write_text("theirs")
    with pytest.raises(ScenarioError, match="x.json: is there already; --force replaces it"):
        output_file("x.json").__enter__()
    assert tree() == {"x.json": "theirs"}
    Path("x.json").chmod(0o600)
    with output_file("x.json", replace=True) as file:
        file.write("new")
    assert tree() == {"x.json": "new"}
    assert Path("x.json").stat().st_mode & 0o777 == 0o600


def test_an_empty_file_loses_nothing():
    Path("x.json").touch()
    with output_file("x.json") as file:
        file.write("new")
    assert tree() == {"x.json": "new"}


def test_a_file_that_somebody_wrote_meanwhile_stays():
    with output_file("x.json") as file:
        Path("x.json").write_text("theirs")
        with pytest.raises(ScenarioError, match="is there already"):
            file.write("new")
    assert tree() == {"x.json": "theirs"}


def test_two_writers_of_a_file_do_not_meet():
    with output_file("x.json") as first:
        with pytest.raises(ScenarioError, match="x.json: is in use"):
            write_whole("x.json", "second")
        first.write("first")
    write_whole("x.json", "second")
    assert tree() == {"x.json": "second"}


def test_a_link_stays_a_link():
    Path("folder").mkdir()
    Path("folder/real.json").write_text("old")
    Path("x.json").symlink_to("folder/real.json")
    write_whole("x.json", "new")
    assert Path("x.json").is_symlink()
    assert Path("folder/real.json").read_text() == "new"


def test_files_of_others_beside_a_file_stay():
    Path(".x.json.partial").write_text("theirs")
    write_whole("x.json", json.dumps(1))
    assert tree() == {".x.json.partial": "theirs", "x.json": "1"}


# --- many at once -----------------------------------------------------------------------------


def test_of_many_that_come_and_go_one_at_a_time_has_the_folder():
    holders, counts, errors = [], [], set()

    def come_and_go() -> None:
        for _ in range(200):
            try:
                with output_folder("a/b", replace=True) as place:
                    holders.append(None)
                    counts.append(len(holders))
                    place.fill(results(one="1"))
                    holders.pop()
            except ScenarioError as error:
                errors.add(str(error).partition(": another")[0])

    threads = [threading.Thread(target=come_and_go) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert set(counts) == {1}
    assert errors <= {"output folder a/b: is in use"}
    assert set(tree()) == {"a", "a/b", "a/b/SHA256SUMS", "a/b/one.txt"}


@pytest.mark.parametrize("taken", ["file", "link"])
def test_private_room_that_somebody_else_took_is_told(taken):
    room = Path(f".a{SUFFIX}")
    if taken == "file":
        room.write_text("theirs")
    else:
        room.symlink_to("nowhere")
    with pytest.raises(ScenarioError, match="output folder a: cannot be written: File exists"):
        save("a", one="1")
    assert os.path.lexists(room)


def test_rows_of_a_study_that_was_stopped_are_not_lost_unasked(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    room = Path(".out.mist-partial")
    room.mkdir()
    (room / "study.jsonl").write_text("what it is of\na row\n")
    (room / "study.jsonl.lock").touch()
    assert not is_free("out")
    told = "out: a study that was stopped has left its results so far"
    with pytest.raises(ScenarioError, match=told), output_folder("out"):
        pass
    with output_folder("out", resume=True) as folder:
        assert folder.journal.read_text() == "what it is of\na row\n"
    assert [path.name for path in room.iterdir()] == ["study.jsonl"]
    with output_folder("out", replace=True) as folder:
        assert not folder.journal.exists()
    assert not room.exists()
    assert is_free("out")


@pytest.mark.parametrize("content", ["", "what it is of\n", "what it is"])
def test_a_journal_without_rows_is_nobodys(tmp_path, monkeypatch, content):
    monkeypatch.chdir(tmp_path)
    room = Path(".out.mist-partial")
    room.mkdir()
    (room / "study.jsonl").write_text(content)
    with output_folder("out"):
        assert not (room / "study.jsonl").exists()
    assert not room.exists()
