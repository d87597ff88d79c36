"""The wheel holds the whole package, and works in an environment that knows no checkout."""

import json
import tarfile
import zipfile
from email import message_from_bytes

import pytest

from tests.conftest import ROOT
from tests.packages.environments import new_environment

pytestmark = pytest.mark.deep  # installs packages; `make package` runs it


def files_of_the_package():
    return {
        path.relative_to(ROOT).as_posix()
        for path in (ROOT / "mist_sim").rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }


def test_the_wheel_is_built_from_the_sdist_and_holds_every_file(packages):
    sdist, wheel = packages
    with tarfile.open(sdist) as files:
        in_sdist = {name.partition("/")[2] for name in files.getnames()}
    with zipfile.ZipFile(wheel) as files:
        in_wheel = {name for name in files.namelist() if name.startswith("mist_sim/")}
        (metadata,) = (name for name in files.namelist() if name.endswith("/METADATA"))
        said = message_from_bytes(files.read(metadata))
    assert in_wheel == files_of_the_package()
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
    assert user.run("mist", "--version").startswith("mist-sim ")
    assert "llama-3.1-8b" in user.run("mist", "list", "models")
    assert "2 x llm" in user.run("mist", "demo")
    summary = json.loads((user.folder / "mist-demo" / "summary.json").read_text("utf-8"))
    assert summary["completed"] == 2000
    assert user.run("python", "-m", "pip", "check").strip() == "No broken requirements found."
