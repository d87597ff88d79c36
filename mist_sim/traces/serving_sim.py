"""Reader of LLMServingSim's JSON lines: single requests, and sessions of chained calls."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from hashlib import blake2b
from itertools import chain, islice
from typing import Any

from mist_sim.bounds import TRACE_TIME
from mist_sim.core.request import Content
from mist_sim.errors import TraceError, brief
from mist_sim.inputs.lines import lines_of
from mist_sim.traces.base import TRACE_READERS, TraceRow, require_count
from mist_sim.traces.content import block_content
from mist_sim.traces.files import (
    backwards,
    first_rows,
    open_trace,
    require_num_requests,
    tokens_from_json,
)

_NS = 1e9


@TRACE_READERS.register("llmservingsim")
@dataclass(frozen=True, slots=True, kw_only=True)
class LlmServingSimReader:
    """LLMServingSim: one JSON object a line, a request or a session of them.

    A request has `input_toks`, `output_toks` and `arrival_time_ns`, and perhaps `input_tok_ids`
    and `output_tok_ids`, from which blocks are hashed for prefix caches. A session has
    `arrival_time_ns` and `sub_requests`, each with such lengths and `tool_duration_ns`, the wait
    between its end and the next one. A file holds one of the two; sessions have no times of their
    own here, and are replayed by users who go through them (`closed_loop` with `sessions`).

    path: the file. num_requests: read the first so many requests; None reads all.
    block_size: tokens in a hashed block.
    Source: LLMServingSim 2.0 (MIT), its description of workload files.
    """

    path: str
    num_requests: int | None = None
    block_size: int = 16

    def __post_init__(self) -> None:
        require_num_requests(self.num_requests)
        require_count("block_size", self.block_size)

    def rows(self) -> Iterator[TraceRow]:
        """Yield the requests in file order; raises as `TraceReader.rows` says."""
        return first_rows(self._read(), self.num_requests, self.path)

    def _read(self) -> Iterator[TraceRow]:
        start: int | None = None
        last, session, form = 0, 0, ""
        with open_trace(self.path) as file:
            for line, text in enumerate(lines_of(file, self.path), 1):
                if not text.strip():
                    continue
                record = _record(text, self.path, line)
                now = "session" if "sub_requests" in record else "request"
                if form and now != form:
                    raise TraceError(
                        self.path,
                        line,
                        f"a {now} after a {form}; split the file, since sessions are sent by users "
                        "and requests at their times",
                    )
                form, time = now, _time(record, self.path, line)
                if start is None:
                    start = last = time
                if time < last:
                    raise backwards(self.path, line, "arrival_time_ns", (last - time) / _NS)
                last = time
                if form == "session":
                    yield from self._session(record, line, session)
                    session += 1
                else:
                    yield self._row(record, line)._replace(arrival_time=(time - start) / _NS)

    def _session(self, record: dict[str, Any], line: int, number: int) -> Iterator[TraceRow]:
        """Yield the calls of a session; each waits for the tool of the one before."""
        calls = record["sub_requests"]
        if type(calls) is not list or not calls or any(type(call) is not dict for call in calls):
            raise TraceError(self.path, line, "sub_requests must be a list of objects, one or more")
        wait = 0.0
        for call in calls:
            yield self._row(call, line)._replace(session_id=number, think_time=wait)
            wait = _duration(call.get("tool_duration_ns", 0), self.path, line)

    def _row(self, record: dict[str, Any], line: int) -> TraceRow:
        prompt, output = (
            tokens_from_json(record.get(key), self.path, line, key)
            for key in ("input_toks", "output_toks")
        )
        return TraceRow(prompt, output, content=self._content(record, prompt, output, line))

    def _content(self, record: dict[str, Any], prompt: int, output: int, line: int) -> Content:
        """Return the hashes of blocks, where the ids of all tokens are known."""
        asked, answered = (
            self._tokens(record, key, line) for key in ("input_tok_ids", "output_tok_ids")
        )
        if len(asked) != prompt:
            return ()
        if len(answered) < output:
            ids = list(_chained(asked, self.block_size))
            return block_content(ids, (), prompt, output, self.block_size)
        ids = list(_chained(chain(asked, answered[:output]), self.block_size))
        full, completed = prompt // self.block_size, (prompt + output) // self.block_size
        return block_content(ids[:full], ids[full:completed], prompt, output, self.block_size)

    def _tokens(self, record: dict[str, Any], key: str, line: int) -> list[int]:
        value = record.get(key) or []
        if type(value) is list and set(map(type, value)) <= {int}:
            return value
        raise TraceError(self.path, line, f"{key} must be a list of integers, got {brief(value)}")


def _chained(tokens: Iterable[int], block_size: int) -> Iterator[int]:
    """Yield a hash for each block, the last perhaps of a part: of its tokens and all before."""
    before, rest = b"", iter(tokens)
    while block := tuple(islice(rest, block_size)):
        before = blake2b(before + repr(block).encode(), digest_size=7).digest()
        yield int.from_bytes(before, "big")


def _record(text: str, path: str, line: int) -> dict[str, Any]:
    try:
        record = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise TraceError(path, line, f"not valid JSON ({error}); correct or remove it") from error
    if type(record) is not dict:
        raise TraceError(path, line, f"a row must be a JSON object, got {brief(record)}")
    return record


def _time(record: dict[str, Any], path: str, line: int) -> int:
    value = record.get("arrival_time_ns")
    if type(value) is int and 0 <= value <= TRACE_TIME * _NS:
        return value
    raise TraceError(
        path,
        line,
        f"arrival_time_ns must be whole nanoseconds from 0 to {TRACE_TIME * _NS:g}, "
        f"got {brief(value)}; correct the row",
    )


def _duration(value: object, path: str, line: int) -> float:
    if type(value) in (int, float) and 0 <= value <= TRACE_TIME * _NS:  # type: ignore[operator]
        return float(value) / _NS  # type: ignore[arg-type]
    raise TraceError(path, line, f"tool_duration_ns must be nanoseconds from 0, got {brief(value)}")
