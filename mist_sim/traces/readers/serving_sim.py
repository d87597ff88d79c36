"""Reader of LLMServingSim's JSON lines: single requests, and sessions of chained calls."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from hashlib import blake2b
from itertools import chain, islice
from typing import Any

from mist_sim.checks import Count
from mist_sim.core.request import Content
from mist_sim.traces.base import TRACE_READERS, TraceRow
from mist_sim.traces.readers.opening import (
    A_SECOND,
    At,
    Clock,
    Faults,
    SessionReader,
    json_lines,
)
from mist_sim.traces.workload import block_content


@TRACE_READERS.register("llmservingsim")
@dataclass(frozen=True, slots=True, kw_only=True)
class LlmServingSimReader(SessionReader):
    """LLMServingSim: one JSON object a line, a request or a session of them.

    A request has `input_toks`, `output_toks` and `arrival_time_ns`, and perhaps `input_tok_ids`
    and `output_tok_ids`, from which blocks are hashed for prefix caches. A session has
    `arrival_time_ns` and `sub_requests`, each with such lengths and `tool_duration_ns`, the wait
    between its end and the next one. A file holds one of the two; sessions have no times of their
    own here, and are replayed by users who go through them (`closed_loop` with `sessions`).

    block_size: tokens in a hashed block.
    Source: LLMServingSim 2.0 (MIT), its description of workload files.
    """

    block_size: Count = 16

    def _read(self, faults: Faults) -> Iterator[TraceRow]:
        session, form = 0, ""
        clock = Clock("arrival_time_ns", "ns")

        def rows(record: dict[str, Any], at: At) -> list[TraceRow]:
            nonlocal session, form
            now = "session" if "sub_requests" in record else "request"
            if form and now != form:
                raise at.error(
                    f"a {now} after a {form}; split the file, since sessions are sent by users "
                    "and requests at their times"
                )
            stamp = record.get("arrival_time_ns")
            time = at.time(stamp, "arrival_time_ns", "ns")
            if now == "session":
                found = list(self._session(record, at, session))
                session += 1
            else:
                found = [self._row(record, at)]
            seconds, form = clock.seconds(time, at), now
            return found if now == "session" else [found[0]._replace(arrival_time=seconds)]

        for found in faults.parsed(json_lines(self.path, faults), rows):
            yield from found

    def _session(self, record: dict[str, Any], at: At, number: int) -> Iterator[TraceRow]:
        """Yield the calls of a session; each waits for the tool of the one before."""
        calls = record["sub_requests"]
        if type(calls) is not list or not calls or any(type(call) is not dict for call in calls):
            raise at.error("sub_requests must be a list of objects, one or more")
        wait = 0.0
        for call in calls:
            yield self._row(call, at)._replace(session_id=number, think_time=wait)
            lasts = call.get("tool_duration_ns", 0)
            wait = at.time(lasts, "tool_duration_ns", "ns") / A_SECOND["ns"]

    def _row(self, record: dict[str, Any], at: At) -> TraceRow:
        prompt, output = (
            at.tokens(record.get(key), key, answer=key == "output_toks")
            for key in ("input_toks", "output_toks")
        )
        return TraceRow(prompt, output, content=self._content(record, at, prompt, output))

    def _content(self, record: dict[str, Any], at: At, prompt: int, output: int) -> Content:
        """Return the hashes of blocks if the ids of all tokens are known."""
        asked, answered = (at.integers(record, key) for key in ("input_tok_ids", "output_tok_ids"))
        if len(asked) != prompt:
            return ()
        if len(answered) < output:
            ids = list(_chained(asked, self.block_size))
            return block_content(ids, (), prompt, output, self.block_size)
        ids = list(_chained(chain(asked, answered[:output]), self.block_size))
        full, completed = prompt // self.block_size, (prompt + output) // self.block_size
        return block_content(ids[:full], ids[full:completed], prompt, output, self.block_size)


def _chained(tokens: Iterable[int], block_size: int) -> Iterator[int]:
    """Yield a hash for each block (the last may be partial) of its tokens and all before."""
    before, rest = b"", iter(tokens)
    while block := tuple(islice(rest, block_size)):
        before = blake2b(before + repr(block).encode(), digest_size=7).digest()
        yield int.from_bytes(before, "big")
