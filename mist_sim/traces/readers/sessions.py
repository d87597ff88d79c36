"""Readers of traces with sessions: coding agents, services' calls, retrieval."""

from __future__ import annotations

import heapq
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Annotated, Any, NamedTuple

from mist_sim.bounds import TRACE_TIME
from mist_sim.checks import Count, Range
from mist_sim.core.content_ids import OF_BLOCK, OF_PATH, content_id
from mist_sim.core.request import Content
from mist_sim.errors import ScenarioError, TraceError, brief
from mist_sim.inputs import is_there
from mist_sim.traces.base import TRACE_READERS, TraceRow
from mist_sim.traces.readers.json_stream import objects_in_turn
from mist_sim.traces.readers.opening import (
    A_SECOND,
    At,
    Faults,
    FileReader,
    SessionReader,
    Skip,
    blocks_in,
    json_lines,
    open_trace,
)
from mist_sim.units import Seconds

_MOST_BLOCKS = 2**32  # of a session
_NEEDED = ("t", "in", "out")
_IDS = {"hash_runs", "hash_ids"}
_LONGEST = 2**24  # characters of a session: with a list of ids for each of a thousand requests


@TRACE_READERS.register("agentic")
@dataclass(frozen=True, slots=True, kw_only=True)
class AgenticReader(SessionReader):
    """Sessions of coding agents: one JSON object a line, with the requests of a session.

    Each has `block_size` and `requests`; each request `t` (seconds from the session's start), `in`
    and `out` (tokens), the ids of its prompt's blocks, which name paths as chain hashes do, and
    perhaps `think_time` (seconds that a tool or a person took before) and `api_time`. Ids are
    `hash_ids` (a list, as in Weka's files) or `hash_runs` (runs [first, number]). A file may also
    hold one session over many lines, as Weka's do. A request with `requests` is a sub-agent.
    The main agent and each sub-agent are a session of the rows; they share the ids of blocks. An
    answer without tokens counts as one token.

    start_every: sessions begin one after another, so long apart, and rows are in order of time;
        None: rows have no times, and come session by session, for users who go through them
        (`closed_loop` with `sessions`).
    absolute_times: whether `t` of a sub-agent's requests counts from the session's start, as in the
        files that SemiAnalysis publishes, and not from that of the sub-agent.
    Source: kv-cache-tester traces (Apache-2.0), with the ids of blocks as runs.
    """

    start_every: Annotated[Seconds, Range(f"[0, {TRACE_TIME:g}]")] | None = None
    absolute_times: bool = False

    def _read(self, faults: Faults) -> Iterator[TraceRow]:
        if self.start_every is None:
            return self._by_session(faults)
        return self._by_time(self.start_every, faults)

    def _by_session(self, faults: Faults) -> Iterator[TraceRow]:
        number = count()
        for _, agents in self._sessions(faults):
            for agent in agents:
                session_id = next(number)
                for turn in agent:
                    yield turn.row(None, session_id)

    def _by_time(self, every: float, faults: Faults) -> Iterator[TraceRow]:
        """Merge sessions; at most those that have begun and not ended are in memory."""
        number, ties = count(), count()
        open_turns: list[tuple[float, int, _Turn, int]] = []
        for session, agents in self._sessions(faults):
            start = session * every
            while open_turns and open_turns[0][0] < start:
                time, _, turn, session_id = heapq.heappop(open_turns)
                yield turn.row(time, session_id)
            for agent in agents:
                session_id = next(number)
                for turn in agent:
                    heapq.heappush(open_turns, (start + turn.time, next(ties), turn, session_id))
        while open_turns:
            time, _, turn, session_id = heapq.heappop(open_turns)
            yield turn.row(time, session_id)

    def _sessions(self, faults: Faults) -> Iterator[tuple[int, list[list[_Turn]]]]:
        """Yield (number, agents) of each session, the main one first; an agent is its turns."""
        number = count()

        def read(session: dict[str, Any], at: At) -> _Session:
            return _Session(session, at, next(number), self.absolute_times)

        with open_trace(self.path) as file:
            sessions = objects_in_turn(file, self.path, _LONGEST)
            for position, found in enumerate(faults.parsed(sessions, read)):
                yield position, found.agents


class _Turn(NamedTuple):
    """A request of a session: its time, the wait before it, and its content."""

    time: float
    think_time: float
    num_prompt_tokens: int
    num_output_tokens: int
    content: Content

    def row(self, time: float | None, session_id: int) -> TraceRow:
        """Return the turn as a row of a trace."""
        prompt, output = self.num_prompt_tokens, self.num_output_tokens
        return TraceRow(prompt, output, time, session_id, self.content, None, self.think_time)


class _Session:
    """The session of a line. agents: the turns of the main agent, and of each sub-agent."""

    def __init__(self, session: dict[str, Any], at: At, number: int, absolute_times: bool) -> None:
        self._at, self._number = at, number
        self._absolute_times = absolute_times
        self._before: dict[int, int] = {}  # the block before each one that begins a run
        self._lengths: dict[int, int] = {}  # the longest run from it
        self._starts: list[int] = []
        if type(session.get("requests")) is not list:
            raise self._error("a session must be a JSON object with a list of requests")
        self._block_size = at.tokens(session.get("block_size"), "block_size")
        self.agents: list[list[_Turn]] = []
        self._read(session["requests"], 0.0, is_main=True)

    def _error(self, problem: str) -> TraceError:
        return self._at.error(problem)

    def _read(self, requests: list[Any], start: float, *, is_main: bool) -> None:
        """Add an agent, and behind it its sub-agents."""
        turns: list[_Turn] = []
        self.agents.append(turns)
        last, free_at = start, start
        for request in requests:
            if type(request) is not dict:
                raise self._error(f"a request must be a JSON object, got {brief(request)}")
            time = start + self._seconds(request, "t")
            if type(request.get("requests")) is list:
                if not is_main:
                    raise self._error("a sub-agent must not have sub-agents")
                start_of_agent = start if self._absolute_times else time
                self._read(request["requests"], start_of_agent, is_main=False)
                continue
            missing = [key for key in _NEEDED if key not in request]
            if not missing and not _IDS & request.keys():
                missing = ["hash_runs (or hash_ids; [] where they are not known)"]
            if missing:
                raise self._error(
                    f"a request needs {', '.join(_NEEDED)}, hash_runs; missing: {missing[0]}"
                )
            if time < last:
                raise self._error(f"t must not go backwards, got {time} s after {last} s")
            think = max(0.0, time - free_at)
            if request.get("think_time") is not None:
                think = self._seconds(request, "think_time")
            turns.append(self._turn(request, time, think if turns else 0.0))
            last = time
            api_time = request.get("api_time")
            free_at = time + (self._seconds(request, "api_time") if api_time is not None else 0.0)

    def _seconds(self, request: dict[str, Any], key: str) -> float:
        value = request.get(key)
        if type(value) not in (int, float) or not 0 <= value <= TRACE_TIME:  # type: ignore[operator]
            raise self._error(
                f"{key} must be seconds from 0 to {TRACE_TIME:g}, got {brief(value)}; correct it"
            )
        return float(value)  # type: ignore[arg-type]

    def _turn(self, request: dict[str, Any], time: float, think_time: float) -> _Turn:
        prompt = self._at.tokens(request["in"], "in")
        output = request["out"]
        if type(output) is not int or output < 0:
            raise self._at.bad_tokens(output, "out")
        return _Turn(time, think_time, prompt, max(1, output), self._content(request, prompt))

    def _content(self, request: dict[str, Any], num_tokens: int) -> Content:
        """Return a span for each run: its blocks are a path, which its first block names."""
        spans, num_blocks, before = [], 0, -1
        for run in self._runs(request):
            if type(run) is not list or len(run) != 2 or set(map(type, run)) != {int}:
                raise self._error(f"hash_runs must be pairs [first, number], got {brief(run)}")
            first, number = run
            if not (0 <= first < _MOST_BLOCKS and 1 <= number <= _MOST_BLOCKS):
                raise self._error(f"a run must have ids from 0 and a number >= 1, got {brief(run)}")
            self._check_path(first, number, before)
            before, num_blocks = first + number - 1, num_blocks + number
            span = content_id(OF_PATH, self._number * _MOST_BLOCKS + first)
            spans.append((span, number * self._block_size))
        full, rest = divmod(num_tokens, self._block_size)
        if num_blocks == full + 1 and rest:
            spans[-1] = (spans[-1][0], spans[-1][1] - self._block_size + rest)
        elif spans and num_blocks != full:
            raise self._error(
                f"hash_runs must have {full} blocks of {self._block_size} for {num_tokens} tokens, "
                f"got {num_blocks}"
            )
        return tuple(spans)

    def _runs(self, request: dict[str, Any]) -> list[Any]:
        """Return the runs of ids of a prompt's blocks; those of a list are found."""
        runs = request.get("hash_runs")
        if "hash_runs" in request:
            return runs if type(runs) is list else [runs]
        found: list[list[int]] = []
        for number in self._at.integers(request, "hash_ids"):
            if found and number == sum(found[-1]):
                found[-1][1] += 1
            else:
                found.append([number, 1])
        return found

    def _check_path(self, first: int, number: int, before: int) -> None:
        """Raise TraceError if a block follows other blocks than it did elsewhere."""
        starts, lengths = self._starts, self._lengths
        place = bisect_left(starts, first)
        is_known = first in lengths
        is_inside = place > 0 and starts[place - 1] + lengths[starts[place - 1]] > first
        above = starts[place + is_known : place + is_known + 1]
        has_others = bool(above) and above[0] < first + number
        if self._before.setdefault(first, before) != before or is_inside or has_others:
            raise self._error(
                f"blocks from {first} on must always follow the same ones, as ids of paths do; "
                f"here they follow {before}"
            )
        if not is_known:
            starts.insert(place, first)
        lengths[first] = max(number, lengths.get(first, 0))


class Call(NamedTuple):
    """A call: its begin and end (seconds since any moment), lengths and session.

    session: its name; None if it has none.
    """

    start: float
    end: float
    num_prompt_tokens: int
    num_output_tokens: int
    session: str | None = None
    content: Content = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class CallReader(SessionReader):
    """A reader of calls that a service records as they end; they are sorted here.

    The file is read whole. Services record calls without an answer too, which are left out unless
    `skip` says otherwise. by_session: rows come session by session without times, each with the
    seconds between the end of the call before and its own start, for users who go through them
    (`closed_loop` with `sessions`); False: in order of time, with the times recorded.
    """

    skip: Skip = "cancelled"
    by_session: bool = False

    def _calls(self, faults: Faults) -> Iterator[Call]:
        """Yield the calls in the order of the file; those that cannot be read go to `faults`."""
        raise NotImplementedError

    def _read(self, faults: Faults) -> Iterator[TraceRow]:
        calls = sorted(self._calls(faults), key=lambda call: call.start)
        numbers: dict[str, int] = {}
        for call in calls:
            if call.session is not None:
                numbers.setdefault(call.session, len(numbers))
        if self.by_session:
            yield from _sessions(calls, numbers)
            return
        for call in calls:
            session = None if call.session is None else numbers[call.session]
            yield _row(call, session)._replace(arrival_time=call.start - calls[0].start)


def _sessions(calls: Iterable[Call], numbers: dict[str, int]) -> Iterator[TraceRow]:
    """Yield the calls of each session one after another; a call without one is its own session."""
    sessions: dict[int, list[Call]] = {}
    next_number = len(numbers)
    for call in calls:
        if call.session is None:
            sessions[next_number] = [call]
            next_number += 1
        else:
            sessions.setdefault(numbers[call.session], []).append(call)
    for number, turns in sessions.items():
        free_at = turns[0].start
        for call in turns:
            yield _row(call, number)._replace(think_time=max(0.0, call.start - free_at))
            free_at = max(free_at, call.end)


def _row(call: Call, session: int | None) -> TraceRow:
    return TraceRow(
        call.num_prompt_tokens,
        call.num_output_tokens,
        session_id=session,
        content=call.content,
    )


_DEPENDENT_KEYS = ("input_length", "output_length")


@dataclass
class _DependentSession:
    """rows: so far. last: the id of the last request. ids: of all."""

    rows: list[TraceRow] = field(default_factory=list)
    last: str = ""
    ids: set[str] = field(default_factory=set)


@TRACE_READERS.register("agentic_mooncake")
@dataclass(frozen=True, slots=True, kw_only=True)
class AgenticMooncakeReader(SessionReader):
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

    hash_block_size: Count = 512

    def _read(self, faults: Faults) -> Iterator[TraceRow]:
        sessions: dict[str, _DependentSession] = {}

        def add(record: dict[str, Any], at: At) -> None:
            name = record.get("session_id")
            session = sessions.setdefault(
                str(name) if name is not None else f"\0{at.line}", _DependentSession()
            )
            self._check_wait(record, session, at)
            session.rows.append(self._row(record, bool(session.rows), at))
            session.last = str(record.get("request_id", ""))
            session.ids.add(session.last)

        for _ in faults.parsed(json_lines(self.path, faults), add):
            pass
        for number, session in enumerate(sessions.values()):
            for row in session.rows:
                yield row._replace(session_id=number)

    def _check_wait(self, record: dict[str, Any], session: _DependentSession, at: At) -> None:
        """Raise TraceError for a row that waits for another row than the one before it."""
        names = record.get("wait_for") or []
        if type(names) is not list or not set(map(type, names)) <= {str}:
            raise at.error(f"wait_for must be a list of request_ids, got {brief(names)}")
        before = session.ids.intersection(names)
        if before and session.last not in before:
            raise at.error(
                f"wait_for must name the request before it in its session, {brief(session.last)}, "
                f"got {brief(names)}; give the branch a session_id of its own"
            )

    def _row(self, record: dict[str, Any], is_later: bool, at: At) -> TraceRow:
        if missing := [key for key in _DEPENDENT_KEYS if key not in record]:
            raise at.error(
                f"a row needs {' and '.join(_DEPENDENT_KEYS)}; missing: {', '.join(missing)}"
            )
        prompt, output = (
            at.tokens(record[key], key, answer=key == _DEPENDENT_KEYS[1]) for key in _DEPENDENT_KEYS
        )
        wait = sum(
            at.time(record[key], key, "ms")
            for key in ("delay", "tool_wait_ms")
            if record.get(key) is not None
        )
        content = blocks_in(record, at, prompt, output, self.hash_block_size)
        think = wait / A_SECOND["ms"] if is_later else 0.0
        return TraceRow(prompt, output, content=content, think_time=think)


_SCHEMA = "dynamo.request.trace.v1"
_MS = 1e-3


@TRACE_READERS.register("dynamo")
@dataclass(frozen=True, slots=True, kw_only=True)
class DynamoReader(CallReader):
    """Dynamo's request trace: JSON lines, of which those with event_type request_end are requests.

    `request` has request_received_ms, output_tokens, and in `replay` trace_block_size, input_length
    and input_sequence_hashes, a chain hash for each block; `agent_context.session_id` names the
    session. A record may lie in `event` of its line. The end of a request is event_time_unix_ms.
    The file is read whole and sorted by time.

    by_session: rows come session by session, without times, for users who go through them
        (`closed_loop` with `sessions`); False: in order of time, with the times recorded.
    Source: NVIDIA Dynamo, its description of request traces (dynamo.request.trace.v1).
    """

    def _calls(self, faults: Faults) -> Iterator[Call]:
        found = faults.parsed(json_lines(self.path, faults), self._call)
        return (call for call in found if call is not None)

    def _call(self, whole: Mapping[str, Any], at: At) -> Call | None:
        """Return the call of a line; None for a line of another event."""
        inside = whole.get("event")
        record = inside if isinstance(inside, dict) else whole
        if record.get("schema") != _SCHEMA:
            raise at.error(
                f"schema must be {_SCHEMA}, got {brief(record.get('schema'))}; "
                "remove the row, or convert the file"
            )
        if record.get("event_type") != "request_end":
            return None
        request = _mapping(record, "request", at)
        output = at.tokens(request.get("output_tokens"), "output_tokens", answer=True)
        replay = _mapping(request, "replay", at)
        prompt = at.tokens(replay.get("input_length"), "input_length")
        size = at.tokens(replay.get("trace_block_size"), "trace_block_size")
        hashes = at.integers(replay, "input_sequence_hashes")
        if len(hashes) * size >= prompt + size:
            raise at.error(
                f"input_sequence_hashes must have at most {-(-prompt // size)} hashes for {prompt} "
                f"tokens in blocks of {size}, got {len(hashes)}; correct the row"
            )
        content = [(content_id(OF_BLOCK, number), size) for number in hashes]
        if content:
            content[-1] = (content[-1][0], min(size, prompt - (len(hashes) - 1) * size))
        came, ended = (
            at.time(times.get(key), key, "ms") * _MS
            for times, key in ((request, "request_received_ms"), (record, "event_time_unix_ms"))
        )
        context = record.get("agent_context")
        session = context.get("session_id") if isinstance(context, dict) else None
        return Call(
            came,
            max(came, ended),
            prompt,
            output,
            session if isinstance(session, str) else None,
            tuple(content),
        )


def _mapping(record: Mapping[str, Any], key: str, at: At) -> Mapping[str, Any]:
    found = record.get(key)
    if isinstance(found, dict):
        return found
    raise at.error(f"{key} must be an object, got {brief(found)}; correct the row")


_PARTS = {
    "sys_prompt": ("1_sys_prompt.jsonl", "sys_prompt_id"),
    "passages_ids": ("2_passages.jsonl", "passage_id"),
    "history": ("3_history.jsonl", "history_id"),
    "web_search": ("5_web_search.jsonl", "web_search_id"),
    "user_input": ("4_user_input.jsonl", "user_input_id"),
}
"""Parts of a prompt in the order of its tokens: key of a row, and where their lengths are."""

_RAG_OUTPUT = "output_length"


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

        def row(record: dict[str, Any], at: At) -> TraceRow:
            prompt, output = (
                at.tokens(record.get(key), key, answer=key == _RAG_OUTPUT)
                for key in ("input_length", _RAG_OUTPUT)
            )
            if not lengths:
                lengths.update({key: self._lengths(*where) for key, where in _PARTS.items()})
            content = self._content(record.get("hash_ids"), at, lengths, paths)
            if sum(num for _, num in content) > prompt:
                raise at.error(f"input_length must be >= the tokens of its parts, got {prompt}")
            time = self._time(record, at)
            session = sessions.setdefault(str(record.get("session_id")), len(sessions))
            return TraceRow(prompt, output, time, session, content)

        return faults.parsed(json_lines(self.path, faults), row)

    def _time(self, record: dict[str, Any], at: At) -> float:
        value = record.get("timestamp")
        try:
            time = float(value)  # type: ignore[arg-type]
        except (TypeError, ValueError):
            time = -1.0
        if not 0 <= time <= TRACE_TIME:
            raise at.error(
                f"timestamp must be seconds from 0 to {TRACE_TIME:g}, got {brief(value)}"
            )
        return time

    def _lengths(self, name: str, key: str) -> dict[int, int]:
        path = str(Path(self.path).with_name(name))
        if not is_there(Path(path)):
            raise ScenarioError(f"trace {self.path}: {name} must lie beside it; there is no {path}")
        found: dict[int, int] = {}
        for at, record in json_lines(path):
            number = record.get(key)
            if type(number) is not int:
                raise at.error(f"{key} must be an integer, got {brief(number)}")
            found[number] = at.tokens(record.get("token_length"), "token_length")
        return found

    def _content(
        self,
        hash_ids: object,
        at: At,
        lengths: dict[str, dict[int, int]],
        paths: dict[tuple[int, str, int], int],
    ) -> Content:
        """Return a span for each part; its id names the part and all before it."""
        if type(hash_ids) is not dict:
            raise at.error(f"hash_ids must be an object, got {brief(hash_ids)}")
        spans, path = [], -1
        for key, known in lengths.items():
            ids = hash_ids.get(key, [])
            if type(ids) is not list or not all(type(number) is int for number in ids):
                raise at.error(f"{key} must be a list of ids, got {brief(ids)}")
            for number in ids:
                if number not in known:
                    raise at.error(f"{key} {number} is not listed in {_PARTS[key][0]}")
                path = paths.setdefault((path, key, number), len(paths))
                spans.append((content_id(OF_PATH, path), known[number]))
        return tuple(spans)


_CALLS = {"chat", "text_completion", "generate_content"}
_PROMPT = ("gen_ai.usage.input_tokens", "gen_ai.usage.prompt_tokens")
_OUTPUT = ("gen_ai.usage.output_tokens", "gen_ai.usage.completion_tokens")
_OPERATION, _CONVERSATION = "gen_ai.operation.name", "gen_ai.conversation.id"

_MOST_DIGITS = 25  # of a whole number written as text


@TRACE_READERS.register("otel")
@dataclass(frozen=True, slots=True, kw_only=True)
class OtelReader(CallReader):
    """OpenTelemetry spans of GenAI calls: exports in OTLP's JSON, one object behind the other.

    Spans count whose gen_ai.operation.name is chat, text_completion or generate_content, and those
    without a name of an operation that say both numbers of tokens: gen_ai.usage.input_tokens and
    gen_ai.usage.output_tokens, by their older names prompt_tokens and completion_tokens, too.
    Others, such as of tools and agents, are the waits between them. A session is a
    gen_ai.conversation.id, or else a trace. Calls without an answer have no
    or 0 output tokens. Spans do not tell shared prefixes. The file is read whole and sorted.

    by_session: rows come session by session, without times, for users who go through them
        (`closed_loop` with `sessions`); False: in order of time, with the times recorded.
    Source: OpenTelemetry semantic conventions for generative AI; OTLP 1 (JSON).
    """

    def _calls(self, faults: Faults) -> Iterator[Call]:
        with open_trace(self.path) as file:
            exports = objects_in_turn(file, self.path, _LONGEST)
            for spans in faults.parsed(exports, self._spans):
                yield from (each for each in faults.parsed(spans, self._call) if each is not None)

    def _spans(self, export: Mapping[str, Any], at: At) -> list[tuple[At, Mapping[str, Any]]]:
        """Return the spans of an export, each with its place."""
        return [
            (at, span)
            for resource in self._list(export, "resourceSpans", at)
            for scope in self._list(resource, "scopeSpans", at)
            for span in self._list(scope, "spans", at)
        ]

    def _list(self, record: Mapping[str, Any], key: str, at: At) -> list[dict[str, Any]]:
        found = record.get(key)
        if type(found) is list and all(type(each) is dict for each in found):
            return found
        raise at.error(f"{key} must be a list of objects, got {brief(found)}; correct it")

    def _attributes(self, span: Mapping[str, Any], at: At) -> dict[str, Any]:
        found = {}
        for each in self._list({"attributes": [], **span}, "attributes", at):
            value = each.get("value")
            if type(value) is dict and len(value) == 1 and isinstance(each.get("key"), str):
                found[each["key"]] = next(iter(value.values()))
        return found

    def _call(self, span: Mapping[str, Any], at: At) -> Call | None:
        """Return the call of a span; None for a span of another operation."""
        attributes = self._attributes(span, at)
        if not _is_call(attributes):
            return None
        prompt, output = (self._tokens(attributes, keys, at) for keys in (_PROMPT, _OUTPUT))
        start, end = (self._time(span, key, at) for key in _TIMES)
        session = attributes.get(_CONVERSATION, span.get("traceId"))
        return Call(
            start,
            max(start, end),
            prompt,
            output,
            session if isinstance(session, str) else None,
        )

    def _time(self, span: Mapping[str, Any], key: str, at: At) -> float:
        value = _whole(span.get(key))
        return at.time(value, key, "ns") / A_SECOND["ns"]

    def _tokens(self, attributes: Mapping[str, Any], keys: tuple[str, ...], at: At) -> int:
        key = next((key for key in keys if key in attributes), keys[0])
        value = _whole(attributes.get(key))
        return at.tokens(value, key, answer=keys is _OUTPUT)


_TIMES = ("startTimeUnixNano", "endTimeUnixNano")


def _is_call(attributes: Mapping[str, Any]) -> bool:
    operation = attributes.get(_OPERATION)
    if operation is None:
        return all(any(key in attributes for key in keys) for keys in (_PROMPT, _OUTPUT))
    return operation in _CALLS


def _whole(value: object) -> object:
    """Return a whole number that is text in JSON, as 64-bit numbers are."""
    if isinstance(value, str) and value.isdecimal() and len(value) <= _MOST_DIGITS:
        return int(value)
    return value
