"""Single files of results: claimed before the work, and written whole or not at all."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from stat import S_IMODE

from mist_sim.errors import ScenarioError
from mist_sim.interruptions import put_off
from mist_sim.output.claims import claim, telling, without_links
from mist_sim.output.texts import write_text
from mist_sim.user_paths import user_path


@dataclass
class OutputFile:
    """A file that no other mist-sim process may write until the claim on it ends.

    path: as the user named it. target: without links. room: private folder for the incomplete file;
        None for a device or a pipe, which is written directly. written: the file, once written.
    """

    path: Path
    target: Path
    room: Path | None
    replace: bool
    written: Path | None = None

    def write(self, text: str | bytes | Iterable[str]) -> None:
        """Write UTF-8 text or bytes; the file is there when all of it is. Raises ScenarioError.

        text: whole, or its pieces in order, of which no more than one is held at a time.
        """
        with telling(f"{self.path}"):
            if self.room is None:
                _write(self.target, text)
                self.written = self.path
                return
            new = self.room / "new"
            _write(new, text)
            _require_place(self.path, replace=self.replace)  # others may have come meanwhile
            if self.target.exists():
                new.chmod(S_IMODE(self.target.stat().st_mode))
            with put_off():
                new.replace(self.target)
                self.written = self.path


@contextmanager
def output_file(named: str | Path, *, replace: bool = False) -> Iterator[OutputFile]:
    """Claim a file for the result of long work; the old file stays until the new one is written.

    replace: also a file that is there and not empty.
    Raises ScenarioError where no file can be written, or is there already, and when it is in use.
    """
    path = user_path(named)
    is_special = path.exists() and not path.is_file()  # a device or a pipe
    _require_place(path, replace=replace)
    with ExitStack() as stack:
        target, room = path, None
        if not is_special:
            with telling(f"{path}"):
                target = without_links(path)
                room = stack.enter_context(claim(target))
        yield OutputFile(path, target, room, replace)


def write_whole(named: str | Path, text: str) -> None:
    """Write a UTF-8 text file; an existing file is replaced once all of it is written.

    Raises ScenarioError if it cannot be written.
    """
    with output_file(named, replace=True) as file:
        file.write(text)


def _write(path: Path, content: str | bytes | Iterable[str]) -> None:
    if isinstance(content, bytes):
        path.write_bytes(content)
    else:
        write_text(path, content)


def _require_place(path: Path, *, replace: bool) -> None:
    """Raise ScenarioError where no file can be written."""
    folder = Path(os.path.realpath(path)).parent if path.is_symlink() else path.parent
    if path.is_dir():
        raise ScenarioError(f"{path}: cannot be written: is a folder; name a file")
    if not folder.is_dir():
        raise ScenarioError(f"{path}: cannot be written: there is no folder {folder}; make it")
    if not os.access(path if path.exists() else folder, os.W_OK):
        raise ScenarioError(f"{path}: cannot be written: permission denied; name another file")
    if path.is_file() and path.stat().st_size and not replace:
        raise ScenarioError(f"{path}: is there already; --force replaces it, or name another file")
