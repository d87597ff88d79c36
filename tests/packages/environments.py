"""Environments outside the checkout, into which tests install what a user would install."""

import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from tests.conftest import ROOT

CONSTRAINTS = ROOT / "constraints.txt"


@dataclass(frozen=True)
class Environment:
    """A virtual environment, and the folder that its commands run in."""

    path: Path
    folder: Path

    @property
    def scripts(self) -> Path:
        return self.path / ("Scripts" if sys.platform == "win32" else "bin")

    def run(self, program: str, *arguments: str, timeout: float = 600) -> str:
        """Run a program of the environment as if nothing of the checkout were there.

        Returns what it wrote to stdout; raises CalledProcessError, with stderr as a note.
        """
        kept = {key: value for key, value in os.environ.items() if not key.startswith("PYTHON")}
        done = subprocess.run(
            [str(self.scripts / program), *arguments],
            cwd=self.folder,
            env=kept,
            capture_output=True,
            text=True,
            timeout=timeout,
            check=False,
        )
        if done.returncode:
            error = subprocess.CalledProcessError(done.returncode, [program, *arguments])
            error.add_note(done.stdout[-2000:] + done.stderr[-4000:])
            raise error
        return done.stdout

    def install(self, *requirements: str) -> None:
        """Install with the pinned versions."""
        quiet = ("-q", "--disable-pip-version-check", "-c", str(CONSTRAINTS))
        self.run("python", "-m", "pip", "install", *quiet, *requirements)


def new_environment(room: Path) -> Environment:
    """Return a fresh environment in a folder, and an empty folder beside it to work in."""
    subprocess.run([sys.executable, "-m", "venv", str(room / "venv")], check=True)
    folder = room / "work"
    folder.mkdir()
    return Environment(room / "venv", folder)


def build(room: Path) -> tuple[Path, Path]:
    """Return the sdist of the checkout, and the wheel that is built from this sdist."""
    builder = new_environment(room)
    builder.install("hatchling>=1.27,<2")
    command = ("-m", "hatchling", "build", "-t", "sdist", "-d", str(room / "dist"))
    in_checkout = Environment(builder.path, ROOT)
    in_checkout.run("python", *command)
    (sdist,) = (room / "dist").glob("*.tar.gz")
    quiet = ("-q", "--disable-pip-version-check", "--no-deps")
    builder.run("python", "-m", "pip", "wheel", *quiet, "-w", str(room / "dist"), str(sdist))
    (wheel,) = (room / "dist").glob("*.whl")
    return sdist, wheel
