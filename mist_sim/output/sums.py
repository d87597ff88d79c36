"""SHA256SUMS: what mist-sim wrote into a folder, so that nothing else is ever replaced.

`sha256sum --check SHA256SUMS` reads it, too. The first line tells it from files of that name
that others wrote.
"""

from __future__ import annotations

from hashlib import file_digest
from pathlib import Path

NAME = "SHA256SUMS"
_HEADER = "# Results of mist-sim"


def write_sums(folder: Path) -> None:
    """Write the sums of all files of a folder beside them."""
    sums = [f"{_sum(file)}  {file.name}" for file in sorted(folder.iterdir())]
    text = "\n".join([_HEADER, *sums]) + "\n"
    (folder / NAME).write_text(text, encoding="utf-8", newline="\n")


def written_here(folder: Path) -> dict[str, bool]:
    """Return the files that mist-sim wrote into a folder and that are there.

    The values tell whether they are as they were then. Empty where mist-sim wrote nothing.
    """
    lines = _lines(folder / NAME)
    if not lines or lines[0] != _HEADER:
        return {}
    found = {NAME: True}
    for line in lines[1:]:
        known, _, name = line.partition("  ")
        file = folder / name
        if name and file.name == name and file.is_file() and not file.is_symlink():
            found[name] = _sum(file) == known
    return found


def _lines(file: Path) -> list[str]:
    try:
        return file.read_text(encoding="utf-8").splitlines()
    except (FileNotFoundError, IsADirectoryError, UnicodeDecodeError):
        return []


def _sum(file: Path) -> str:
    with file.open("rb") as content:
        return file_digest(content, "sha256").hexdigest()
