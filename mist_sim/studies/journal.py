"""The journal of a study: every result is written to disk at once.

A file of JSON lines. The first identifies the study; each other one is a row, in the order in which
tasks finished. It is only appended to. A killed process leaves at most one incomplete line, the
last, which the next one drops. A journal is JSON, never pickle: reading it executes no code.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from io import FileIO
from pathlib import Path
from time import monotonic
from typing import Any

from mist_sim.errors import ScenarioError, brief
from mist_sim.output import LOCK, lock, telling, unlock
from mist_sim.studies.decided_question import difference, digest
from mist_sim.studies.task import Failure, Row, Task
from mist_sim.user_paths import user_path

_FORMAT = "mist-sim study, version 1"
_SYNC = 1.0  # seconds: a loss of power may cost the results of the last one


@dataclass
class Journal:
    """The rows of a study that is going on. num_found: of rows that were there before."""

    path: Path
    _file: FileIO
    _rows: dict[str, dict[str, Any]]
    num_found: int = 0
    _synced: float = field(default_factory=monotonic)

    def __len__(self) -> int:
        return len(self._rows)

    def find(self, task: Task) -> Row | None:
        """Return the row of a task that was done before."""
        line = self._rows.get(digest(task.run, task.arguments))
        if line is None:
            return None
        if "error" in line:
            return Row(task.key, failure=Failure(**line["error"]))
        return Row(task.key, line["result"])

    def add(self, task: Task, row: Row, text: str) -> None:
        """Write a row, unless it is there. text: its result as JSON, if it has one.

        Raises ScenarioError where it cannot be written, as on a full disk.
        """
        name = digest(task.run, task.arguments)
        if name in self._rows:
            return
        head = json.dumps({"key": list(task.key), "of": name})[:-1]
        if row.failure is None:
            line, self._rows[name] = f'{head}, "result": {text}}}\n', {"result": row.result}
        else:
            told = {"kind": row.failure.kind, "message": row.failure.message}
            line, self._rows[name] = f'{head}, "error": {json.dumps(told)}}}\n', {"error": told}
        with telling(f"journal {self.path}"):
            _write(self._file, line)
            if monotonic() - self._synced > _SYNC:
                os.fsync(self._file.fileno())
                self._synced = monotonic()


@contextmanager
def journal_at(
    named: str | Path, identity: Mapping[str, Any], *, resume: bool
) -> Iterator[Journal]:
    """Open the journal of a study, for only this process.

    identity: the study's identity, as plain data. resume: continue an existing journal; without
        one, a new one is begun. A journal without rows is removed.
    Raises ScenarioError for an existing file without `resume`, for the journal of another study or
    no journal, and for a file that is in use or cannot be written; it stays unchanged.
    """
    path = user_path(named)
    what = f"journal {path}"
    with telling(what):
        lock_path = path.with_name(path.name + LOCK)
        held = _locked(lock_path)
    try:
        with telling(what):
            rows, end = _read(path, what, identity, resume=resume)
            file = path.open("r+b" if end else "wb", buffering=0)
        with file:
            with telling(what):
                file.truncate(end)
                file.seek(end)
                if not end:
                    _write(file, json.dumps({"format": _FORMAT, **identity}) + "\n")
            journal = Journal(path, file, rows, len(rows))
            try:
                yield journal
            finally:
                os.fsync(file.fileno())
                if not len(journal):
                    path.unlink(missing_ok=True)
    finally:
        unlock(lock_path, held)


def _locked(path: Path) -> int:
    while (held := lock(path)) is None:  # its last owner has just removed it
        pass
    return held


def _write(file: FileIO, text: str) -> None:
    """Write all of a text. Raises OSError where it does not fit; no part of it stays then."""
    begin, content = file.tell(), text.encode()
    try:
        left = memoryview(content)
        while left:
            left = left[file.write(left) :]
    except OSError:
        file.truncate(begin)
        raise


def _read(
    path: Path, what: str, identity: Mapping[str, Any], *, resume: bool
) -> tuple[dict[str, dict[str, Any]], int]:
    """Return the rows of a journal by their names, and how many bytes of it are whole."""
    content = path.read_bytes() if path.exists() else b""
    *lines, _torn = content.split(b"\n")
    if content and not resume:
        raise ScenarioError(
            f"{what}: is there already; --resume (resume=True in Python) goes on with it, or name "
            "another"
        )
    if content and not _FORMAT.startswith(_beginning(content)):
        raise ScenarioError(f"{what}: is no journal of a study; name another file")
    if not lines:
        return {}, 0
    _check_identity(lines[0], what, identity)
    rows: dict[str, dict[str, Any]] = {}
    end = len(lines[0]) + 1
    for number, line in enumerate(lines[1:], 2):
        row = _parsed(line)
        if row is None and number == len(lines):  # a loss of power may leave zeros
            break
        if row is None:
            raise ScenarioError(f"{what}: line {number} is damaged; begin anew with another")
        rows.setdefault(row["of"], row)
        end += len(line) + 1
    return rows, end


def _beginning(content: bytes) -> str:
    """Return as much of the format as the first bytes of a file say; all of them, if no journal."""
    intro = b'{"format": "'
    if not content.startswith(intro[: len(content)]):
        return "\0"
    text = content[len(intro) : len(intro) + len(_FORMAT)]
    return text.decode("utf-8", "replace")


def _parsed(line: bytes) -> dict[str, Any] | None:
    """Return a row; None for an invalid line."""
    try:
        row = json.loads(line)
    except (ValueError, RecursionError):
        return None
    is_row = isinstance(row, dict) and "of" in row and ("result" in row) != ("error" in row)
    return row if is_row else None


def _check_identity(line: bytes, what: str, identity: Mapping[str, Any]) -> None:
    """Raise ScenarioError unless a journal is that of the same study."""
    try:
        header = json.loads(line)
    except (ValueError, RecursionError):
        raise ScenarioError(f"{what}: line 1 is damaged; begin anew with another") from None
    del header["format"]
    mine = json.loads(json.dumps(identity))
    if found := difference(header, mine):
        place, there, here = found
        raise ScenarioError(
            f"{what}: is that of another study, where {brief(place)} is {there}, and here it is "
            f"{here}; repeat the command of that study, or begin anew"
        )
