"""Timings that are slow to get, kept on disk so that nothing is timed twice."""

from __future__ import annotations

import json
import os
import sqlite3
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import TypeVar

from mist_sim.errors import ScenarioError
from mist_sim.user_paths import user_path

Work = TypeVar("Work")

CACHE_VARIABLE = "MIST_SIM_CACHE"
_APPLICATION_ID = 0x4D495354  # "MIST": marks our files among SQLite databases
_FORMAT = 1
_BUSY_SECONDS = 60.0
_TIMINGS = """CREATE TABLE timings (
    source INTEGER NOT NULL REFERENCES sources (id),
    work TEXT NOT NULL,
    seconds REAL NOT NULL,
    PRIMARY KEY (source, work)
) WITHOUT ROWID"""
_SCHEMA = (
    "CREATE TABLE sources (id INTEGER PRIMARY KEY, description TEXT NOT NULL UNIQUE)",
    _TIMINGS,
    f"PRAGMA application_id = {_APPLICATION_ID}",
    f"PRAGMA user_version = {_FORMAT}",
)


def cache_folder() -> Path | None:
    """Return the folder for files that are kept between runs; None if nothing is to be kept.

    It is the folder that the environment variable MIST_SIM_CACHE names (None if that is empty), or
    else the user's cache folder of the operating system.
    """
    named = os.environ.get(CACHE_VARIABLE)
    if named is None:
        from platformdirs import user_cache_path

        return user_cache_path("mist-sim", appauthor=False)
    return user_path(named) if named else None


class TimingStore:
    """Seconds by source and piece of work, in an SQLite file that processes may share.

    path: the file, created if missing; None: keep nothing.
    """

    def __init__(self, path: Path | None) -> None:
        self.path = path

    @classmethod
    def default(cls) -> TimingStore:
        """Return the store in the cache folder."""
        folder = cache_folder()
        return cls(folder / "timings.sqlite" if folder else None)

    def timed(
        self,
        source: Mapping[str, object],
        works: Mapping[str, Work],
        measure: Callable[[Sequence[Work]], Sequence[float]],
        *,
        at_once: int = 64,
    ) -> list[float]:
        """Return the seconds of every piece of work; measure those that are not in the store.

        source: what the timings depend on besides the work: name and version of what times them,
            model, hardware; any JSON value.
        works: what is timed, under names that are unique for the source.
        measure: returns the seconds of pieces of work, in order.
        at_once: pieces given to `measure` in one call; they are kept when it returns, so that an
            interruption loses no more. If two processes time the same work at once, both return the
            time that was stored first. Raises ScenarioError if the file is not such a store or
            cannot be used.
        """
        description = json.dumps(source, sort_keys=True)
        found = self._read(description)
        missing = [name for name in works if name not in found]
        for start in range(0, len(missing), at_once):
            names = missing[start : start + at_once]
            seconds = map(float, measure([works[name] for name in names]))
            rows = list(zip(names, seconds, strict=True))
            self._keep(description, rows)
            found.update(rows)
        if missing:
            found |= self._read(description)
        return [found[name] for name in works]

    def _read(self, source: str) -> dict[str, float]:
        if self.path is None or not self.path.exists():
            return {}
        query = (
            "SELECT work, seconds FROM timings JOIN sources ON source = id WHERE description = ?"
        )
        with _opened(self.path) as database:
            return dict(database.execute(query, (source,)).fetchall())

    def _keep(self, source: str, rows: list[tuple[str, float]]) -> None:
        if self.path is None:
            return
        insert = "INSERT OR IGNORE INTO timings SELECT id, ?, ? FROM sources WHERE description = ?"
        with _opened(self.path) as database, database:
            database.execute("INSERT OR IGNORE INTO sources (description) VALUES (?)", (source,))
            database.executemany(insert, [(*row, source) for row in rows])


@contextmanager
def _opened(path: Path) -> Iterator[sqlite3.Connection]:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with closing(sqlite3.connect(path, timeout=_BUSY_SECONDS)) as database:
            _prepare(database)
            yield database
    except (sqlite3.Error, OSError) as error:
        raise ScenarioError(
            f"{path} cannot be used as a store of timings: {error}; delete it, or set "
            f"{CACHE_VARIABLE} to another folder (to nothing: keep no timings)"
        ) from error


def _prepare(database: sqlite3.Connection) -> None:
    """Make the tables of a new file; refuse a file with other contents."""
    if _identity(database) == (_APPLICATION_ID, _FORMAT):
        return
    level, database.isolation_level = database.isolation_level, None  # we say what begins
    database.execute("BEGIN IMMEDIATE")
    identity = _identity(database)  # once more: another process may just have made them
    if identity == (0, 0) and _is_empty(database):
        for statement in _SCHEMA:
            database.execute(statement)
    elif identity[0] == _APPLICATION_ID and identity[1] != _FORMAT:
        raise sqlite3.DatabaseError(f"its format is {identity[1]}, this version reads {_FORMAT}")
    elif identity[0] != _APPLICATION_ID:
        raise sqlite3.DatabaseError("it is a database of something else")
    database.execute("COMMIT")
    with suppress(sqlite3.OperationalError):  # busy: another process is setting it
        database.execute("PRAGMA journal_mode = WAL")  # readers do not wait for a writer
    database.isolation_level = level


def _identity(database: sqlite3.Connection) -> tuple[int, int]:
    identity, file_format = (
        int(database.execute(f"PRAGMA {name}").fetchone()[0])
        for name in ("application_id", "user_version")
    )
    return identity, file_format


def _is_empty(database: sqlite3.Connection) -> bool:
    return bool(database.execute("SELECT count(*) = 0 FROM sqlite_master").fetchone()[0])
