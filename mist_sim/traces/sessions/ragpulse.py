"""Reader of RAGPulse: requests to a service that retrieves, with the ids of all their parts."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mist_sim.bounds import TRACE_TIME
from mist_sim.core.content_ids import OF_PATH, content_id
from mist_sim.core.request import Content
from mist_sim.errors import ScenarioError, TraceError, brief
from mist_sim.inputs.files import is_there
from mist_sim.traces.base import TRACE_READERS, TraceRow
from mist_sim.traces.readers.faults import Faults
from mist_sim.traces.readers.opening import FileReader, json_lines, tokens_from_json

_PARTS = {
    "sys_prompt": ("1_sys_prompt.jsonl", "sys_prompt_id"),
    "passages_ids": ("2_passages.jsonl", "passage_id"),
    "history": ("3_history.jsonl", "history_id"),
    "web_search": ("5_web_search.jsonl", "web_search_id"),
    "user_input": ("4_user_input.jsonl", "user_input_id"),
}
"""Parts of a prompt in the order of its tokens: key of a row, and where their lengths are."""

_OUTPUT = "output_length"


@TRACE_READERS.register("ragpulse")
@dataclass(frozen=True, slots=True, kw_only=True)
class RagPulseReader(FileReader):
    """RAGPulse: a week of a university's RAG service, whose prompts consist of parts with ids.

    One JSON object a line: timestamp (seconds in the week, as text or number), input_length,
    output_length, session_id, and hash_ids with the ids of system prompt, passages, history, web
    search and user input, whose tokens the files beside it count. Prompts begin with the same
    tokens as far as they have the same parts in the same order. The few tokens of an input beyond
    its parts (6 to 12, markup) are put at its end and match no others. Rows are sorted by time: the
    file has two stretches of the week, one behind the other. It is read whole.

    path: the file of requests, 0_trace.jsonl, with the files of parts in its folder.
    Source: RAGPulse (flashserve, 2025; MIT).
    """

    def _read(self, faults: Faults) -> Iterator[TraceRow]:
        rows = sorted(self._parts(faults), key=lambda row: row.arrival_time or 0.0)
        for row in rows:
            start = rows[0].arrival_time or 0.0
            yield row._replace(arrival_time=(row.arrival_time or 0.0) - start)

    def _parts(self, faults: Faults) -> Iterator[TraceRow]:
        lengths: dict[str, dict[int, int]] = {}
        paths: dict[tuple[int, str, int], int] = {}
        sessions: dict[str, int] = {}

        def row(record: dict[str, Any], line: int) -> TraceRow:
            prompt, output = (
                tokens_from_json(record.get(key), self.path, line, key, answer=key == _OUTPUT)
                for key in ("input_length", _OUTPUT)
            )
            if not lengths:
                lengths.update({key: self._lengths(*where) for key, where in _PARTS.items()})
            content = self._content(record.get("hash_ids"), line, lengths, paths)
            if sum(num for _, num in content) > prompt:
                raise TraceError(
                    self.path,
                    line,
                    f"input_length must be >= the tokens of its parts, got {prompt}",
                )
            time = self._time(record, line)
            session = sessions.setdefault(str(record.get("session_id")), len(sessions))
            return TraceRow(prompt, output, time, session, content)

        return faults.parsed(json_lines(self.path, faults), row)

    def _time(self, record: dict[str, Any], line: int) -> float:
        value = record.get("timestamp")
        try:
            time = float(value)  # type: ignore[arg-type]
        except (TypeError, ValueError):
            time = -1.0
        if not 0 <= time <= TRACE_TIME:
            raise TraceError(
                self.path,
                line,
                f"timestamp must be seconds from 0 to {TRACE_TIME:g}, got {brief(value)}",
            )
        return time

    def _lengths(self, name: str, key: str) -> dict[int, int]:
        """Return the tokens of each part that one of the other files lists."""
        path = str(Path(self.path).with_name(name))
        if not is_there(Path(path)):
            raise ScenarioError(f"trace {self.path}: {name} must lie beside it; there is no {path}")
        found: dict[int, int] = {}
        for line, record in json_lines(path):
            number = record.get(key)
            if type(number) is not int:
                raise TraceError(path, line, f"{key} must be an integer, got {brief(number)}")
            found[number] = tokens_from_json(record.get("token_length"), path, line, "token_length")
        return found

    def _content(
        self,
        hash_ids: object,
        line: int,
        lengths: dict[str, dict[int, int]],
        paths: dict[tuple[int, str, int], int],
    ) -> Content:
        """Return a span for each part; its id names the part and all before it."""
        if type(hash_ids) is not dict:
            raise TraceError(self.path, line, f"hash_ids must be an object, got {brief(hash_ids)}")
        spans, path = [], -1
        for key, known in lengths.items():
            ids = hash_ids.get(key, [])
            if type(ids) is not list or not all(type(number) is int for number in ids):
                raise TraceError(self.path, line, f"{key} must be a list of ids, got {brief(ids)}")
            for number in ids:
                if number not in known:
                    raise TraceError(
                        self.path, line, f"{key} {number} is not listed in {_PARTS[key][0]}"
                    )
                path = paths.setdefault((path, key, number), len(paths))
                spans.append((content_id(OF_PATH, path), known[number]))
        return tuple(spans)
