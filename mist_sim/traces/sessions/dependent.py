"""Reader of agentic Mooncake: requests that wait for others of their session."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from mist_sim.errors import TraceError, brief
from mist_sim.traces.base import TRACE_READERS, TraceRow, require_count
from mist_sim.traces.content import block_content
from mist_sim.traces.readers.faults import Faults
from mist_sim.traces.readers.opening import (
    A_SECOND,
    FileReader,
    integers,
    json_lines,
    time_from_json,
    tokens_from_json,
)

_NEEDED = ("input_length", "output_length")


@dataclass
class _Session:
    """rows: so far. last: the id of the last request. ids: of all."""

    rows: list[TraceRow] = field(default_factory=list)
    last: str = ""
    ids: set[str] = field(default_factory=set)


@TRACE_READERS.register("agentic_mooncake")
@dataclass(frozen=True, slots=True, kw_only=True)
class AgenticMooncakeReader(FileReader):
    """Agentic Mooncake, as Dynamo and AIPerf replay it: Mooncake's rows with sessions and waits.

    Each line has input_length, output_length, perhaps hash_ids and output_hash_ids (as in
    Mooncake's), session_id, and request_id. A later row of a session is sent `delay` and
    `tool_wait_ms` (milliseconds) after the end of the row before it, which its `wait_for` names, if
    it names any. Rows come session by session and have no times, for users who replay sessions
    (`closed_loop` with `sessions`): neither `timestamp` nor the wait of a session's first row is
    used, so that sub-agents run in parallel to their parents. A row that waits for none but an
    earlier row of its session is refused: sessions are chains here. A row without session_id is a
    session. The file is read whole.

    hash_block_size: tokens in a block.
    Source: NVIDIA Dynamo, AgenticMooncakeRow of its dynamo-data-gen; Mooncake (FAST 2025).
    """

    hash_block_size: int = 512

    def __post_init__(self) -> None:
        FileReader.__post_init__(self)
        require_count("hash_block_size", self.hash_block_size)

    def _read(self, faults: Faults) -> Iterator[TraceRow]:
        sessions: dict[str, _Session] = {}

        def add(record: dict[str, Any], line: int) -> None:
            name = record.get("session_id")
            session = sessions.setdefault(
                str(name) if name is not None else f"\0{line}", _Session()
            )
            self._check_wait(record, session, line)
            session.rows.append(self._row(record, bool(session.rows), line))
            session.last = str(record.get("request_id", ""))
            session.ids.add(session.last)

        for _ in faults.parsed(json_lines(self.path, faults), add):
            pass
        for number, session in enumerate(sessions.values()):
            for row in session.rows:
                yield row._replace(session_id=number)

    def _check_wait(self, record: dict[str, Any], session: _Session, line: int) -> None:
        """Raise TraceError for a row that waits for another row than the one before it."""
        names = record.get("wait_for") or []
        if type(names) is not list or not set(map(type, names)) <= {str}:
            raise TraceError(
                self.path, line, f"wait_for must be a list of request_ids, got {brief(names)}"
            )
        before = session.ids.intersection(names)
        if before and session.last not in before:
            raise TraceError(
                self.path,
                line,
                f"wait_for must name the request before it in its session, {brief(session.last)}, "
                f"got {brief(names)}; give the branch a session_id of its own",
            )

    def _row(self, record: dict[str, Any], is_later: bool, line: int) -> TraceRow:
        path = self.path
        if missing := [key for key in _NEEDED if key not in record]:
            raise TraceError(
                path, line, f"a row needs {' and '.join(_NEEDED)}; missing: {', '.join(missing)}"
            )
        prompt, output = (
            tokens_from_json(record[key], path, line, key, answer=key == _NEEDED[1])
            for key in _NEEDED
        )
        wait = sum(
            time_from_json(record[key], path, line, key, "ms")
            for key in ("delay", "tool_wait_ms")
            if record.get(key) is not None
        )
        ids, of_output = (
            integers(record, key, path, line) for key in ("hash_ids", "output_hash_ids")
        )
        try:
            content = block_content(ids, of_output, prompt, output, self.hash_block_size)
        except ValueError as error:
            raise TraceError(
                path, line, f"{error}; set hash_block_size, or correct the row"
            ) from error
        think = wait / A_SECOND["ms"] if is_later else 0.0
        return TraceRow(prompt, output, content=content, think_time=think)
