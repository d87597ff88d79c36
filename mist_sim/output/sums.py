"""SHA256SUMS: the files that mist-sim wrote into a folder, so that no others are replaced.

`sha256sum --check SHA256SUMS` reads it too. Its first line distinguishes it from files of that name
with another origin.
"""

from __future__ import annotations

import os
from hashlib import file_digest
from pathlib import Path

NAME = "SHA256SUMS"
_HEADER = "# Results of mist-sim"


def write_sums(folder: Path) -> None:
    """Write the check sums of all files of a folder into the folder."""
    sums = [f"{of_file(file)}  {file.name}" for file in sorted(folder.iterdir())]
    text = "\n".join([_HEADER, *sums]) + "\n"
    (folder / NAME).write_text(text, encoding="utf-8", newline="\n")


def written_here(folder: Path) -> dict[str, bool]:
    """Return the files in a folder that mist-sim wrote.

    The values tell whether they are unchanged; a link in the place of one is not. Empty if mist-sim
    wrote none.
    """
    lines = _lines(folder / NAME)
    if not lines or lines[0] != _HEADER:
        return {}
    found = {NAME: True}
    for line in lines[1:]:
        known, _, name = line.partition("  ")
        file = folder / name
        if name and file.name == name and os.path.lexists(file):
            found[name] = is_unchanged(file, known)
    return found


def is_unchanged(file: Path, known: str) -> bool:
    """Tell whether a path is a file, and no link, with a known sum."""
    return file.is_file() and not file.is_symlink() and of_file(file) == known


def of_file(file: Path) -> str:
    """Return the sum of a file, as `sha256sum` prints it."""
    with file.open("rb") as content:
        return file_digest(content, "sha256").hexdigest()


def _lines(file: Path) -> list[str]:
    if file.is_symlink():
        return []
    try:
        return file.read_text(encoding="utf-8").splitlines()
    except (FileNotFoundError, IsADirectoryError, UnicodeDecodeError):
        return []
