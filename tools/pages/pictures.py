"""Where the scripts of the pages put the pictures that they draw."""

from __future__ import annotations

import sys
from pathlib import Path

PICTURES = Path("pictures")
"""In the working directory, unless `--out` names another folder."""


def picture_folder(about: str | None) -> Path:
    """Return the folder for pictures, which exists, and take `--out FOLDER` off the command line.

    about: what the script does; `--help` prints it and ends. Pictures of the documentation are
    drawn with `--out docs/images`.
    """
    if {"--help", "-h"} & set(sys.argv[1:]):
        print(f"{(about or '').strip()}\n\n--out FOLDER: for pictures, by default {PICTURES}")
        raise SystemExit
    folder = PICTURES
    if "--out" in sys.argv:
        place = sys.argv.index("--out")
        if place + 1 == len(sys.argv):
            raise SystemExit("--out needs a folder")
        folder = Path(sys.argv[place + 1])
        del sys.argv[place : place + 2]
    folder.mkdir(parents=True, exist_ok=True)
    return folder
