"""The wheel holds the whole package, and works in an environment that knows no checkout."""

import json
import tarfile
import zipfile
from email import message_from_bytes

import pytest

from mist_sim import compiled
from tests.conftest import ROOT
from tests.packages.environments import new_environment

pytestmark = pytest.mark.deep  # installs packages; `make package` runs it


def files_of_the_package():
    return {
        path.relative_to(ROOT).as_posix()
        for path in (ROOT / "mist_sim").rglob("*")
        if path.is_file() and not {"__pycache__", compiled.FOLDER} & set(path.parts)
    }


def test_the_wheel_is_built_from_the_sdist_and_holds_every_file(packages):
    sdist, wheel = packages
    with tarfile.open(sdist) as files:
        in_sdist = {name.partition("/")[2] for name in files.getnames()}
    with zipfile.ZipFile(wheel) as files:
        in_wheel = {name for name in files.namelist() if ".dist-info/" not in name}
        (metadata,) = (name for name in files.namelist() if name.endswith("/METADATA"))
        said = message_from_bytes(files.read(metadata))
    core = {name for name in in_wheel if compiled.FOLDER in name}
    assert in_wheel - core == files_of_the_package()
    assert len(core) == len(compiled.sources(ROOT / "mist_sim")), "is there no C compiler?"
    assert files_of_the_package() <= in_sdist
    assert {"CITATION.cff", "LICENSE", "mkdocs.yml", "constraints.txt", "docs/index.md"} <= in_sdist
    assert "License-Expression" in said
    assert said["Description-Content-Type"] == "text/markdown"


def test_the_wheel_works_outside_the_checkout(packages, tmp_path):
    _, wheel = packages
    user = new_environment(tmp_path)
    user.install(str(wheel))
    place = user.run("python", "-c", "import mist_sim; print(mist_sim.__file__)").strip()
    assert place.startswith(str(tmp_path))
    assert "engine core: compiled\n" in user.run("mist", "--version")
    assert "llama-3.1-8b" in user.run("mist", "list", "models")
    assert "2 x llm" in user.run("mist", "demo")
    summary = json.loads((user.folder / "mist-demo" / "summary.json").read_text("utf-8"))
    assert summary["completed"] == 2000
    assert user.run("python", "-m", "pip", "check").strip() == "No broken requirements found."


def test_without_compiler_it_installs_and_runs_as_python(packages, tmp_path, monkeypatch):
    sdist, _ = packages
    user = new_environment(tmp_path)
    monkeypatch.setenv("CC", "/nonexistent")
    user.install(str(sdist))
    assert "engine core: Python (not compiled" in user.run("mist", "--version")
    assert "2 x llm" in user.run("mist", "demo")
