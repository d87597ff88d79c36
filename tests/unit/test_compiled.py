"""Which files of the compiled core are loaded, and what is said where none is."""

import sys

import pytest

from mist_sim import compiled
from mist_sim.errors import ScenarioError


@pytest.fixture
def package(tmp_path, monkeypatch):
    """A package with one module to compile, in the place of mist_sim."""
    (tmp_path / "room").mkdir()
    (tmp_path / "room" / "core.py").write_text("x = 1\n")
    (tmp_path / "room" / "core.pxd").write_text("cdef int x\n")
    (tmp_path / "room" / "plain.py").write_text("y = 1\n")
    monkeypatch.setattr(compiled, "_PACKAGE", tmp_path)
    monkeypatch.setattr(compiled, "_built", compiled._built.__wrapped__)
    monkeypatch.delenv(compiled.VARIABLE, raising=False)
    return tmp_path


def build(package, suffix=None, kind=compiled.COMPILED):
    suffix = suffix or compiled.importlib.machinery.EXTENSION_SUFFIXES[0]
    room = package / compiled.FOLDER / compiled.build_name(package, kind) / "room"
    room.mkdir(parents=True)
    (room / f"core{suffix}").touch()
    return room


def test_modules_with_types_beside_them_are_compiled(package):
    assert compiled.sources(package) == [package / "room" / "core.py"]


@pytest.mark.parametrize("name", ["core.py", "core.pxd"])
def test_a_changed_source_has_another_digest(package, name):
    before = compiled.digest(package)
    with (package / "room" / name).open("a") as file:
        file.write("# more\n")
    assert compiled.digest(package) != before


def test_line_ends_of_another_system_change_nothing(package):
    before = compiled.digest(package)
    (package / "room" / "core.py").write_bytes(b"x = 1\r\n")
    assert compiled.digest(package) == before


def test_a_package_looks_among_its_compiled_files_first(package):
    room = build(package)
    assert compiled.places("mist_sim.room", ["here"]) == [str(room), "here"]
    assert compiled.state() == "compiled"


def test_the_variable_forces_python(package, monkeypatch):
    build(package)
    monkeypatch.setenv(compiled.VARIABLE, "python")
    assert compiled.places("mist_sim.room", ["here"]) == ["here"]
    assert compiled.state() == "Python (MIST_SIM_CORE=python)"


def test_checked_files_are_others(package, monkeypatch):
    room = build(package, kind="checked")
    monkeypatch.setenv(compiled.VARIABLE, "checked")
    assert compiled.places("mist_sim.room", [])[0] == str(room)
    assert compiled.state() == "checked"


def test_a_wrong_choice_is_refused(package, monkeypatch):
    monkeypatch.setenv(compiled.VARIABLE, "rust")
    with pytest.raises(ScenarioError, match="MIST_SIM_CORE must be one of compiled, .* got 'rust'"):
        compiled.places("mist_sim.room", [])


def test_stale_files_are_passed_over_with_a_reason(package):
    build(package)
    (package / "room" / "core.py").write_text("x = 2\n")
    assert compiled.state().startswith("Python (the compiled files do not fit the sources")


def test_files_for_another_python_are_named(package):
    build(package, ".cpython-399-x86_64-linux-gnu.so" if sys.platform == "linux" else ".x.pyd")
    assert compiled.state().startswith("Python (the compiled files are for another Python")


def test_without_a_compiler_it_says_so(package):
    assert compiled.state() == "Python (not compiled: there was no C compiler at installation)"
