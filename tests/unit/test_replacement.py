"""Earlier results give way to new ones: a kill, an error or others' files lose neither."""

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from mist_sim.errors import ScenarioError
from mist_sim.output import SUFFIX, is_free, output_file, output_folder, written_here

KILLS = '''
"""Save results in children, each killed before another of its operations on files."""
import os, signal, sys
from pathlib import Path
from mist_sim.output import output_folder

OPERATIONS = {"open", "os.mkdir", "os.rename", "os.remove", "os.rmdir", "shutil.rmtree"}

def save(folder, words, names):
    def write(place):
        for name in names:
            (place / name).write_text(words)
    with output_folder(folder, replace=True) as place:
        place.fill(write)

def in_a_child(work, *args, kill=0):
    """Tell whether it ended by itself."""
    sys.stdout.flush()
    pid = os.fork()
    if not pid:
        seen = 0
        def watch(event, _):
            nonlocal seen
            seen += event in OPERATIONS
            if seen == kill:
                os.kill(os.getpid(), signal.SIGKILL)
        if kill:
            sys.addaudithook(watch)
        work(*args)
        os._exit(0)
    return os.waitpid(pid, 0)[1] == 0

def killed_before_it_writes(folder):
    with output_folder(folder, replace=True):
        os.kill(os.getpid(), signal.SIGKILL)

for number in range(1, 500):
    folder = f"{number}/a"
    Path(folder).mkdir(parents=True)
    if sys.argv[1] == "results":
        save(folder, "old", ["one.txt", "two.txt"])
        Path(folder, "theirs.txt").write_text("theirs")
    done = in_a_child(save, folder, "new", ["one.txt", "three.txt"], kill=number)
    in_a_child(killed_before_it_writes, folder)
    print(number, done, flush=True)
    if done:
        break
'''


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


def files(folder: str) -> dict[str, str]:
    return {path.name: path.read_text() for path in sorted(Path(folder).iterdir())}


def save(folder: str, *, replace: bool = False, **texts: str) -> None:
    def write(place: Path) -> None:
        for name, text in texts.items():
            (place / f"{name}.txt").write_text(text)

    with output_folder(folder, replace=replace) as place:
        place.fill(write)


def results(folder: str) -> dict[str, str]:
    """Return the files of a folder without the sums, which have to be right."""
    assert all(written_here(Path(folder)).values())
    return {name: text for name, text in files(folder).items() if name != "SHA256SUMS"}


class Broken:
    """Renames that fail from one on, for so many times."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, error: type[BaseException]) -> None:
        self.fails: Callable[[int], bool] = lambda number: False
        self.count = 0
        rename = Path.rename

        def counted(source: Path, destination: Path) -> Path:
            self.count += 1
            if self.fails(self.count):
                raise error
            return rename(source, destination)

        monkeypatch.setattr(Path, "rename", counted)


# --- kills ------------------------------------------------------------------------------------


@pytest.mark.skipif(os.name != "posix", reason="forks")
@pytest.mark.parametrize("before", ["results", pytest.param("nothing", marks=pytest.mark.deep)])
def test_a_kill_at_any_point_loses_neither_the_old_nor_the_new(before):
    """The folder is there; after the kill, another run is killed that would replace, too."""
    ran = subprocess.run(
        [sys.executable, "-c", KILLS, before], capture_output=True, text=True, check=True
    )
    *killed, last = ran.stdout.splitlines()
    assert last.endswith("True"), ran.stdout
    assert len(killed) > 20, "operations on files that a kill may precede"
    old = {"one.txt": "old", "two.txt": "old"} if before == "results" else {}
    new = {"one.txt": "new", "three.txt": "new"}
    theirs = {"theirs.txt": "theirs"} if before == "results" else {}
    seen = []
    for number in range(1, len(killed) + 2):
        found = results(f"{number}/a")
        assert found in ({**old, **theirs}, {**new, **theirs}), number
        seen.append("one.txt" in found and found["one.txt"] == "new")
        save(f"{number}/a", replace=True, one="newer")
        assert results(f"{number}/a") == {"one.txt": "newer", **theirs}, number
        assert [path.name for path in Path(str(number)).iterdir()] == ["a"], number
    assert seen == sorted(seen), "once the new ones are there they stay"
    assert set(seen) == {False, True}


def cut_off(monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    """Replace one and two in the folder `a`, and fail at a move for good."""
    save("a", one="1", two="2")
    with monkeypatch.context() as patch:
        Broken(patch, OSError).fails = lambda count: count >= number
        with pytest.raises(ScenarioError, match="some files are moved, and the next run into"):
            save("a", replace=True, one="new", two="new")
    assert Path(f".a{SUFFIX}/journal").exists()


@pytest.mark.parametrize("number", range(2, 6))
def test_what_is_put_there_before_next_run_stays(monkeypatch, number):
    """Moves: the old sums, one and two go; the new one and two come, then the sums."""
    cut_off(monkeypatch, number)
    Path("a/two.txt").write_text("theirs")
    begun = files("a")
    for _ in range(2):
        with pytest.raises(ScenarioError, match=r"two.txt came or changed since; move it away"):
            save("a", replace=True, one="newer")
        assert files("a") == begun
        assert not is_free("a")
    Path("a/two.txt").unlink()
    with pytest.raises(ScenarioError, match="holds earlier results"):
        save("a", one="newer")
    assert results("a") == {"one.txt": "new", "two.txt": "new"}
    assert not Path(f".a{SUFFIX}").exists()


@pytest.mark.parametrize(
    "text",
    [
        '{"old": {}, "new": ["../mine.txt"]}',
        '{"old": {"../mine.txt": "0"}, "new": []}',
        '{"old": {}, "new": ["/mine.txt"]}',
        '{"old": {}, "new": [1]}',
        '{"old": 1}',
        "[]",
        "\x00",
    ],
)
def test_a_journal_of_others_moves_nothing(text):
    save("a", one="1")
    Path("mine.txt").write_text("mine")
    Path(f".a{SUFFIX}/new").mkdir(parents=True)
    Path(f".a{SUFFIX}/mine.txt").write_text("theirs")
    Path(f".a{SUFFIX}/journal").write_text(text)
    for replace in (False, True):
        with pytest.raises(ScenarioError, match="journal: is none that mist-sim wrote; move it aw"):
            save("a", replace=replace, one="new")
    assert Path("mine.txt").read_text() == "mine"
    assert results("a") == {"one.txt": "1"}


def test_a_folder_that_was_removed_since_begins_anew(monkeypatch):
    cut_off(monkeypatch, 3)
    shutil.rmtree("a")
    assert is_free("a")
    save("a", one="newer")
    assert results("a") == {"one.txt": "newer"}
    assert [path.name for path in Path().iterdir()] == ["a"]


# --- errors -----------------------------------------------------------------------------------


@pytest.mark.parametrize("number", range(1, 8))
def test_an_interruption_between_two_files_leaves_all_as_it_was(monkeypatch, number):
    save("a", one="1", two="2")
    before = files("a")
    with monkeypatch.context() as patch:
        broken = Broken(patch, KeyboardInterrupt)
        broken.fails = lambda count: count == number
        with pytest.raises(KeyboardInterrupt):
            save("a", replace=True, one="new", two="new", three="new")
    assert broken.count == 2 * number - 1, "as many moves back as forth"
    assert files("a") == before
    assert [path.name for path in Path().iterdir()] == ["a"]


def test_results_that_cannot_be_put_in_place_are_kept_beside_it(monkeypatch):
    save("a", one="1", two="2")
    before = files("a")
    with monkeypatch.context() as patch:
        Broken(patch, OSError).fails = lambda count: count == 3
        with pytest.raises(
            ScenarioError, match=r"a: cannot be written: .*; the results are in a-2"
        ):
            save("a", replace=True, one="new", two="new")
    assert files("a") == before
    assert results("a-2") == {"one.txt": "new", "two.txt": "new"}


def test_the_sums_are_gone_while_files_move(monkeypatch):
    save("a", one="1", two="2")
    rename, seen = Path.rename, []

    def watched(source: Path, destination: Path) -> Path:
        seen.append(Path("a/SHA256SUMS").exists())
        return rename(source, destination)

    with monkeypatch.context() as patch:
        patch.setattr(Path, "rename", watched)
        save("a", replace=True, one="new", three="new")
    assert seen == [True, False, False, False, False, False]
    assert results("a") == {"one.txt": "new", "three.txt": "new"}


# --- links ------------------------------------------------------------------------------------


def loop(name: str) -> None:
    Path("other").symlink_to(name)
    Path(name).symlink_to("other")


@pytest.mark.parametrize("place", ["a", "a/b"])
def test_links_in_a_circle_are_told_before_run(place):
    loop("a")
    with pytest.raises(ScenarioError, match="a.*: cannot be written: Too many levels of symbolic"):
        output_folder(place).__enter__()
    with pytest.raises(
        ScenarioError, match="a.*: cannot be written: (Too many levels|there is no)"
    ):
        output_file(place, replace=True).__enter__()
    assert sorted(path.name for path in Path().iterdir()) == ["a", "other"]


def test_a_link_to_a_file_in_no_folder_is_told_before_the_run():
    Path("a.json").symlink_to("nowhere/a.json")
    with pytest.raises(ScenarioError, match="a.json: cannot be written: there is no folder .*nowh"):
        output_file("a.json").__enter__()
    assert [path.name for path in Path().iterdir()] == ["a.json"]


@pytest.mark.parametrize("name", ["one.txt", "SHA256SUMS"])
@pytest.mark.parametrize("what", ["link", "folder"])
def test_links_and_folders_in_the_place_of_results_are_told_before_the_run(name, what):
    save("a", one="1", two="2")
    Path("a", name).rename("moved")
    if what == "link":
        Path("a", name).symlink_to("../moved")
    else:
        Path("a", name).mkdir()
    with pytest.raises(ScenarioError, match=r"one.txt changed since|holds no results that --force"):
        output_folder("a", replace=True).__enter__()
    assert Path("moved").is_file()


def test_a_private_room_is_never_folder_of_others():
    Path("theirs").mkdir()
    Path("theirs/new").write_text("theirs")
    Path(f".a{SUFFIX}").symlink_to("theirs")
    with pytest.raises(ScenarioError, match="a: cannot be written: File exists"):
        save("a", one="1")
    assert files("theirs") == {"new": "theirs"}


def test_what_others_put_into_a_private_room_stays():
    Path(f".a{SUFFIX}").mkdir()
    Path(f".a{SUFFIX}/diary.txt").write_text("theirs")
    save("a", one="1")
    assert files(f".a{SUFFIX}") == {"diary.txt": "theirs"}
